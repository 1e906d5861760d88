"""The saved copies: files of a folder of the session, which a manifest counts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..confined import Root
from ..scan import entry_of
from . import jsonl, sqlite, wal

Manifest = dict[str, Any]
"""JSON: ``files`` (path below home, bytes, kind, mode, how it was copied, and of a database the ``log`` that belongs to the
copy) and ``skipped`` (why something was not)."""

MAX_BYTES = 1 << 30  # of all files of a conversation


def new_blob(target_dir: str, path: str, content: Iterable[bytes]) -> dict[str, Any]:
    """A new file with the content, on the disk when this returns; the part of a manifest that says where it is."""
    blob = f"{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.{secrets.token_hex(4)}"
    target = os.path.join(target_dir, blob)
    with open(target, "xb", opener=private) as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    _sync(target_dir)
    return {"bytes": size, "blob": blob}


def is_sound_copy(target_dir: str, item: Mapping[str, Any]) -> bool:
    if not is_there(target_dir, item):
        return False
    if item["kind"] == "file":
        return True
    if item["kind"] == "sqlite":
        with contextlib.suppress(sqlite.NotCopied), saved(target_dir, item):
            return True
        return False
    with open(os.path.join(target_dir, item["blob"]), "rb", opener=no_link) as copy:
        return jsonl.is_sound(copy, 0, item["bytes"])


@contextlib.contextmanager
def saved(target_dir: str, item: Mapping[str, Any]) -> Iterator[Iterator[bytes]]:
    """What the manifest counts of a copy, a database with its log. Raises NotCopied when that is not whole."""
    if item["kind"] != "sqlite":
        with open(os.path.join(target_dir, item["blob"]), "rb", opener=no_link) as copy:
            yield jsonl.chunks(copy, 0, item["bytes"])
        return
    with put_together(target_dir, item) as (whole, frames), open(whole, "rb") as copy:
        if (log := item.get("log")) is not None:
            with open(os.path.join(target_dir, log["blob"]), "rb", opener=no_link) as file:
                if wal.end_of(file, frames) != log["bytes"]:
                    raise sqlite.NotCopied("its log is damaged")
        yield jsonl.chunks(copy, 0, os.fstat(copy.fileno()).st_size)


@contextlib.contextmanager
def put_together(target_dir: str, item: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The saved database with its log in it, for a while, and how many frames of the log were good. Raises NotCopied."""
    with tempfile.TemporaryDirectory(prefix="hostler-") as folder:
        whole = os.path.join(folder, "copy")
        for part, name in zip(parts(item), (whole, whole + "-wal"), strict=False):
            with (
                open(os.path.join(target_dir, part["blob"]), "rb", opener=no_link) as copy,
                open(name, "xb", opener=private) as file,
            ):
                file.writelines(jsonl.chunks(copy, 0, part["bytes"]))
        yield whole, sqlite.bring_in_log(whole)


def parts(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a copy consists of: a blob, and of a database perhaps another one with its log."""
    return [part for part in (item, item.get("log")) if part]


def size_of(item: Mapping[str, Any]) -> int:
    return sum(part["bytes"] for part in parts(item))


def is_there(target_dir: str, item: Mapping[str, Any]) -> bool:
    return all(blob_size(target_dir, part) >= part["bytes"] for part in parts(item))


def drop(target_dir: str, item: Mapping[str, Any]) -> None:
    for part in parts(item):
        if "blob" in part:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(target_dir, part["blob"]))


def blob_size(target_dir: str, item: Mapping[str, Any]) -> int:
    if os.path.basename(item["blob"]) != item["blob"]:
        return -1
    try:
        info = os.lstat(os.path.join(target_dir, item["blob"]))
    except OSError:
        return -1
    return info.st_size if stat.S_ISREG(info.st_mode) else -1


def private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def state_of(root: Root, path: str, info: os.stat_result) -> list[int]:
    """What a database and its log have in no other state."""
    seen = [info.st_dev, *entry_of(info)]
    with contextlib.suppress(FileNotFoundError):
        seen += entry_of(root.lstat(path + "-wal"))
    return seen
