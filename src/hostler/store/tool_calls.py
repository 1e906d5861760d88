"""The queries about calls of the app's tools: which have begun, and how they ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select, update

from ..types.tools import ToolAnswer, ToolCallAsked
from . import queries
from .queries import IsDead, Lease
from .schema import tool_calls


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that has begun before: under which host, whether that lives, and its answer if it has ended."""

    host: str
    alive: bool
    answer: ToolAnswer | None


def begin(conn: Connection, lease: Lease, call: ToolCallAsked, is_dead: IsDead) -> Begun | None:
    """Note that a call begins. None: it is the caller's to run; else it has begun before."""
    queries.held(conn, lease)
    if (before := find(conn, lease.session, call.key, is_dead)) is not None:
        return before
    conn.execute(
        insert(tool_calls).values(
            session=lease.session, key=call.key, turn=call.turn, tool=call.tool, host=lease.holder
        )
    )
    return None


def find(conn: Connection, session: int, key: str, is_dead: IsDead) -> Begun | None:
    """A call that has begun."""
    row = conn.execute(select(tool_calls).where(tool_calls.c.session == session, tool_calls.c.key == key)).first()
    if row is None:
        return None
    alive = not queries.is_gone(conn, row.host, is_dead)
    return Begun(row.host, alive, ToolAnswer(**row.outcome) if row.outcome is not None else None)


def finish(conn: Connection, session: int, host: str, key: str, answer: ToolAnswer) -> None:
    """Note the answer of a call that this host has run. The session may be another host's by now, the call is not."""
    mine = (tool_calls.c.session == session, tool_calls.c.key == key, tool_calls.c.host == host)
    conn.execute(update(tool_calls).where(*mine).values(outcome=asdict(answer)))


def forget(conn: Connection, session: int, turn: str) -> None:
    """The turn is over: none of its calls can come again."""
    conn.execute(delete(tool_calls).where(tool_calls.c.session == session, tool_calls.c.turn == turn))
