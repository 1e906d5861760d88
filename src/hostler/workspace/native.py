"""Keeps a copy of the program's own session files, so that its history can be put back."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Literal

from ..types.errors import PathError, SessionLost
from ..types.runtime import NativeFile
from . import jsonl, sqlite
from .confined import Root
from .scan import entry_of

Manifest = dict[str, Any]
"""JSON: ``files`` (path below home, bytes, kind, mode, and how it was copied) and ``skipped`` (why something was not)."""

Status = Literal["ok", "missing", "damaged", "lost"]

_MAX_BYTES = 1 << 30
_MAX_FILES = 1000
_MAX_LOOKED_AT = 100_000
_MAX_DEPTH = 32
_EDGE = 4096
_GARBAGE_AGE = 3600.0  # a copy without a manifest may be another host's, which has not recorded it yet
_MAX_CHECKED_DB = 64 << 20


class _Skipped(Exception):
    pass


# ---- home to copy ----------------------------------------------------------------------------------------------------


def save(
    home: str,
    target_dir: str,
    files: Iterable[NativeFile],
    native_id: str,
    previous: Mapping[str, Any] | None,
    *,
    keep: bool = True,
) -> Manifest:
    """Copy what has changed since ``previous``; gives the new manifest. Call it when the program is between turns.

    A copy named in ``previous`` stays as it is there, so until the new manifest is recorded the old one can be restored:
    new bytes are only ever appended behind what it counts, anything else becomes a new file. What is gone or damaged in
    home keeps its old copy; without ``keep`` it is not in the new manifest. Only regular files that match ``files`` are taken, without following links, at most
    1000 and 1 GB.
    """
    os.makedirs(target_dir, mode=0o700, exist_ok=True)
    root = Root(home)
    known = {item["path"]: item for item in (previous or {}).get("files", ())}
    saved: dict[str, dict[str, Any]] = {}
    skipped: list[str] = []
    left = _MAX_BYTES
    for path, kind in _find(root, files, native_id).items():
        if len(saved) == _MAX_FILES:
            skipped.append(f"{path} and more: over {_MAX_FILES} files")
            break
        try:
            saved[path] = _save_one(root, target_dir, path, kind, known.get(path), left)
            left -= saved[path]["bytes"]
        except FileNotFoundError:
            continue
        except (OSError, PathError, EOFError, _Skipped, sqlite.NotCopied) as error:
            skipped.append(f"{path}: {str(error) or 'it was cut short while it was copied'}")
    kept = [item for path, item in known.items() if keep and path not in saved]
    _sweep(target_dir, {item["blob"] for item in (*known.values(), *saved.values())})
    return {"files": [*saved.values(), *kept][:_MAX_FILES], "skipped": skipped}


def _save_one(
    root: Root, target_dir: str, path: str, kind: str, old: Mapping[str, Any] | None, left: int
) -> dict[str, Any]:
    with root.open_read(path) as source:
        info = os.fstat(source.fileno())
        seen = [info.st_dev, *entry_of(info)]
        if info.st_size > left:
            raise _Skipped(f"with {info.st_size} bytes it is over the limit of 1 GB for all files")
        if kind == "sqlite":
            with contextlib.suppress(FileNotFoundError):
                seen += entry_of(root.lstat(path + "-wal"))
        if old and old["seen"] == seen and _blob_size(target_dir, old) >= old["bytes"]:
            return dict(old)
        item = {"path": path, "kind": kind, "mode": stat.S_IMODE(info.st_mode), "seen": seen}
        content = jsonl.chunks(source, 0, info.st_size)
        if kind == "jsonl":
            size, _ = jsonl.whole(source, info.st_size)
            same_file = old is not None and (old["seen"][0], old["seen"][5]) == (seen[0], seen[5])
            if old and same_file and _append(source, size, target_dir, old):
                return {**item, "bytes": size, "blob": old["blob"]}
            content = _worth_saving(source, size, info.st_size, old["bytes"] if old else 1)
        blob = f"{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.{secrets.token_hex(4)}"
        target = os.path.join(target_dir, blob)
        if kind == "sqlite":
            sqlite.copy(root, path, target)
            item["rows"] = sqlite.rows(target)
        else:
            with open(target, "xb", opener=_private) as file:
                file.writelines(content)
        _sync(target)
        _sync(target_dir)
        return {**item, "bytes": os.stat(target).st_size, "blob": blob}


def _worth_saving(source: BinaryIO, size: int, torn_size: int, least: int) -> Iterator[bytes]:
    """The records of a log. One that is torn or damaged is not taken when the old copy has more."""
    if size == torn_size and jsonl.is_sound(source, 0, size):
        return jsonl.chunks(source, 0, size)
    if sum(map(len, jsonl.records(source, size))) < least:
        raise _Skipped("it is damaged or empty")
    return jsonl.records(source, size)


def _append(source: BinaryIO, size: int, target_dir: str, old: Mapping[str, Any]) -> bool:
    """Add the new tail to the old copy, if ``source`` looks like the same file that has grown."""
    had = old["bytes"]
    # A copy longer than its manifest says was written by a host that lost its lease, or died: leave it alone.
    if size <= had or _blob_size(target_dir, old) != had or not jsonl.is_sound(source, had, size):
        return False
    with open(os.path.join(target_dir, old["blob"]), "r+b", opener=_no_link) as copy:
        for start in (0, max(had - _EDGE, 0)):
            copy.seek(start)
            source.seek(start)
            length = min(_EDGE, had - start)
            if copy.read(length) != source.read(length):
                return False
        copy.seek(had)
        copy.writelines(jsonl.chunks(source, had, size))
        copy.flush()
        os.fsync(copy.fileno())
    return True


def _sweep(target_dir: str, used: set[str]) -> None:
    with os.scandir(target_dir) as items:
        for item in items:
            with contextlib.suppress(OSError):
                if item.name not in used and time.time() - item.stat(follow_symlinks=False).st_mtime > _GARBAGE_AGE:
                    os.unlink(item.path)


# ---- copy to home ----------------------------------------------------------------------------------------------------


def check(home: str, files: Iterable[NativeFile], native_id: str, manifest: Mapping[str, Any] | None) -> Status:
    """Whether the program can go on with what is in its home. Only while the program is not running.

    A ``jsonl`` file is repaired on the way: a complete last record gets its newline, an incomplete one is cut off, so is
    what is no record. ``missing`` and ``damaged`` (shorter than the saved copy counts as damaged) can be restored; ``lost`` has no
    copy either.
    """
    root = Root(home)
    known = (manifest or {}).get("files", ())
    if known:
        found = [_status(root, item["path"], item["kind"], _least(item)) for item in known]
        # Files of an unfinished turn are not in the manifest yet; torn lines in them are repaired all the same.
        for path in _find(root, files, native_id).items() - {(item["path"], item["kind"]) for item in known}:
            _status(root, *path, 0)
        return "missing" if "missing" in found else "damaged" if "damaged" in found else "ok"
    found = [_status(root, path, kind, 1) for path, kind in _find(root, files, native_id).items()]
    return "ok" if found and set(found) == {"ok"} else "lost"


def read(
    home: str, target_dir: str, files: Iterable[NativeFile], native_id: str, manifest: Mapping[str, Any] | None
) -> dict[str, bytes]:
    """The program's session files by their path below home: those in its home, for missing ones the saved copies."""
    root = Root(home)
    found: dict[str, bytes] = {}
    for path, kind in _find(root, files, native_id).items():
        with contextlib.suppress(OSError, PathError, sqlite.NotCopied):
            found[path] = _database(root, path) if kind == "sqlite" else root.read(path)
    for item in (manifest or {}).get("files", ()):
        if item["path"] not in found and _blob_size(target_dir, item) >= item["bytes"]:
            with open(os.path.join(target_dir, item["blob"]), "rb", opener=_no_link) as copy:
                found[item["path"]] = copy.read(item["bytes"])
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
    return bool(files) and all(_is_sound_copy(target_dir, item) for item in files)


def restore(target_dir: str, home: str, manifest: Mapping[str, Any]) -> None:
    """Put back what is missing or damaged in home, exactly as far as the manifest counts. Raises SessionLost."""
    root = Root(home)
    for item in manifest["files"]:
        path = item["path"]
        if _status(root, path, item["kind"], _least(item)) == "ok":
            continue
        if _blob_size(target_dir, item) < item["bytes"]:
            raise SessionLost(f"The saved copy of {path} is missing or cut short; the conversation cannot be put back.")
        _clear_way(root, path)
        with open(os.path.join(target_dir, item["blob"]), "rb", opener=_no_link) as copy:
            root.write(path, jsonl.chunks(copy, 0, item["bytes"]), mode=item["mode"] | 0o600)
        if item["kind"] == "sqlite":
            for companion in sqlite.companions(path):
                with contextlib.suppress(FileNotFoundError):
                    root.remove(companion)


def relocate(home: str, files: Iterable[NativeFile], native_id: str, workdir: str) -> None:
    """Tell the files that hold the working directory where it is now. Only while the program is not running."""
    root = Root(home)
    for wanted in files:
        if wanted.moved is not None:
            for path in _find(root, [wanted], native_id):
                # Where that fails, what the program then says of its conversation is told.
                with contextlib.suppress(sqlite.NotCopied, OSError, PathError):
                    if wanted.kind == "jsonl":
                        jsonl.change_first(root, path, wanted.moved, workdir)
                    else:
                        sqlite.change(root, path, wanted.moved, {"workdir": workdir})


def _least(item: Mapping[str, Any]) -> int:
    """What a file in home must have to be no older than its copy: rows of a database, bytes of anything else."""
    return int(item.get("rows", 0) if item["kind"] == "sqlite" else item["bytes"])


def _status(root: Root, path: str, kind: str, least: int) -> Status:
    try:
        with root.open_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _MAX_BYTES and kind == "jsonl":
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


# ---- finding them ----------------------------------------------------------------------------------------------------


def _find(root: Root, files: Iterable[NativeFile], native_id: str) -> dict[str, str]:
    """The regular files below home that match, by path, with their kind; the first pattern counts."""
    found: dict[str, str] = {}
    budget = [_MAX_LOOKED_AT]
    for wanted in files:
        # Each name of the pattern is filled in by itself: an id with a slash in it matches nothing.
        names = [_filled(name, native_id) for name in wanted.pattern.split("/")]
        for path in _matching(root, names, "", budget, 0):
            found.setdefault(path, wanted.kind)
    return dict(sorted(found.items()))


def _filled(name: str, native_id: str) -> str:
    return name.replace("{id}", glob.escape(native_id)).replace("{id:8}", glob.escape(native_id[:8]))


def _matching(root: Root, names: list[str], folder: str, budget: list[int], depth: int) -> Iterator[str]:
    name, rest = names[0], names[1:]
    try:
        if glob.has_magic(name):
            entries = root.listdir(folder or ".")
        else:
            entries = [root.stat(f"{folder}/{name}" if folder else name)]
    except (OSError, PathError):
        return
    if name == "**":
        yield from _matching(root, rest, folder, budget, depth)
    for entry in entries:
        budget[0] -= 1
        if budget[0] < 0:
            return
        if name == "**":
            if entry.kind == "directory" and depth < _MAX_DEPTH:
                yield from _matching(root, names, entry.path, budget, depth + 1)
        elif fnmatch.fnmatchcase(entry.path.rpartition("/")[2], name):
            if rest and entry.kind == "directory":
                yield from _matching(root, rest, entry.path, budget, depth)
            elif not rest and entry.kind == "file":
                yield entry.path


# ---- the copies ------------------------------------------------------------------------------------------------------


def _is_sound_copy(target_dir: str, item: Mapping[str, Any]) -> bool:
    if _blob_size(target_dir, item) < item["bytes"]:
        return False
    if item["kind"] == "sqlite":
        return _is_database(Root(target_dir), item["blob"], item["bytes"], _least(item))
    if item["kind"] == "jsonl":
        with open(os.path.join(target_dir, item["blob"]), "rb", opener=_no_link) as copy:
            return jsonl.is_sound(copy, 0, item["bytes"])
    return True


def _blob_size(target_dir: str, item: Mapping[str, Any]) -> int:
    if os.path.basename(item["blob"]) != item["blob"]:
        return -1
    try:
        info = os.lstat(os.path.join(target_dir, item["blob"]))
    except OSError:
        return -1
    return info.st_size if stat.S_ISREG(info.st_mode) else -1


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
