"""A consistent copy of a SQLite database that somebody else owns."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from urllib.parse import quote

from ..confined import Root
from ..scan import Entry, entry_of
from .jsonl import chunks

_MAGIC = b"SQLite format 3\0"
_TRIES = 5
_PATIENCE = 10.0


class NotCopied(Exception):
    """The message says why."""


def copy(root: Root, path: str, target: str) -> None:
    """Copy the database at ``path``, its write-ahead log included, into the new file ``target``. Raises NotCopied.

    SQLite itself never opens the original: it would follow links, and a rollback journal made by somebody with bad
    intentions can have any file deleted. So the files are copied until they did not change meanwhile, and the log is
    brought in on the copy.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(_remove, target, target + "-wal", target + "-shm")
        _copy_settled(root, path, target)
        bring_in_log(target)
        stack.pop_all()
    _remove(target + "-wal", target + "-shm")


def change(root: Root, path: str, statement: str, values: Mapping[str, str]) -> None:
    """Run a statement on a copy of the database at ``path`` and put that in its place. Raises NotCopied."""
    with tempfile.TemporaryDirectory(prefix="hostler-") as folder:
        changed = os.path.join(folder, "copy")
        copy(root, path, changed)
        try:
            with contextlib.closing(sqlite3.connect(changed, isolation_level=None)) as db:
                deadline = time.monotonic() + _PATIENCE
                db.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
                db.execute("pragma trusted_schema=off")
                db.execute(statement, values)
                db.execute("pragma wal_checkpoint(truncate)")
        except sqlite3.Error as error:
            raise NotCopied(f"SQLite says: {error}") from None
        with open(changed, "rb") as file:
            root.write(path, chunks(file, 0, os.fstat(file.fileno()).st_size))
    for companion in companions(path):
        with contextlib.suppress(FileNotFoundError):
            root.remove(companion)


def rows(path: str) -> int:
    """How many rows the tables of a database of ours have: what tells an older state of it, whatever its dates say.
    Those that need a module that is not here do not count."""
    total = 0
    with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?immutable=1", uri=True)) as db:
        deadline = time.monotonic() + _PATIENCE
        db.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        db.execute("pragma trusted_schema=off")
        for (name,) in db.execute("select name from sqlite_master where type = 'table'").fetchall():
            with contextlib.suppress(sqlite3.Error):
                total += db.execute('select count(*) from "{}"'.format(name.replace('"', '""'))).fetchone()[0]
    return total


def bring_in_log(target: str) -> int:
    """Bring the write-ahead log of a database of ours into it and look whether it is sound; gives how many frames of
    the log were good. Raises NotCopied."""
    with open(target, "rb") as file:
        if file.read(16) != _MAGIC:
            raise NotCopied("it is not a SQLite database")
    try:
        with contextlib.closing(sqlite3.connect(target, timeout=1.0)) as db:
            deadline = time.monotonic() + _PATIENCE  # the schema may hold expressions that take for ever
            db.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
            db.execute("pragma trusted_schema=off")
            _, frames, _ = db.execute("pragma wal_checkpoint(passive)").fetchone()
            db.execute("pragma wal_checkpoint(truncate)")
            if db.execute("pragma quick_check(1)").fetchone()[0] != "ok":
                raise NotCopied("it is damaged")
    except sqlite3.Error as error:
        raise NotCopied(f"SQLite says: {error}") from None
    return int(frames)


def in_transaction(root: Root, path: str) -> bool:
    """Whether what would undo a transaction lies beside the database: its file may hold half of it."""
    with contextlib.suppress(FileNotFoundError):
        return any(root.read(path + "-journal", 8))
    return False


def companions(path: str) -> tuple[str, ...]:
    """The files that must go when the database is replaced: they belong to the old one."""
    return tuple(path + extra for extra in ("-wal", "-shm", "-journal"))


def _copy_settled(root: Root, path: str, target: str) -> None:
    for attempt in range(_TRIES):
        seen = _entries(root, path)
        if in_transaction(root, path):
            raise NotCopied("it is in the middle of a transaction")
        with contextlib.suppress(EOFError, FileNotFoundError):
            _copy_file(root, path, target)
            if seen[1] is not None:
                _copy_file(root, path + "-wal", target + "-wal")
            if _entries(root, path) == seen:
                return
        time.sleep(0.02 * (attempt + 1))
    raise NotCopied("it is being written to all the time")


def _entries(root: Root, path: str) -> list[Entry | None]:
    found: list[Entry | None] = []
    for name in (path, path + "-wal", path + "-journal"):
        try:
            found.append(entry_of(root.lstat(name)))
        except FileNotFoundError:
            found.append(None)
    return found


def _copy_file(root: Root, path: str, target: str) -> None:
    with root.open_read(path) as source, open(target, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        for chunk in chunks(source, 0, os.fstat(source.fileno()).st_size):
            file.write(chunk)


def _remove(*paths: str) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
