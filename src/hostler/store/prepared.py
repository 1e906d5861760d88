"""Statements that every turn runs: written with SQLAlchemy like all others, compiled once, given straight to the driver."""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Executable
from sqlalchemy.dialects import sqlite

# Of the store only this module and the end of `store.py` are for SQLite alone. Another driver has other marks for values
# (its dialect says which) and runs statements with a cursor.
_DIALECT = sqlite.dialect(paramstyle="qmark")

_Process = Callable[[Any], Any] | None


def driver_of(conn: Connection) -> sqlite3.Connection:
    """The driver's own connection."""
    driver: Any = conn.connection.driver_connection
    return driver  # type: ignore[no-any-return]


class Prepared:
    """A statement that takes SQLAlchemy ten times as long as the database. Values have the names of its bindparams;
    ``columns`` are those of an insert without any. Errors are the driver's own."""

    def __init__(self, statement: Executable, columns: Sequence[str] | None = None) -> None:
        self._statement: Any = statement
        self._columns = columns
        self._sql = ""
        self._binds: list[tuple[str, Any, _Process]] = []
        self._made: list[tuple[int, Callable[[Any], Any]]] = []
        self._row: Callable[[Sequence[Any]], Any] = tuple

    def run(self, conn: Connection, **values: Any) -> int:
        """How many rows it has changed."""
        return self._execute(conn, values).rowcount

    def first(self, conn: Connection, **values: Any) -> Any | None:
        """The first row it gives, with the columns as attributes."""
        rows = self.all(conn, **values)  # to the end: an update that returns rows is open until then
        return rows[0] if rows else None

    def all(self, conn: Connection, **values: Any) -> list[Any]:
        """The rows it gives, with the columns as attributes."""
        return [self._row(self._read(row)) for row in self._execute(conn, values).fetchall()]

    def many(self, conn: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run it with each of the rows, which hold what the driver takes in the order of the columns."""
        self._compile()
        driver_of(conn).executemany(self._sql, rows)

    def _execute(self, conn: Connection, values: dict[str, Any]) -> sqlite3.Cursor:
        self._compile()
        given = []
        for name, fixed, process in self._binds:
            value = values.get(name, fixed)
            given.append(value if process is None else process(value))
        return driver_of(conn).execute(self._sql, given)

    def _read(self, row: Sequence[Any]) -> Sequence[Any]:
        if not self._made:
            return row
        read = list(row)
        for index, process in self._made:
            read[index] = process(read[index])
        return read

    def _compile(self) -> None:
        if self._sql:
            return
        compiled = self._statement.compile(dialect=_DIALECT, column_keys=self._columns)
        binds = [(name, compiled.binds[name]) for name in compiled.positiontup]
        self._binds = [(name, bind.value, _native(bind.type).bind_processor(_DIALECT)) for name, bind in binds]
        columns = getattr(self._statement, "exported_columns", ())
        made = [(at, _native(column.type).result_processor(_DIALECT, None)) for at, column in enumerate(columns)]
        self._made = [(at, process) for at, process in made if process is not None]
        row: Any = namedtuple("Row", [column.key for column in columns])  # type: ignore[misc]
        self._row = row._make
        self._sql = str(compiled)  # last: another thread may look


def _native(type: Any) -> Any:
    return type.dialect_impl(_DIALECT)
