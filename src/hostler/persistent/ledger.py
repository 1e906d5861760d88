"""What a session knows of one persistent dir, in one SQLite file that a crash leaves whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .comparison import Row, Version

KEPT_FILE = 1 << 20  # bytes of a file whose common state is kept, for diffs and merges
_KEPT = 64 << 20  # bytes, packed, of all of them
_SCHEMA = """
create table files(path text primary key, base text, theirs text, version text, entry text) without rowid;
create table contents(path text primary key, sha256 text not null, data blob not null);
create table attempts(path text not null, version text);
create table meta(name text primary key, value text not null) without rowid;
pragma user_version=1;
"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A commit that was begun: what is to be stored under ``key``, with the contents frozen. As long as it is here,
    nobody knows whether it was stored."""

    key: str
    changes: Mapping[str, Version | None]


class Ledger:
    """The table of a dir's files and what goes with it. Each method that writes is one transaction, on the disk when it
    returns; all of them block, and raise sqlite3.Error where the file cannot be used."""

    def __init__(self, path: str) -> None:
        self._path = path

    def open(self) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        self._db = sqlite3.connect(self._path, timeout=10.0, check_same_thread=False)
        self._db.isolation_level = None  # transactions are begun below
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=full")
        if not self._db.execute("pragma user_version").fetchone()[0]:
            self._db.executescript(f"begin immediate; {_SCHEMA} commit;")

    def close(self) -> None:
        self._db.close()

    # ---- reading

    def rows(self) -> dict[str, Row]:
        """All files, as they were seen last."""
        rows = {}
        for path, base, theirs, version, entry in self._db.execute("select * from files"):
            known = _version(base)
            numbers: Any = tuple(map(int, entry.split())) if entry else None
            rows[path] = Row(known, known if theirs == base else _version(theirs), version, numbers)
        return rows

    def attempts(self) -> dict[str, set[Version | None]]:
        """What earlier commits tried to store, of which nobody knows whether it was: if it is there, it is ours."""
        found: dict[str, set[Version | None]] = {}
        for path, version in self._db.execute("select path, version from attempts"):
            found.setdefault(path, set()).add(_version(version))
        return found

    def content(self, path: str, version: Version | None) -> bytes | None:
        """The content of a file's common state; None when it is not kept."""
        row = self._db.execute("select data from contents where path = ?", (path,)).fetchone()
        if row is None or version is None:
            return None
        with contextlib.suppress(zlib.error):
            data = zlib.decompress(row[0])
            if hashlib.sha256(data).hexdigest() == version.sha256:
                return data
        return None

    def get(self, name: str, default: Any = None) -> Any:
        row = self._db.execute("select value from meta where name = ?", (name,)).fetchone()
        return default if row is None else json.loads(row[0])

    def pending(self) -> Pending | None:
        found = self.get("pending")
        return found and Pending(found["key"], {path: _version(text) for path, text in found["changes"].items()})

    # ---- writing

    def set(self, name: str, value: Any) -> None:
        with self._transaction():
            self._set(name, value)

    def begin(self, pending: Pending) -> None:
        """Write ahead what is about to be stored."""
        changes = {path: _text(version) for path, version in pending.changes.items()}
        self.set("pending", {"key": pending.key, "changes": changes})

    def update(
        self,
        rows: Mapping[str, Row],
        contents: Mapping[str, bytes] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Put rows in; one without base and theirs is forgotten. Contents are kept as far as there is room."""
        with self._transaction():
            self._put(rows)
            self._keep(contents or {})
            for name, value in (meta or {}).items():
                self._set(name, value)

    def settle(
        self,
        stored: Mapping[str, Row] | None = None,
        contents: Mapping[str, bytes] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """The pending commit is over. What it has not ``stored`` for certain counts as tried."""
        pending = self.pending()
        with self._transaction():
            self._put(stored or {})
            self._keep(contents or {})
            for path, version in (pending.changes if pending else {}).items():
                if path in (stored or {}):
                    self._db.execute("delete from attempts where path = ?", (path,))
                else:
                    self._db.execute("insert into attempts values (?, ?)", (path, _text(version)))
            self._db.execute("delete from meta where name = 'pending'")
            for name, value in {"commits": self.get("commits", 0) + 1, **(meta or {})}.items():
                self._set(name, value)

    def forget(self) -> None:
        """Begin anew: nothing is checked out."""
        with self._transaction():
            for table in ("files", "contents", "meta"):
                self._db.execute(
                    f"delete from {table} where true" + (" and name = 'cursor'" if table == "meta" else "")
                )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    def _put(self, rows: Mapping[str, Row]) -> None:
        gone = [(path,) for path, row in rows.items() if row.base is None and row.theirs is None]
        self._db.executemany("delete from files where path = ?", gone)
        self._db.executemany("delete from contents where path = ?", gone)
        self._db.executemany(
            "insert or replace into files values (?, ?, ?, ?, ?)",
            [
                (path, _text(row.base), _text(row.theirs), row.version, row.entry and " ".join(map(str, row.entry)))
                for path, row in rows.items()
                if row.base is not None or row.theirs is not None
            ],
        )

    def _keep(self, contents: Mapping[str, bytes]) -> None:
        small = {path: data for path, data in contents.items() if len(data) <= KEPT_FILE}
        if not small:
            return
        self._db.executemany("delete from contents where path = ?", [(path,) for path in small])
        room = _KEPT - (self._db.execute("select coalesce(sum(length(data)), 0) from contents").fetchone()[0])
        for path, data in small.items():
            packed = zlib.compress(data, 1)
            room -= len(packed)
            if room < 0:
                break
            sha256 = hashlib.sha256(data).hexdigest()
            self._db.execute("insert or replace into contents values (?, ?, ?)", (path, sha256, packed))

    def _set(self, name: str, value: Any) -> None:
        self._db.execute("insert or replace into meta values (?, ?)", (name, json.dumps(value)))


def _text(version: Version | None) -> str | None:
    return None if version is None else f"{version.sha256}{'+x' if version.executable else ''}"


def _version(text: str | None) -> Version | None:
    return None if text is None else Version(text.removesuffix("+x"), text.endswith("+x"))
