"""Who answers what a turn asks: the app's ``on_approval``, an answer that was given for good, or another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from .. import portal
from ..store import approvals
from ..store.approvals import Left
from ..store.journal import Fetch
from ..types.events import Approval
from ..types.questions import Answers, settled
from ..types.runtime import Answer

if TYPE_CHECKING:
    from ..running import Running
    from .live import Call, LiveSession

NOBODY_KNOWS = "The application has no answer to this; go on as you think best."
REFUSED = "The application said no."


def answer_of(approval: Approval, said: Any) -> Answer:
    """What ``on_approval`` gave, as the answer: a truth value; to questions the answers, where a bare yes answers none.
    Raises ValueError for answers that do not fit."""
    questions = approval.questions
    if not questions or said is False or said is None:
        return Answer(approval.id, bool(said), None if said else REFUSED)
    if said is True:
        return Answer(approval.id, False, NOBODY_KNOWS)
    return Answer(approval.id, True, None, settled(questions, True, said, what=f"The approval {approval.id!r}"))


def left_by(approval: Approval, allow: bool, reason: str | None, answers: Answers | None) -> Left:
    """An answer that somebody gives from outside. Raises ValueError when it is none to this question."""
    given = settled(approval.questions, allow, answers, what=f"The approval {approval.id!r}")
    return Left(approval.id, allow, reason, given)


def leave(
    conn: Connection,
    session: int,
    id: str,
    allow: bool,
    reason: str | None,
    answers: Answers | None,
    fetch: Fetch | None,
    *,
    always: bool,
) -> None:
    """Leave an answer for whoever runs the turn. Raises HarnessError when the question is not open, ValueError when that
    is no answer to it."""
    question = approvals.open_question(conn, session, id, fetch)
    approvals.leave_answer(conn, session, left_by(question.approval, allow, reason, answers), always=always)


def approver(live: LiveSession, running: Running, extra_body: Any, call: Call) -> Callable[[Approval], None]:
    """Puts a question to whoever this process knows that can answer it; it waits open when there is nobody."""
    callback = call.on_approval or live.options.on_approval

    async def ask(approval: Approval) -> None:
        known = await live.host.store.read(lambda conn: approvals.remembered(conn, live.id, approval))
        if known is not None:
            running.put(Answer(approval.id, known, "Answered for good before."))
            return
        if callback is None:
            return
        try:
            said = await portal.call_back(callback, replace(approval, extra_body=extra_body), loop=call.loop)
            answer = answer_of(approval, said)
        except Exception as error:
            answer = Answer(approval.id, False, f"The application's on_approval failed: {error!r}")
        running.put(answer)

    def spawn(approval: Approval) -> None:
        live.host.spawn(ask(approval))

    return spawn
