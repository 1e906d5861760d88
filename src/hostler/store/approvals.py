"""The queries about a program's questions: which are open, and the answers that other processes leave for them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from ..types.errors import HarnessError
from ..types.events import Answered, Approval
from . import journal, queries
from .journal import Fetch
from .schema import records, sessions, turns

_ABOUT = ('{"type":"approval"%', '{"type":"answered"%')  # how the journal writes them


@dataclass(frozen=True, slots=True)
class Question:
    """An Approval that is open. ``at``: when it was asked, seconds since the epoch; ``answered``: somebody has left an
    answer, which the turn has not been given yet."""

    session: str
    turn: str
    at: float
    approval: Approval
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """An answer that waits for whoever runs the turn."""

    id: str
    allow: bool
    reason: str | None = None
    answers: dict[str, list[str]] | None = None


def open_questions(conn: Connection, session: int | None = None, fetch: Fetch | None = None) -> list[Question]:
    """Of one session, or of all: what running turns have asked and nobody has answered, in order."""
    running = select(turns.c.id, turns.c.answers, sessions.c.key, sessions.c.id.label("session")).where(
        turns.c.session == sessions.c.id, turns.c.status == "running"
    )
    if session is not None:
        running = running.where(turns.c.session == session)
    found: list[Question] = []
    for turn in conn.execute(running.order_by(turns.c.position)).all():
        left = {given["id"] for given in turn.answers or ()}
        asked: dict[str, Question] = {}
        for row in conn.execute(
            select(records)
            .where(
                records.c.session == turn.session,
                records.c.turn == turn.id,
                records.c.event.like(_ABOUT[0]) | records.c.event.like(_ABOUT[1]),
            )
            .order_by(records.c.seq)
        ):
            event = journal.load_event(row.event, turn.key, fetch)
            if isinstance(event, Approval):
                asked[event.id] = Question(turn.key, turn.id, row.at, event, event.id in left)
            elif isinstance(event, Answered):
                asked.pop(event.id, None)
        found += asked.values()
    return found


def open_question(conn: Connection, session: int, id: str, fetch: Fetch | None = None) -> Question:
    """The one with this id. Raises HarnessError when it is not open, or was answered."""
    for question in open_questions(conn, session, fetch):
        if question.approval.id == id:
            if question.answered:
                raise HarnessError(f"The approval {id!r} of session {question.session!r} was answered already.")
            return question
    key = queries.get_session(conn, session).key
    raise HarnessError(f"Session {key!r} has no open approval {id!r}: it was answered, or its turn is over.")


def leave_answer(conn: Connection, session: int, answer: Left, *, always: bool = False) -> None:
    """Leave an answer for the turn that asked. Raises HarnessError when the question is not open, or was answered."""
    question = open_question(conn, session, answer.id)
    row = conn.execute(select(turns.c.answers).where(turns.c.id == question.turn)).one()
    given = {"id": answer.id, "allow": answer.allow, "reason": answer.reason, "answers": answer.answers}
    conn.execute(update(turns).where(turns.c.id == question.turn).values(answers=[*(row.answers or ()), given]))
    if always:
        remember(conn, session, question.approval, answer.allow)


def answers_left(conn: Connection, ids: list[str]) -> dict[str, list[Left]]:
    """By turn: the answers that were left for these turns."""
    rows = conn.execute(select(turns.c.id, turns.c.answers).where(turns.c.id.in_(ids), turns.c.answers.is_not(None)))
    return {row.id: [Left(**given) for given in row.answers] for row in rows}


# ---- answers for good ------------------------------------------------------------------------------------------------


def remember(conn: Connection, session: int, approval: Approval, allow: bool) -> None:
    """Answer every later question like this one in the same way. What is no yes or no is asked each time."""
    if approval.questions:
        return
    known = queries.get_session(conn, session).always
    conn.execute(update(sessions).where(sessions.c.id == session).values(always={**known, _kind(approval): allow}))


def remembered(conn: Connection, session: int, approval: Approval) -> bool | None:
    """The answer for good to a question like this one."""
    if approval.questions:
        return None
    answer = queries.get_session(conn, session).always.get(_kind(approval))
    return None if answer is None else bool(answer)


# What makes a question one of its own; the rest (a number, a reason, a description) differs each time it is asked.
_TELLING = ("command", "permissions", "server", "message")


def _kind(approval: Approval) -> str:
    """Which questions are alike: those for the same tool, of a shell command only those for the very same one."""
    given = approval.input if isinstance(approval.input, dict) else {}
    telling = {name: given[name] for name in _TELLING if name in given}
    return f"{approval.tool} {json.dumps(telling, sort_keys=True, default=repr)}"
