"""Home to copy: what has changed is saved, so that until a manifest is recorded the one before can be restored."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from ...types.errors import PathError
from ...types.runtime import NativeFile
from ..confined import Root
from ..scan import Entry, Snapshot, entry_of, settle
from . import jsonl, sqlite, wal
from .copies import (
    MAX_BYTES,
    Manifest,
    blob_size,
    drop,
    is_there,
    new_blob,
    no_link,
    parts,
    put_together,
    size_of,
    state_of,
)
from .finding import find

_MAX_FILES = 1000
_EDGE = 4096
_GARBAGE_AGE = 3600.0  # a copy without a manifest may be another host's, which has not recorded it yet
_TRIES = 5


class _Skipped(Exception):
    pass


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
    left = MAX_BYTES
    for path, kind in find(root, files, native_id).items():
        if len(saved) == _MAX_FILES:
            skipped.append(f"{path} and more: over {_MAX_FILES} files")
            break
        try:
            saved[path] = _save_one(root, target_dir, path, kind, known.get(path), left)
            left -= size_of(saved[path])
        except FileNotFoundError:
            continue
        except (OSError, PathError, EOFError, _Skipped, sqlite.NotCopied) as error:
            skipped.append(f"{path}: {str(error) or 'it was cut short while it was copied'}")
    kept = [item for path, item in known.items() if keep and path not in saved]
    _sweep(target_dir, {part["blob"] for item in (*known.values(), *saved.values()) for part in parts(item)})
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
        if old and old["seen"] == seen and is_there(target_dir, old):
            return dict(old)
        item = {"path": path, "kind": kind, "mode": stat.S_IMODE(info.st_mode), "seen": seen}
        content = jsonl.chunks(source, 0, info.st_size)
        if kind == "jsonl":
            size, _ = jsonl.whole(source, info.st_size)
            same_file = old is not None and (old["seen"][0], old["seen"][5]) == (seen[0], seen[5])
            if old and same_file and _append(source, size, target_dir, old):
                return {**item, "bytes": size, "blob": old["blob"]}
            content = _worth_saving(source, size, info.st_size, old["bytes"] if old else 1)
        return {**item, **new_blob(target_dir, path, content)}


def _fits(size: int, left: int) -> None:
    if size > left:
        raise _Skipped(f"with {size} bytes it is over the limit of 1 GB for all files")


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
    if size <= had or blob_size(target_dir, old) != had or not jsonl.is_sound(source, had, size):
        return False
    with open(os.path.join(target_dir, old["blob"]), "r+b", opener=no_link) as copy:
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
            seen = state_of(root, path, info)
            if old and old["seen"] == seen and is_there(target_dir, old):
                return dict(old)
            item = {"path": path, "kind": "sqlite", "mode": stat.S_IMODE(info.st_mode), "seen": seen}
            if old and old["seen"][:6] == seen[:6] and blob_size(target_dir, old) >= old["bytes"]:
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
                undone.callback(drop, target_dir, item)
                item |= new_blob(target_dir, path, jsonl.chunks(source, 0, info.st_size))
                item["log"] = _save_log(root, target_dir, path, None, left - info.st_size)
                if _unchanged(root, path, entry):
                    item["log"] = _taken_log(target_dir, item)
                    undone.pop_all()
                    return item
        time.sleep(0.02 * attempt)
    raise _Skipped("it is being written to all the time")


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
        if old and blob_size(target_dir, old) == (had := old["bytes"]):
            with open(os.path.join(target_dir, old["blob"]), "r+b", opener=no_link) as copy:
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
        new = new_blob(target_dir, path, jsonl.chunks(source, 0, size))
        with open(os.path.join(target_dir, new["blob"]), "rb", opener=no_link) as copy:
            _not_begun_anew(source, copy, size)
        return new


def _not_begun_anew(log: BinaryIO, copy: BinaryIO, size: int) -> None:
    """What is committed stays as it is until SQLite begins the log anew, with another header."""
    if not wal.same(log, copy, size):
        raise _Skipped("its log was begun anew while it was copied")


def _taken_log(target_dir: str, item: Mapping[str, Any]) -> dict[str, Any] | None:
    """The log of a new copy, as far as SQLite takes it. Raises NotCopied when the copy is damaged."""
    with put_together(target_dir, item) as (_, frames):
        if (log := item["log"]) is None:
            return None
        with open(os.path.join(target_dir, log["blob"]), "rb", opener=no_link) as copy:
            size = wal.end_of(copy, frames)
        return {**log, "bytes": size} if size else None


def _sweep(target_dir: str, used: set[str]) -> None:
    with os.scandir(target_dir) as items:
        for item in items:
            with contextlib.suppress(OSError):
                if item.name not in used and time.time() - item.stat(follow_symlinks=False).st_mtime > _GARBAGE_AGE:
                    os.unlink(item.path)
