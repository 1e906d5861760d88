"""run_turn: the only pipeline. Prompt, items, events, journal, done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from .answer import refusal, settle
from .output import Output
from .program import Gone, Program
from .progress import HOST_ASKS as HOST_ASKS
from .progress import Again, Progress, advance, exit_error, text_of
from .store.journal import Journalled
from .telemetry.redaction import Masker
from .types.events import (
    Answered,
    Approval,
    CancelRequested,
    Event,
    FileChange,
    ModelCall,
    Notice,
    Record,
)
from .types.result import ErrorInfo, Result, StopReason, Usage
from .types.runtime import Answer, Codec, Command, Ended, Frame, Interrupt, Prompt, Send

_GRACE = 2.0  # s that a program has to end an interrupted turn by itself
_FRAME = 16  # bytes that a frame takes beside its data
_UNREAD = 1 << 18  # bytes of the program's log that may wait to be stored or acknowledged


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants the turn to end; ``reason`` becomes its stop_reason."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the turn may use. Durations in seconds, costs in US dollars."""

    timeout: float | None = None
    max_turns: int | None = None
    max_cost: float | None = None
    approval_ttl: float = 600.0
    start_timeout: float = 60.0  # how long a program just started may say nothing
    required: frozenset[str] = frozenset()  # MCP servers without which there is no turn


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
    answered: int = 0  # model calls of the main agent

    def put(self, command: Command | Approval | Stop) -> None:
        """Hand a command to the turn; kept when its program is not there yet."""
        if isinstance(command, Stop):
            self.stop = self.stop or command.reason
            self.stopping.set()
        if self.program is None:
            self.waiting.append(command)
        else:
            self.program.put(command)  # type: ignore[arg-type]

    def reached(self, progress: Progress) -> None:
        """The turn has come so far, for those who see the program from another side."""
        self.begun = progress.begun
        if self.begun:
            self.told.set()
        (self.may_call.clear if progress.withheld else self.may_call.set)()

    def called(self, call: ModelCall) -> None:
        """A model call is over, as the endpoint saw it."""
        self.answered += call.status == "ok" and not call.sub_agent

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

    def settle(self, answered: Answered) -> None:
        """A question is no longer open."""
        self.approvals.pop(answered.id, None)
        if (waiting := self.questions.pop(answered.id, None)) is not None and not waiting.done():
            waiting.set_result(answered)

    def drop_questions(self) -> None:
        """The turn is over: nobody will answer the host's own questions."""
        for id in tuple(self.questions):
            self.settle(Answered(id, False, "The turn is over."))

    @property
    def cost(self) -> float | None:
        """Cost of the model calls so far; None when one has no known price."""
        return cost_of([e for e, _ in self.events if isinstance(e, ModelCall)])


@dataclass(frozen=True, slots=True)
class Journal:
    """Where the turn's steps go: `append` commits one, `publish` shows the committed records."""

    append: Callable[[Sequence[Journalled], Progress, str | None], Awaitable[list[Record]]]
    publish: Callable[[list[Record]], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended. ``events`` are its last ones: they are committed together with its `Done`, so that a crash
    before that finds the turn open and its end still in the keeper's log. ``leftover`` came after the end. Without
    ``progress`` the turn never came to its program, and whatever that is stays as it is."""

    ended: Ended
    progress: Progress | None = None
    native_id: str | None = None
    program_alive: bool = False
    events: tuple[Journalled, ...] = ()
    leftover: tuple[Any, ...] = ()


async def run_turn(
    running: Running,
    first: Sequence[Event],
    program: Program,
    progress: Progress,
    codec: Codec,
    prompt: Prompt,
    bounds: Bounds,
    journal: Journal,
    masker: Masker,
    on_approval: Callable[[Approval], None] | None,
    output: Output | None = None,
) -> Outcome:
    """Give the prompt to the program and journal all that comes of it, behind ``first``, until the turn is over.

    A turn whose prompt the program was already given (``progress.turn``) is carried on from the last stored frame.
    """
    await program.open_turn()
    timers = _Timers()
    native_id: str | None = None
    unread = 0
    head: list[Journalled] = [(event, None) for event in first]
    owed: list[Send] = []
    missing: frozenset[str] = frozenset()
    kept = (ModelCall, Notice) if progress.frame == 0 else (ModelCall,)  # one just started speaks of this turn
    running.program = program
    masker.resume(progress.masking)
    if progress.turn != prompt.turn:
        # What an idle program said belongs to no turn, but the codec has to know it before it is spoken to.
        for item in program.ready():
            if isinstance(item, Gone):
                program.put(item)  # type: ignore[arg-type]
            else:
                step = advance(codec, progress, item)
                progress, native_id = step.progress, step.native_id or native_id
                head += [(event, None) for event, _ in step.events if isinstance(event, kept)]
                missing |= step.missing
                owed += step.sends  # it may have asked something, and wait
        items: list[Any] = [prompt]
    else:
        items = []
        running.reached(progress)
    items += running.waiting
    running.waiting = []
    timers.after(bounds.timeout, lambda: running.put(Stop("timeout")))

    def give_up() -> None:
        program.put(_GIVE_UP)

    def unheard() -> None:
        program.put(_UNHEARD)

    def ask(approval: Approval) -> None:
        timers.after(bounds.approval_ttl, _deny_later(running, approval.id, bounds.approval_ttl))
        if on_approval is not None:
            on_approval(approval)

    # What a host before us left open: nobody else waits for it any more.
    for approval in tuple(running.approvals.values()):
        ask(approval)
    if progress.stop is not None:
        timers.after(_GRACE, give_up)
    heard = progress.frame > 0
    if not heard:
        timers.after(bounds.start_timeout, unheard)
    try:
        while True:
            batch, items = items or await program.items(), []
            events, head = head, []
            sends, owed = owed, []
            named: str | None = None
            end: Ended | None = None
            for index, item in enumerate(batch):
                if isinstance(item, Gone):
                    end = Ended("error", error=_gone(item, progress))
                elif isinstance(item, Stop):
                    if progress.stop is None:
                        progress = replace(progress, stop=item.reason)
                        events.append((CancelRequested(item.reason), None))
                        timers.after(_GRACE, give_up)
                        items.append(Interrupt())
                    continue
                elif item is _GIVE_UP:
                    end = _GAVE_UP
                elif isinstance(item, Answer) and running.approvals.pop(item.id, None) is None:
                    continue  # somebody was quicker
                elif item is _UNHEARD:
                    end = None if heard else Ended("error", error=_silent(progress, bounds.start_timeout))
                else:
                    heard = heard or (isinstance(item, Frame) and item.kind == "out")
                    step = advance(codec, progress, item)
                    progress, named = step.progress, step.native_id or named
                    if isinstance(item, Frame):
                        unread += len(item.data) + _FRAME
                    events += step.events
                    sends += step.sends
                    end = step.end
                    if isinstance(item, Answer):
                        events.append(
                            (
                                Answered(
                                    item.id, item.allow, item.reason, dict(item.answers) if item.answers else None
                                ),
                                None,
                            )
                        )
                    missing |= step.missing
                    if bounds.required & missing:
                        end = Ended("error", error=_required(bounds.required & missing))
                    if step.unfit is not None:
                        end = Ended("error", error=ErrorInfo("state_incompatible", step.unfit))
                if end is not None:
                    leftover = tuple(batch[index + 1 :])
                    break
            events = [shown for event, parent in events for shown in masker.events(event, parent)]
            if end is not None:
                events += masker.rest()
            progress = replace(progress, masking=masker.carry())
            running.events += events
            if end is not None and output is not None:
                stop = running.stop or _exceeded(running, progress, bounds)
                end, wrong = await settle(output, end, running.events, stop=stop, last=progress.asked_again)
                if wrong is not None:
                    # What follows the end in the log is read after this: a crash finds both or neither in the store.
                    step = advance(codec, progress, Again(output.again(wrong), prompt.schema))
                    progress, named, end = step.progress, step.native_id or named, step.end
                    refused = [(masker.mask(event), None) for event in refusal(running.events, wrong)]
                    events += refused
                    running.events += refused
                    sends += step.sends
                    items = [*leftover]
                elif stop is not None and end.stop_reason == "interrupted":
                    progress = replace(progress, stop=progress.stop or stop)
            native_id = named or native_id
            if end is not None:
                return await _over(program, progress, native_id, end, tuple(events), leftover)
            # A frame that gave nothing to tell or to say is stored with a later one; after a crash it is read again.
            if events or sends or named or unread >= _UNREAD:
                records = await journal.append(events, progress, named)
                asked = [event for event, _ in events if isinstance(event, Approval)]
                running.approvals |= {approval.id: approval for approval in asked}
                for event, _ in events:
                    if isinstance(event, Answered):
                        running.settle(event)
                journal.publish(records)
                running.reached(progress)
                await program.send(sends)
                for approval in asked:
                    ask(approval)
            else:
                running.reached(progress)
            if unread >= _UNREAD:
                await program.read_up_to(progress.frame)
                unread = 0
            if (reason := _exceeded(running, progress, bounds)) is not None:
                running.put(Stop(reason))
    finally:
        timers.cancel()
        running.program = None


_REASONS: dict[str, StopReason] = {r: r for r in get_args(StopReason)}
_GIVE_UP: Any = object()
_UNHEARD: Any = object()
_NOT_GONE_ON_WITH = ("state_incompatible", "program_silent", "mcp_server_failed")  # errors that end the program, too
_GAVE_UP = Ended("interrupted")


async def _over(
    program: Program,
    progress: Progress,
    native_id: str | None,
    end: Ended,
    events: tuple[Journalled, ...],
    leftover: tuple[Any, ...],
) -> Outcome:
    """End what the turn may leave behind, by how it ended."""
    alive = program.gone is None and progress.exited is None
    if progress.stop is not None and end.stop_reason != "done":
        if alive and end is not _GAVE_UP:
            await program.sweep_turn()  # it ended by itself; its tools' processes may not have
        elif alive:
            await program.kill()
            alive = False
        end = replace(end, stop_reason=_REASONS.get(progress.stop, "cancelled"), error=None)
    elif alive and end.error is not None and end.error.code in _NOT_GONE_ON_WITH:
        await program.kill()
        alive = False
    return Outcome(end, replace(progress, turn=None, stop=None), native_id, alive, events, leftover)


def _exceeded(running: Running, progress: Progress, bounds: Bounds) -> StopReason | None:
    if progress.stop is not None or running.stop is not None:
        return None
    if bounds.max_turns is not None and progress.steps > bounds.max_turns:
        return "max_turns"
    if bounds.max_cost is not None and (cost := running.cost) is not None and cost >= bounds.max_cost:
        return "max_cost"
    return None


def _deny_later(running: Running, id: str, ttl: float) -> Callable[[], None]:
    def deny() -> None:
        if id in running.approvals:
            running.put(Answer(id, False, f"Nobody answered within {ttl:g} s."))

    return deny


def _required(names: frozenset[str]) -> ErrorInfo:
    return ErrorInfo(
        "mcp_server_failed",
        f"The MCP server {min(names)!r} did not start, and this session requires it. The model was not asked; the next "
        "turn starts it again.",
        retryable=True,
    )


def _gone(item: Gone, progress: Progress) -> ErrorInfo:
    if progress.exited is not None:
        return exit_error(progress)
    return ErrorInfo(
        "program_lost", f"The agent program was lost in the middle of the turn: {item.error}", retryable=True
    )


def _silent(progress: Progress, seconds: float) -> ErrorInfo:
    said = progress.stderr.decode(errors="replace").strip()
    return ErrorInfo(
        "program_silent",
        f"The program was started and said nothing for {seconds:g} s (HOSTLER_START_TIMEOUT). "
        + (f"On stderr: {said[-2000:]}" if said else "Nothing on stderr either."),
        retryable=True,
    )


class _Timers:
    """Deadlines of one turn."""

    def __init__(self) -> None:
        self._handles: list[asyncio.TimerHandle] = []

    def after(self, seconds: float | None, call: Callable[[], None]) -> None:
        if seconds is not None:
            self._handles.append(asyncio.get_running_loop().call_later(seconds, call))

    def cancel(self) -> None:
        for handle in self._handles:
            handle.cancel()


# ---- the result -----------------------------------------------------------------------------------------------------


def result_of(
    ended: Ended,
    events: Sequence[Journalled],
    files: tuple[FileChange, ...],
    *,
    session: str,
    turn: str,
) -> Result:
    """The Result of a turn from how it ended and what is in its journal, without the events, which whoever reads the turn
    has. Pure."""
    calls = [e for e, _ in events if isinstance(e, ModelCall)]
    usage = sum((c.usage for c in calls), Usage())
    error = ended.error
    if error is not None and calls and calls[-1].error is not None and error.code != "program_lost":
        error = calls[-1].error  # the endpoint saw what the program only reports
    text = ended.text if ended.text is not None else text_of(e for e, parent in events if parent is None)
    return Result(
        text=text,
        output=ended.output,
        files=files,
        usage=usage,
        cost=cost_of(calls),
        stop_reason=ended.stop_reason,
        error=error,
        session_id=session,
        turn_id=turn,
        warnings=tuple(e.message for e, _ in events if isinstance(e, Notice)),
    )


def cost_of(calls: Sequence[ModelCall]) -> float | None:
    """The sum of the calls' costs; None when one is unknown, 0.0 when there was none."""
    total = 0.0
    for call in calls:
        if call.cost is None:
            return None
        total += call.cost
    return total
