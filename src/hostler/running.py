"""A turn that runs in this process, as those outside of it see and reach it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from .program import Program
from .progress import Progress
from .store.journal import Journalled
from .types.events import Answered, Approval, Event, ModelCall
from .types.result import StopReason
from .types.runtime import Command


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants the turn to end; ``reason`` becomes its stop_reason."""

    reason: StopReason


@dataclass(slots=True)
class Running:
    """A turn that this process runs: how to speak to it from outside, and what it has given so far."""

    turn: str
    program: Program | None = None
    stop: StopReason | None = None
    events: list[Journalled] = field(default_factory=list)
    waiting: list[Command | Approval | Stop] = field(default_factory=list)
    approvals: dict[str, Approval] = field(default_factory=dict)
    questions: dict[str, asyncio.Future[Answered]] = field(
        default_factory=dict
    )  # of the host's own, not of the program
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    spoken: bool = False  # the program may have been given the prompt
    begun: int = 0  # the frame of the program's log in which it was
    told: asyncio.Event = field(default_factory=asyncio.Event)  # that is known
    may_call: asyncio.Event = field(default_factory=asyncio.Event)  # the program has said what comes before its model
    calls: list[ModelCall] = field(default_factory=list)  # those that are over, as the endpoint saw them
    over: bool = False  # for its program; what it left is still looked at and stored

    def put(self, command: Command | Approval | Stop) -> None:
        """Hand a command to the turn; kept when its program is not there yet."""
        if isinstance(command, Stop):
            self.stop = self.stop or command.reason
            self.stopping.set()
        if self.program is None:
            self.waiting.append(command)
        elif isinstance(command, Stop):
            self.program.put_first(command)  # type: ignore[arg-type]
        else:
            self.program.put(command)

    def reached(self, progress: Progress) -> None:
        """The turn has come so far, for those who see the program from another side."""
        self.begun = progress.begun
        if self.begun:
            self.told.set()
        (self.may_call.clear if progress.withheld else self.may_call.set)()

    def called(self, call: ModelCall) -> None:
        """A model call is over, as the endpoint saw it."""
        self.calls.append(call)

    @property
    def answered(self) -> int:
        """Model calls of the main agent that had their answer."""
        return sum(call.status == "ok" and not call.sub_agent for call in self.calls)

    async def ask(self, question: Approval) -> Answered:
        """Put a question of the host's own to whoever answers the program's; its id begins with HOST_ASKS. One that was
        answered is not asked again."""
        for event, _ in self.events:
            if isinstance(event, Answered) and event.id == question.id:
                return event
        waiting = self.questions.setdefault(question.id, asyncio.get_running_loop().create_future())
        if question.id not in self.approvals:
            self.put(question)
        return await asyncio.shield(waiting)

    def written(self, events: Sequence[Event]) -> None:
        """These are in the journal: questions are open from now on, answered ones no longer."""
        self.approvals |= {event.id: event for event in events if isinstance(event, Approval)}
        for event in events:
            if isinstance(event, Answered):
                self.settle(event)

    def settle(self, answered: Answered) -> None:
        """A question is no longer open."""
        self.approvals.pop(answered.id, None)
        if (waiting := self.questions.pop(answered.id, None)) is not None and not waiting.done():
            waiting.set_result(answered)

    def drop_questions(self) -> None:
        """The turn is over: nobody will answer the host's own questions."""
        for id in tuple(self.questions):
            self.settle(Answered(id, False, "The turn is over."))
