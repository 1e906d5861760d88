"""The queries that take things out of the journal again; numbers, times, kinds and outcomes always stay."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from . import inbox
from .schema import records, turns

# What an erased record has instead of what was said and done.
_ERASED: dict[str, dict[str, Any]] = {
    "accepted": {"extra_body": None, "preview": ""},
    "text": {"delta": ""},
    "reasoning": {"delta": ""},
    "tool_call": {"input": None},
    "tool_result": {"output": ""},
    "approval": {"input": None, "extra_body": None},
    "answered": {"reason": None},
    "file_change": {"diff": None},
    "file_staged": {"metadata": None},
}
_PAGE = 1000


def erase(conn: Connection, session: int, turn: str) -> None:
    """Take what was said and done in a finished turn out of its records."""
    after = 0
    change = (
        update(records)
        .where(records.c.session == session, records.c.seq == bindparam("at_seq"))
        .values(event=bindparam("text"))
    )
    while rows := conn.execute(
        select(records.c.seq, records.c.event)
        .where(records.c.session == session, records.c.turn == turn, records.c.seq > after)
        .order_by(records.c.seq)
        .limit(_PAGE)
    ).all():
        changed = []
        for row in rows:
            data = json.loads(row.event)
            if (empty := _ERASED.get(data["type"])) is not None:
                changed.append({"at_seq": row.seq, "text": json.dumps({**data, **empty}, separators=(",", ":"))})
            elif data["type"] == "done":
                data["result"]["files"] = [{**file, "diff": None} for file in data["result"]["files"]]
                changed.append({"at_seq": row.seq, "text": json.dumps(data, separators=(",", ":"))})
                conn.execute(update(turns).where(turns.c.id == turn).values(result=data["result"]))
        if changed:
            conn.execute(change, changed)
        after = rows[-1].seq


def last_extra_body(conn: Connection, session: int) -> Any:
    """The app's context of the session's last turn; None when it was forgotten, or there is none."""
    last = select(turns.c.input).where(turns.c.session == session).order_by(turns.c.position.desc()).limit(1)
    return (conn.execute(last).scalar() or {}).get("extra_body")


def forget_input(conn: Connection, turn: str, input: dict[str, Any]) -> None:
    """Keep of a finished turn's input only what tells it from another."""
    conn.execute(update(turns).where(turns.c.id == turn).values(input=inbox.digest(input)))
