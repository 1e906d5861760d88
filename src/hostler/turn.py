"""run_turn: the only pipeline. Prompt, items, events, journal, done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from . import outcome as endings
from .answer import refusal, settle
from .keeper import KeeperError
from .outcome import Outcome
from .output import Output
from .program import Gone, Program, is_prompt
from .progress import Again, Progress, advance
from .running import Running, Stop
from .steps import Journal, Step, Steps
from .store.journal import Journalled
from .telemetry.redaction import Masker
from .types.events import Answered, Approval, CancelRequested, Event, ModelCall, Notice
from .types.result import StopReason
from .types.runtime import Answer, Codec, Ended, Frame, Interrupt, Prompt, Send

_GRACE = 2.0  # s that a program has to end an interrupted turn by itself
_FRAME = 16  # bytes that a frame takes beside its data
_UNREAD = 1 << 18  # bytes of the program's log that may wait to be stored or acknowledged


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the turn may use. Durations in seconds, costs in US dollars."""

    timeout: float | None = None
    max_turns: int | None = None
    max_cost: float | None = None
    approval_ttl: float = 600.0
    start_timeout: float = 60.0  # how long a program just started may say nothing
    required: frozenset[str] = frozenset()  # MCP servers without which there is no turn


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

    A turn whose prompt the program was already given is carried on: from the last stored frame (``progress.turn``), or from
    where the program's log tells of the prompt.
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
        arrived = program.ready()
        given = next((n for n, item in enumerate(arrived) if is_prompt(item, prompt.turn)), len(arrived))
        for item in arrived[:given]:
            if isinstance(item, Gone):
                program.put(item)  # type: ignore[arg-type]
            elif not _is_late(item):
                step = advance(codec, progress, item)
                progress, native_id = step.progress, step.native_id or native_id
                head += [(event, None) for event, _ in step.events if isinstance(event, kept)]
                missing |= step.missing
                owed += step.sends  # it may have asked something, and wait
        items: list[Any] = [prompt, *arrived[given:]]
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

    def unwritten() -> None:
        program.put(_UNWRITTEN)

    def ask(approval: Approval) -> None:
        timers.after(bounds.approval_ttl, _deny_later(running, approval.id, bounds.approval_ttl))
        if on_approval is not None:
            on_approval(approval)

    async def say(sends: Sequence[Send]) -> None:
        try:
            await program.send(sends)
        except KeeperError as error:  # the turn ends by that, with all that is known of it
            program.put(Gone(error))  # type: ignore[arg-type]

    async def landed(step: Step) -> None:
        events = [event for event, _ in step.events]
        running.written(events)
        running.reached(step.progress)
        await say(step.sends)
        for event in events:
            if isinstance(event, Approval):
                ask(event)

    # What a host before us left open: nobody else waits for it any more.
    for approval in tuple(running.approvals.values()):
        ask(approval)
    if progress.stop is not None:
        timers.after(_GRACE, give_up)
    heard = progress.frame > 0
    if not heard:
        timers.after(bounds.start_timeout, unheard)
    steps = Steps(journal, landed, unwritten)
    try:
        while True:
            batch, items = items or await program.items(), []
            events, head = head, []
            sends, owed = owed, []
            named: str | None = None
            end: Ended | None = None
            for index, item in enumerate(batch):
                if isinstance(item, Gone):
                    end = endings.gone(progress, item.error)
                elif isinstance(item, Stop):
                    if progress.stop is None:
                        progress = replace(progress, stop=item.reason)
                        events.append((CancelRequested(item.reason), None))
                        timers.after(_GRACE, give_up)
                        items.append(Interrupt())
                    continue
                elif item is _UNWRITTEN:
                    await steps.landed_all()  # raises why
                elif item is _GIVE_UP:
                    end = _GAVE_UP
                elif isinstance(item, Answer) and running.approvals.pop(item.id, None) is None:
                    continue  # somebody was quicker
                elif item is _UNHEARD:
                    end = None if heard else endings.silent(progress, bounds.start_timeout)
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
                        answers = dict(item.answers) if item.answers else None
                        events.append((Answered(item.id, item.allow, item.reason, answers), None))
                    missing |= step.missing
                    if bounds.required & missing:
                        end = endings.without_server(bounds.required & missing)
                    if step.unfit is not None:
                        end = endings.unfit(step.unfit)
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
                running.program, running.over = None, True  # a model call that ends from now on is a late one
                waiting = steps.take()
                await steps.landed_all()
                last = (*waiting.events, *events) if waiting is not None else tuple(events)
                return await _over(program, progress, native_id, end, last, leftover)
            if batch[0] is prompt and all(send.key == prompt.turn for send in sends):
                # The turn is in the store, and the program's log tells whoever recovers it that this was said.
                await say(sends)
                sends, named = [], native_id  # which an idle program may have told
            come_to = Step(progress, tuple(events), tuple(sends), named, due=unread >= _UNREAD)
            if come_to.tells or not steps.idle:
                steps.put(come_to)
            else:
                running.reached(progress)
            if unread >= _UNREAD:
                await steps.landed_all()
                with contextlib.suppress(KeeperError):  # it is gone: what it said before that is read all the same
                    await program.read_up_to(progress.frame)
                unread = 0
            if (reason := _exceeded(running, progress, bounds)) is not None:
                running.put(Stop(reason))
    finally:
        timers.cancel()
        running.program = None
        await steps.drop()


_REASONS: dict[str, StopReason] = {r: r for r in get_args(StopReason)}
_GIVE_UP: Any = object()
_UNHEARD: Any = object()
_UNWRITTEN: Any = object()
_NOT_GONE_ON_WITH = (
    "state_incompatible",
    "program_silent",
    "mcp_server_failed",
    "program_lost",
)  # the program ends, too
_GAVE_UP = Ended("interrupted")


def _is_late(item: Any) -> bool:
    """Whether this was meant for the turn before, and came behind its end."""
    return isinstance(item, (Stop, Answer, Interrupt)) or item in (_GIVE_UP, _UNHEARD, _UNWRITTEN)


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
            try:
                await program.sweep_turn()  # it ended by itself; its tools' processes may not have
            except KeeperError:
                await program.kill()
                alive = False
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
