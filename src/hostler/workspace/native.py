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
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from ..types.errors import PathError, SessionLost
from ..types.result import FileEntry
from ..types.runtime import NativeFile
from . import jsonl, sqlite, wal
from .confined import Root
from .scan import Entry, Snapshot, entry_of, settle

Manifest = dict[str, Any]
"""JSON: ``files`` (path below home, bytes, kind, mode, how it was copied, and of a database the ``log`` that belongs to the
copy) and ``skipped`` (why something was not)."""

Status = Literal["ok", "missing", "damaged", "lost"]

_MAX_BYTES = 1 << 30
_MAX_FILES = 1000
_MAX_LOOKED_AT = 100_000
_MAX_DEPTH = 32
_EDGE = 4096
_GARBAGE_AGE = 3600.0  # a copy without a manifest may be another host's, which has not recorded it yet
_MAX_CHECKED_DB = 64 << 20
_TRIES = 5


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
            left -= _size(saved[path])
        except FileNotFoundError:
            continue
        except (OSError, PathError, EOFError, _Skipped, sqlite.NotCopied) as error:
            skipped.append(f"{path}: {str(error) or 'it was cut short while it was copied'}")
    kept = [item for path, item in known.items() if keep and path not in saved]
    _sweep(target_dir, {part["blob"] for item in (*known.values(), *saved.values()) for part in _parts(item)})
    return {"files": [*saved.values(), *kept][:_MAX_FILES], "skipped": skipped}


def _save_one(
    root: Root, target_dir: str, path: str, kind: str, old: Mapping[str, Any] | None, left: int
) -> dict[str, Any]:
    if kind == "sqlite":
        return _save_database(root, target_dir, path, old, left)
    with root.open_read(path) as source:
        info = os.fstat(source.fileno())
        seen = [info.st_dev, *entry_of(info)]
        _fits(info.st_size, left)
        if old and old["seen"] == seen and _is_there(target_dir, old):
            return dict(old)
        item = {"path": path, "kind": kind, "mode": stat.S_IMODE(info.st_mode), "seen": seen}
        content = jsonl.chunks(source, 0, info.st_size)
        if kind == "jsonl":
            size, _ = jsonl.whole(source, info.st_size)
            same_file = old is not None and (old["seen"][0], old["seen"][5]) == (seen[0], seen[5])
            if old and same_file and _append(source, size, target_dir, old):
                return {**item, "bytes": size, "blob": old["blob"]}
            content = _worth_saving(source, size, info.st_size, old["bytes"] if old else 1)
        return {**item, **_new_blob(target_dir, path, content)}


def _fits(size: int, left: int) -> None:
    if size > left:
        raise _Skipped(f"with {size} bytes it is over the limit of 1 GB for all files")


def _new_blob(target_dir: str, path: str, content: Iterable[bytes]) -> dict[str, Any]:
    blob = f"{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.{secrets.token_hex(4)}"
    target = os.path.join(target_dir, blob)
    with open(target, "xb", opener=_private) as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    _sync(target_dir)
    return {"bytes": size, "blob": blob}


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


# A database is saved as it lies there: its file, and of its write-ahead log what is committed. While the file is the
# same, only the log has grown; SQLite moves it into the file from time to time, and then everything is copied anew.


def _save_database(root: Root, target_dir: str, path: str, old: Mapping[str, Any] | None, left: int) -> dict[str, Any]:
    for attempt in range(_TRIES):
        with root.open_read(path) as source:
            info = os.fstat(source.fileno())
            entry = entry_of(info)
            seen = _seen(root, path, info)
            if old and old["seen"] == seen and _is_there(target_dir, old):
                return dict(old)
            item = {"path": path, "kind": "sqlite", "mode": stat.S_IMODE(info.st_mode), "seen": seen}
            if old and old["seen"][:6] == seen[:6] and _blob_size(target_dir, old) >= old["bytes"]:
                item |= {"bytes": old["bytes"], "blob": old["blob"]}
                item["log"] = _save_log(root, target_dir, path, old.get("log"), left - old["bytes"])
                if _unchanged(root, path, entry):
                    return item
                continue
            _fits(info.st_size, left)
            if sqlite.in_transaction(root, path):
                raise _Skipped("it is in the middle of a transaction")
            settle(Snapshot({path: entry}))  # from now on a change of the file is one of its entry
            with contextlib.ExitStack() as undone:
                undone.callback(_drop, target_dir, item)
                item |= _new_blob(target_dir, path, jsonl.chunks(source, 0, info.st_size))
                item["log"] = _save_log(root, target_dir, path, None, left - info.st_size)
                if _unchanged(root, path, entry):
                    item["log"] = _taken_log(target_dir, item)
                    undone.pop_all()
                    return item
        time.sleep(0.02 * attempt)
    raise _Skipped("it is being written to all the time")


def _seen(root: Root, path: str, info: os.stat_result) -> list[int]:
    """What a database and its log have in no other state."""
    seen = [info.st_dev, *entry_of(info)]
    with contextlib.suppress(FileNotFoundError):
        seen += entry_of(root.lstat(path + "-wal"))
    return seen


def _unchanged(root: Root, path: str, entry: Entry) -> bool:
    return entry_of(root.lstat(path)) == entry


def _save_log(
    root: Root, target_dir: str, path: str, old: Mapping[str, Any] | None, left: int
) -> dict[str, Any] | None:
    """The committed part of the log, as far as it is new behind the old copy."""
    try:
        source = root.open_read(path + "-wal")
    except FileNotFoundError:
        return None
    with source:
        if old and _blob_size(target_dir, old) == (had := old["bytes"]):
            with open(os.path.join(target_dir, old["blob"]), "r+b", opener=_no_link) as copy:
                if wal.same(source, copy, had):
                    size = wal.committed(source, had)
                    _fits(size, left)
                    if size > had:
                        copy.seek(had)
                        copy.writelines(jsonl.chunks(source, had, size))
                        copy.flush()
                        _not_begun_anew(source, copy, size)
                        os.fsync(copy.fileno())
                    return {"bytes": size, "blob": old["blob"]}
        size = wal.committed(source)
        _fits(size, left)
        if not size:
            return None
        new = _new_blob(target_dir, path, jsonl.chunks(source, 0, size))
        with open(os.path.join(target_dir, new["blob"]), "rb", opener=_no_link) as copy:
            _not_begun_anew(source, copy, size)
        return new


def _not_begun_anew(log: BinaryIO, copy: BinaryIO, size: int) -> None:
    """What is committed stays as it is until SQLite begins the log anew, with another header."""
    if not wal.same(log, copy, size):
        raise _Skipped("its log was begun anew while it was copied")


def _taken_log(target_dir: str, item: Mapping[str, Any]) -> dict[str, Any] | None:
    """The log of a new copy, as far as SQLite takes it. Raises NotCopied when the copy is damaged."""
    with _put_together(target_dir, item) as (_, frames):
        if (log := item["log"]) is None:
            return None
        with open(os.path.join(target_dir, log["blob"]), "rb", opener=_no_link) as copy:
            size = wal.end_of(copy, frames)
        return {**log, "bytes": size} if size else None


def _sweep(target_dir: str, used: set[str]) -> None:
    with os.scandir(target_dir) as items:
        for item in items:
            with contextlib.suppress(OSError):
                if item.name not in used and time.time() - item.stat(follow_symlinks=False).st_mtime > _GARBAGE_AGE:
                    os.unlink(item.path)


# ---- copy to home ----------------------------------------------------------------------------------------------------


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
        if item["path"] not in found and _is_there(target_dir, item):
            with contextlib.suppress(sqlite.NotCopied), _saved(target_dir, item) as content:
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
    return bool(files) and all(_is_sound_copy(target_dir, item) for item in files)


def restore(target_dir: str, home: str, manifest: Mapping[str, Any]) -> None:
    """Put back what is missing or damaged in home, exactly as far as the manifest counts. Raises SessionLost."""
    root = Root(home)
    for item in manifest["files"]:
        path = item["path"]
        if _compared(root, target_dir, item) == "ok":
            continue
        if not _is_there(target_dir, item):
            raise SessionLost(f"The saved copy of {path} is missing or cut short; the conversation cannot be put back.")
        try:
            with _saved(target_dir, item) as content:
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
            for path in _find(root, [wanted], native_id):
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
            if _seen(root, path, root.lstat(path)) == item["seen"] and not sqlite.in_transaction(root, path):
                return "ok"
    return _status(root, path, item["kind"], _least(target_dir, item))


def _least(target_dir: str, item: Mapping[str, Any]) -> int:
    """What a file in home must have to be no older than its copy: rows of a database, bytes of anything else."""
    if item["kind"] != "sqlite":
        return int(item["bytes"])
    if _size(item) > _MAX_CHECKED_DB or not _is_there(target_dir, item):
        return 0
    with contextlib.suppress(sqlite.NotCopied), _put_together(target_dir, item) as (whole, _):
        return sqlite.rows(whole)
    return 0  # it is of no use, so whatever is in home is better


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
    search = _Search(root, _MAX_LOOKED_AT, {})
    ids = {"{id}": glob.escape(native_id), "{id:8}": glob.escape(native_id[:8])}
    for wanted in files:
        # Each name of the pattern is filled in by itself: an id with a slash in it matches nothing.
        names = [_filled(name, ids) for name in wanted.pattern.split("/")]
        for path in search.matching(names, "", 0):
            found.setdefault(path, wanted.kind)
    return dict(sorted(found.items()))


def _filled(name: str, ids: Mapping[str, str]) -> str:
    for key, value in ids.items():
        name = name.replace(key, value)
    return name


@dataclass(slots=True)
class _Search:
    """Walks through what the patterns of one program name, each folder once; ``left`` entries may still be looked at."""

    root: Root
    left: int
    listed: dict[str, list[FileEntry]]

    def matching(self, names: list[str], folder: str, depth: int) -> Iterator[str]:
        name, rest = names[0], names[1:]
        if not glob.has_magic(name):
            if "/" in name or name in ("", ".", ".."):
                return
            path = f"{folder}/{name}" if folder else name
            if rest:
                yield from self.matching(rest, path, depth)
            elif self._is_file(path):
                yield path
            return
        if name == "**":
            yield from self.matching(rest, folder, depth)
        for entry in self._entries(folder):
            self.left -= 1
            if self.left < 0:
                return
            if name == "**":
                if entry.kind == "directory" and depth < _MAX_DEPTH:
                    yield from self.matching(names, entry.path, depth + 1)
            elif fnmatch.fnmatchcase(entry.path.rpartition("/")[2], name):
                if rest and entry.kind == "directory":
                    yield from self.matching(rest, entry.path, depth)
                elif not rest and entry.kind == "file":
                    yield entry.path

    def _entries(self, folder: str) -> list[FileEntry]:
        if folder not in self.listed:
            try:
                self.listed[folder] = self.root.listdir(folder or ".")
            except (OSError, PathError):
                self.listed[folder] = []
        return self.listed[folder]

    def _is_file(self, path: str) -> bool:
        try:
            return stat.S_ISREG(self.root.lstat(path).st_mode)
        except (OSError, PathError):
            return False


# ---- the copies ------------------------------------------------------------------------------------------------------


def _is_sound_copy(target_dir: str, item: Mapping[str, Any]) -> bool:
    if not _is_there(target_dir, item):
        return False
    if item["kind"] == "file":
        return True
    if item["kind"] == "sqlite":
        with contextlib.suppress(sqlite.NotCopied), _saved(target_dir, item):
            return True
        return False
    with open(os.path.join(target_dir, item["blob"]), "rb", opener=_no_link) as copy:
        return jsonl.is_sound(copy, 0, item["bytes"])


@contextlib.contextmanager
def _saved(target_dir: str, item: Mapping[str, Any]) -> Iterator[Iterator[bytes]]:
    """What the manifest counts of a copy, a database with its log. Raises NotCopied when that is not whole."""
    if item["kind"] != "sqlite":
        with open(os.path.join(target_dir, item["blob"]), "rb", opener=_no_link) as copy:
            yield jsonl.chunks(copy, 0, item["bytes"])
        return
    with _put_together(target_dir, item) as (whole, frames), open(whole, "rb") as copy:
        if (log := item.get("log")) is not None:
            with open(os.path.join(target_dir, log["blob"]), "rb", opener=_no_link) as file:
                if wal.end_of(file, frames) != log["bytes"]:
                    raise sqlite.NotCopied("its log is damaged")
        yield jsonl.chunks(copy, 0, os.fstat(copy.fileno()).st_size)


@contextlib.contextmanager
def _put_together(target_dir: str, item: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The saved database with its log in it, for a while, and how many frames of the log were good. Raises NotCopied."""
    with tempfile.TemporaryDirectory(prefix="hostler-") as folder:
        whole = os.path.join(folder, "copy")
        for part, name in zip(_parts(item), (whole, whole + "-wal"), strict=False):
            with (
                open(os.path.join(target_dir, part["blob"]), "rb", opener=_no_link) as copy,
                open(name, "xb", opener=_private) as file,
            ):
                file.writelines(jsonl.chunks(copy, 0, part["bytes"]))
        yield whole, sqlite.bring_in_log(whole)


def _parts(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a copy consists of: a blob, and of a database perhaps another one with its log."""
    return [part for part in (item, item.get("log")) if part]


def _size(item: Mapping[str, Any]) -> int:
    return sum(part["bytes"] for part in _parts(item))


def _is_there(target_dir: str, item: Mapping[str, Any]) -> bool:
    return all(_blob_size(target_dir, part) >= part["bytes"] for part in _parts(item))


def _drop(target_dir: str, item: Mapping[str, Any]) -> None:
    for part in _parts(item):
        if "blob" in part:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(target_dir, part["blob"]))


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
