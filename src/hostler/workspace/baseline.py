"""The old contents of a workspace's text files, read in the background, so that changes can be shown as diffs."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Iterator

from ..types.errors import PathError
from .confined import Root
from .diffs import is_text
from .scan import Entry, Snapshot, entry_of

MAX_FILE = 256 << 10
_MAX_BYTES = 64 << 20
_MAX_FILES = 20_000
_SLICE = 0.005  # seconds of work between two pauses of the same length: the engine's thread wants to run as well
_SCHEMA = "create table if not exists base (path blob primary key, key text not null, data blob) without rowid"
_VERSION = 1


class Baseline:
    """Contents by path, each valid only for the exact stat record that it was read under.

    Kept in one SQLite file, without fsync: a damaged or foreign one is thrown away, and each content is packed by zlib,
    whose checksum finds damage inside. Whatever fails here costs diffs and nothing else. A file without text (binary,
    unreadable) is remembered as such. Bounded: the smallest files first, up to 20,000 of them and 64 MB.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()  # held for a query or for one batch, never while files are read
        self._wanted: tuple[Root, Snapshot] | None = None
        self._known: dict[str, Entry] = {}  # what was seen when all of it had been read
        self._thread: threading.Thread | None = None
        self._closed = False
        self._db: sqlite3.Connection | None = None  # only while it is used: a session at rest should cost little

    def old(self, path: str, entry: Entry) -> bytes | None:
        """The content of the file when its stat record was ``entry``, or None."""
        if not entry[1]:
            return b""
        with self._lock:
            if self._closed:
                return None
            try:
                row = (
                    self._opened().execute("select key, data from base where path = ?", (os.fsencode(path),)).fetchone()
                )
            except sqlite3.Error:
                return None
        if row is None or row[0] != _key(entry) or row[1] is None:
            return None
        try:
            data = zlib.decompress(row[1])
        except zlib.error:
            return None
        return data if len(data) == entry[1] else None

    def refresh(self, root: Root, snapshot: Snapshot) -> None:
        """Have what ``snapshot`` saw read in the background, as far as it is not known yet. Returns at once."""
        with self._lock:
            known = snapshot.entries is self._known or snapshot.entries == self._known
            if self._closed or (self._wanted is None and self._thread is None and known):
                return
            self._wanted = (root, snapshot)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="hostler-baseline", daemon=True)
                self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait until the background has nothing left to read; False when it still has."""
        if thread := self._thread:
            thread.join(timeout)
            return not thread.is_alive()
        return True

    def close(self) -> None:
        """Stop reading. Does not wait for more than one file."""
        self._closed = True
        self.wait(5.0)
        with self._lock:
            self._shut()

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = _open(self._path)
        return self._db

    def _shut(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    # ---- the background thread

    def _work(self) -> None:
        while True:
            with self._lock:
                wanted, self._wanted = self._wanted, None
                if wanted is None or self._closed:
                    self._shut()
                    self._thread = None
                    return
            try:
                self._fill(*wanted)
            except sqlite3.OperationalError:
                pass  # locked by another host, disk full: no diffs for what is missing
            except sqlite3.DatabaseError:
                with self._lock:
                    self._shut()
                    _discard(self._path)
                    self._known = {}

    def _fill(self, root: Root, snapshot: Snapshot) -> None:
        with self._lock:
            known = {os.fsdecode(path): key for path, key in self._opened().execute("select path, key from base")}
        chosen = dict(_chosen(snapshot))
        # By path: folders are read together, and the table is written from left to right.
        missing = sorted((path, entry) for path, entry in chosen.items() if known.get(path) != _key(entry))
        with self._lock, self._opened() as db:
            gone = ((os.fsencode(path),) for path in known if path not in chosen)
            db.executemany("delete from base where path = ?", gone)
        rows: list[tuple[bytes, str, bytes | None]] = []
        started = time.monotonic()
        for path, entry in missing:
            if self._closed or self._wanted is not None:
                self._put(rows)
                return
            with contextlib.suppress(Changed):
                data = read_as(root, path, entry)
                rows.append((os.fsencode(path), _key(entry), None if data is None else zlib.compress(data, 1)))
            if time.monotonic() - started > _SLICE:
                self._put(rows)
                rows = []
                time.sleep(_SLICE)
                started = time.monotonic()
        self._put(rows)
        self._known = snapshot.entries

    def _put(self, rows: list[tuple[bytes, str, bytes | None]]) -> None:
        with self._lock, self._opened() as db:
            db.executemany("insert or replace into base values (?, ?, ?)", rows)


class Changed(Exception):
    """The file is not what the scan saw any more."""


def read_as(root: Root, path: str, entry: Entry) -> bytes | None:
    """The content of a file as it was when ``entry`` was seen; None when it is not readable text. Raises Changed."""
    try:
        with root.open_read(path) as file:
            before = entry_of(os.fstat(file.fileno()))
            data = file.read(MAX_FILE + 1)
            after = entry_of(os.fstat(file.fileno()))
    except PermissionError:
        return None
    except (OSError, PathError):
        raise Changed(path) from None
    if not before == after == entry:
        raise Changed(path)
    return data if len(data) == entry[1] and is_text(data) else None


def _chosen(snapshot: Snapshot) -> Iterator[tuple[str, Entry]]:
    """The files worth keeping: the smallest first, so that as many as possible fit."""
    files = [item for item in snapshot.entries.items() if stat.S_ISREG(item[1][0]) and 0 < item[1][1] <= MAX_FILE]
    files.sort(key=lambda item: item[1][1])
    total = 0
    for path, entry in files[:_MAX_FILES]:
        total += entry[1]
        if total > _MAX_BYTES:
            return
        yield path, entry


def _key(entry: Entry) -> str:
    return " ".join(map(str, entry))


def _open(path: str) -> sqlite3.Connection:
    """The database at ``path``, anew when it is damaged. Raises OperationalError when it cannot be used."""
    try:
        return _connect(path)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        _discard(path)
        return _connect(path)


def _discard(path: str) -> None:
    for name in (path, path + "-journal"):
        with contextlib.suppress(OSError):
            os.unlink(name)


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=1.0, check_same_thread=False)
    try:
        db.execute("pragma synchronous=off")
        if db.execute("pragma user_version").fetchone()[0] != _VERSION:
            db.executescript(f"drop table if exists base; {_SCHEMA}; pragma user_version={_VERSION};")
        db.execute("select path, key, data from base limit 1")
    except BaseException:
        db.close()
        raise
    return db
