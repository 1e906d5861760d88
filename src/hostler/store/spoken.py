"""The queries about transcripts: what a session's conversation holds, and which files of messages were put into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select

from .prepared import Prepared
from .schema import attached, spoken


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one turn added to the conversation. ``first`` is the number of the turn's first record."""

    first: int
    entries: list[Any]
    at: str | None
    sure: bool


def spoken_of(conn: Connection, session: int) -> list[Spoken]:
    """What the session's conversation holds, turn by turn."""
    rows = conn.execute(select(spoken).where(spoken.c.session == session).order_by(spoken.c.first))
    return [Spoken(row.first, row.entries, row.at, row.sure) for row in rows]


_NOTED = select(spoken.c.first).where(spoken.c.session == bindparam("s"), spoken.c.first == bindparam("f"))
_COLUMNS = {"session": "s", "first": "f", "entries": "e", "at": "a", "sure": "k"}
_NOTE = Prepared(
    insert(spoken).from_select(
        list(_COLUMNS),
        select(*(bindparam(key, type_=spoken.c[name].type) for name, key in _COLUMNS.items())).where(~_NOTED.exists()),
    )
)


def note(
    conn: Connection,
    session: int,
    first: int,
    entries: list[Any] | None,
    at: str | None = None,
    *,
    since: int | None = None,
) -> None:
    """Note what the turn with this first record added; None: nobody knows what the conversation holds from it on, and a
    turn of which that was noted before stays so. With ``since``, what turns noted from that number on is in it no more."""
    if since is not None:
        gone = spoken.c.session == session, spoken.c.first >= since, spoken.c.first != first
        conn.execute(delete(spoken).where(*gone))
    _NOTE.run(conn, s=session, f=first, e=entries or [], a=at, k=entries is not None)


def copy(conn: Connection, source: int, target: int) -> None:
    """A new session begins with what another one's conversation holds, numbered before its own first record."""
    rows = conn.execute(select(spoken).where(spoken.c.session == source).order_by(spoken.c.first)).all()
    for number, row in enumerate(rows, -len(rows)):
        conn.execute(insert(spoken), {**row._mapping, "session": target, "first": number})
    for row in conn.execute(select(attached).where(attached.c.session == source)).all():
        conn.execute(insert(attached), {**row._mapping, "session": target})


def attached_in(conn: Connection, session: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """The files of messages in the workspace: path to a digest of what was given, and to the file."""
    rows = conn.execute(select(attached).where(attached.c.session == session))
    return {row.path: (row.content, row.file) for row in rows}


def attach(conn: Connection, session: int, path: str, content: str, file: Mapping[str, Any]) -> None:
    """Note that a file of a message was put there."""
    conn.execute(delete(attached).where(attached.c.session == session, attached.c.path == path))
    conn.execute(insert(attached), {"session": session, "path": path, "content": content, "file": dict(file)})
