"""Copy to home: whether a conversation can be gone on with, and putting it back."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Literal

from ...types.errors import PathError, SessionLost
from ...types.runtime import NativeFile
from ..confined import Root
from . import jsonl, sqlite
from .copies import MAX_BYTES, is_sound_copy, is_there, put_together, saved, size_of, state_of
from .finding import find

Status = Literal["ok", "missing", "damaged", "lost"]

_MAX_CHECKED_DB = 64 << 20


def check(
    home: str, target_dir: str, files: Iterable[NativeFile], native_id: str, manifest: Mapping[str, Any] | None
) -> Status:
    """Whether the program can go on with what is in its home. Only while the program is not running.

    A ``jsonl`` file is repaired on the way: a complete last record gets its newline, an incomplete one is cut off, so is
    what is no record. ``missing`` and ``damaged`` (shorter than the saved copy counts as damaged) can be restored; ``lost`` has no
    copy either.
    """
    root = Root(home)
    known = (manifest or {}).get("files", ())
    if known:
        found = [_compared(root, target_dir, item) for item in known]
        # Files of an unfinished turn are not in the manifest yet; torn lines in them are repaired all the same.
        for path in find(root, files, native_id).items() - {(item["path"], item["kind"]) for item in known}:
            _status(root, *path, 0)
        return "missing" if "missing" in found else "damaged" if "damaged" in found else "ok"
    found = [_status(root, path, kind, 1) for path, kind in find(root, files, native_id).items()]
    return "ok" if found and set(found) == {"ok"} else "lost"


def read(
    home: str, target_dir: str, files: Iterable[NativeFile], native_id: str, manifest: Mapping[str, Any] | None
) -> dict[str, bytes]:
    """The program's session files by their path below home: those in its home, for missing ones the saved copies."""
    root = Root(home)
    found: dict[str, bytes] = {}
    for path, kind in find(root, files, native_id).items():
        with contextlib.suppress(OSError, PathError, sqlite.NotCopied):
            found[path] = _database(root, path) if kind == "sqlite" else root.read(path)
    for item in (manifest or {}).get("files", ()):
        if item["path"] not in found and is_there(target_dir, item):
            with contextlib.suppress(sqlite.NotCopied), saved(target_dir, item) as content:
                found[item["path"]] = b"".join(content)
    return found


def _database(root: Root, path: str) -> bytes:
    """The database with what is still in its write-ahead log."""
    with tempfile.TemporaryDirectory(prefix="hostler-") as folder:
        sqlite.copy(root, path, os.path.join(folder, "copy"))
        with open(os.path.join(folder, "copy"), "rb") as copy:
            return copy.read()


def restorable(target_dir: str, manifest: Mapping[str, Any] | None) -> bool:
    """Whether the saved copies that the manifest names are there and sound."""
    files = (manifest or {}).get("files", ())
    return bool(files) and all(is_sound_copy(target_dir, item) for item in files)


def exceeds(root: Root, target_dir: str, item: Mapping[str, Any]) -> bool:
    """Whether what is in home is sound and may hold what its copy does not. A log that has not grown does not; of other
    files nobody knows."""
    more = item["bytes"] + 1 if item["kind"] == "jsonl" else _least(target_dir, item)
    return _status(root, item["path"], item["kind"], more) == "ok"


def restore(target_dir: str, home: str, manifest: Mapping[str, Any]) -> None:
    """Put back what is missing or damaged in home, exactly as far as the manifest counts. Raises SessionLost."""
    root = Root(home)
    for item in manifest["files"]:
        path = item["path"]
        if _compared(root, target_dir, item) == "ok":
            continue
        if not is_there(target_dir, item):
            raise SessionLost(f"The saved copy of {path} is missing or cut short; the conversation cannot be put back.")
        try:
            with saved(target_dir, item) as content:
                _clear_way(root, path)
                root.write(path, content, mode=item["mode"] | 0o600)
        except sqlite.NotCopied as error:
            raise SessionLost(
                f"The saved copy of {path} is of no use ({error}); the conversation cannot be put back."
            ) from None
        if item["kind"] == "sqlite":
            for companion in sqlite.companions(path):
                with contextlib.suppress(FileNotFoundError):
                    root.remove(companion)


def relocate(home: str, files: Iterable[NativeFile], native_id: str, workdir: str) -> None:
    """Tell the files that hold the working directory where it is now. Only while the program is not running."""
    root = Root(home)
    for wanted in files:
        if wanted.moved is not None:
            for path in find(root, [wanted], native_id):
                # Where that fails, what the program then says of its conversation is told.
                with contextlib.suppress(sqlite.NotCopied, OSError, PathError):
                    if wanted.kind == "jsonl":
                        jsonl.change_first(root, path, wanted.moved, workdir)
                    else:
                        sqlite.change(root, path, wanted.moved, {"workdir": workdir})


def _compared(root: Root, target_dir: str, item: Mapping[str, Any]) -> Status:
    """Whether what is in home is sound and no older than its copy."""
    path = item["path"]
    if item["kind"] == "sqlite":
        with contextlib.suppress(OSError, PathError):  # untouched since it was copied, it need not be looked through
            if state_of(root, path, root.lstat(path)) == item["seen"] and not sqlite.in_transaction(root, path):
                return "ok"
    return _status(root, path, item["kind"], _least(target_dir, item))


def _least(target_dir: str, item: Mapping[str, Any]) -> int:
    """What a file in home must have to be no older than its copy: rows of a database, bytes of anything else."""
    if item["kind"] != "sqlite":
        return int(item["bytes"])
    if size_of(item) > _MAX_CHECKED_DB or not is_there(target_dir, item):
        return 0
    with contextlib.suppress(sqlite.NotCopied), put_together(target_dir, item) as (whole, _):
        return sqlite.rows(whole)
    return 0  # it is of no use, so whatever is in home is better


def _status(root: Root, path: str, kind: str, least: int) -> Status:
    try:
        with root.open_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES and kind == "jsonl":
                return "ok"  # too much to read through; the program will tell
            if kind == "jsonl":
                size = _repaired(root, path, file, size, least)
            elif kind == "sqlite":
                return "ok" if _is_database(root, path, size, least) else "damaged"
            else:
                return "ok" if size or not least else "damaged"
    except FileNotFoundError:
        return "missing"
    except (OSError, PathError):
        return "damaged"
    return "ok" if size >= least else "damaged"


def _repaired(root: Root, path: str, file: BinaryIO, size: int, least: int) -> int:
    """The size of the file when it holds nothing but whole records; it is made so unless that would be too few."""
    end, open_ended = jsonl.whole(file, size)
    if end == size and not open_ended and jsonl.is_sound(file, 0, size):
        return size
    good = sum(map(len, jsonl.records(file, end)))
    if good >= max(least, 1):
        # Written anew and not in place: what lies there may be a hard link.
        root.write(path, jsonl.records(file, end), mode=stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    return good


def _is_database(root: Root, path: str, size: int, least_rows: int) -> bool:
    if size > _MAX_CHECKED_DB:
        return True
    with tempfile.TemporaryDirectory(prefix="hostler-") as folder:
        try:
            sqlite.copy(root, path, os.path.join(folder, "copy"))
        except sqlite.NotCopied:
            return False
        return sqlite.rows(os.path.join(folder, "copy")) >= least_rows


def _clear_way(root: Root, path: str) -> None:
    """Remove what the agent may have put where the file and its folders belong: links, FIFOs, folders."""
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        wanted = stat.S_ISDIR if depth < len(parts) else stat.S_ISREG
        try:
            if not wanted(root.lstat("/".join(parts[:depth])).st_mode):
                root.remove("/".join(parts[:depth]))
        except FileNotFoundError:
            return
