"""run_turn: the only pipeline. Prompt, items, events, journal, done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from . import outcome as endings
from .answer import refusal, settle
from .heard import Heard
from .keeper import KeeperError
from .outcome import Outcome
from .output import Output
from .program import Gone, Program, is_prompt
from .progress import Again, Progress
from .running import Running, Stop
from .steps import Journal, Step, Steps
from .store.journal import Journalled
from .telemetry.redaction import Masker
from .types.events import Approval, CancelRequested, Event, ModelCall, Notice
from .types.result import StopReason
from .types.runtime import Answer, Codec, Ended, Interrupt, Prompt, Send

_GRACE = 2.0  # s that a program has to end an interrupted turn by itself


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
    heard = Heard(codec, progress, bounds.required, [(event, None) for event in first], spoke=progress.frame > 0)
    items: list[Any] = []
    running.program, running.over = program, False
    masker.resume(progress.masking)
    if progress.turn != prompt.turn:
        items = [prompt, *await _caught_up(program, heard, prompt.turn)]
    else:
        running.reached(progress)
    items += running.waiting
    running.waiting = []
    timers.after(bounds.timeout, lambda: running.put(Stop("timeout")))

    give_up = partial(program.put_first, _GIVE_UP)

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
    if not heard.spoke:
        timers.after(bounds.start_timeout, partial(program.put, _UNHEARD))
    steps = Steps(journal, landed, partial(program.put_first, _UNWRITTEN))
    try:
        while True:
            batch, items = items or await program.items(), []
            end: Ended | None = None
            leftover: tuple[Any, ...] = ()
            for index, item in enumerate(batch):
                if isinstance(item, Stop):
                    if heard.progress.stop is None:
                        heard.stop(item.reason)
                        heard.events.append((CancelRequested(item.reason), None))
                        timers.after(_GRACE, give_up)
                        items.append(Interrupt())
                elif item is _UNWRITTEN:
                    await steps.landed_all()  # raises why
                elif not isinstance(item, Answer) or running.approvals.pop(item.id, None) is not None:
                    end = _taken(heard, item, bounds)
                if end is not None:
                    leftover = tuple(batch[index + 1 :])
                    break
            told = [shown for event, parent in heard.events for shown in masker.events(event, parent)]
            heard.events = []
            if end is not None:
                told += masker.rest()
            if (masking := masker.carry()) != heard.progress.masking:
                heard.progress = replace(heard.progress, masking=masking)
            running.events += told
            if end is not None and output is not None:
                stop = running.stop or _exceeded(running, heard.progress, bounds)
                end, wrong = await settle(output, end, running.events, stop=stop, last=heard.progress.asked_again)
                if wrong is not None:
                    # What follows the end in the log is read after this: a crash finds both or neither in the store.
                    end = heard.take(Again(output.again(wrong), prompt.schema))
                    refused: list[Journalled] = [(masker.mask(event), None) for event in refusal(running.events, wrong)]
                    told += refused
                    running.events += refused
                    items = [*leftover]
                elif stop is not None and end.stop_reason == "interrupted":
                    heard.stop(heard.progress.stop or stop)
            native_id = heard.native_id or native_id
            if end is not None:
                running.program, running.over = None, True  # a model call that ends from now on is a late one
                waiting = steps.take()
                await steps.landed_all()
                last = (*waiting.events, *told) if waiting is not None else tuple(told)
                return await _over(program, heard.progress, native_id, end, last, leftover)
            if batch[0] is prompt and all(send.key == prompt.turn for send in heard.sends):
                # The turn is in the store, and the program's log tells whoever recovers it that this was said.
                await say(heard.sends)
                heard.sends = []
            step = heard.step(told)
            if step.tells or not steps.idle:
                steps.put(step)
            else:
                running.reached(step.progress)
            if step.due:
                await steps.landed_all()
                with suppress(KeeperError):  # it is gone: what it said before that is read all the same
                    await program.read_up_to(step.progress.frame)
                heard.unread = 0
            if (reason := _exceeded(running, step.progress, bounds)) is not None:
                running.put(Stop(reason))
                if reason == "max_cost" and endings.spent(running.calls) is None:
                    heard.events.append((_UNCOUNTED, None))
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
_UNCOUNTED = Notice(
    "cost_unknown",
    "The model's provider does not say how many tokens its answers take, so max_cost cannot be held: the turn is ended.",
)


async def _caught_up(program: Program, heard: Heard, turn: str) -> Sequence[Any]:
    """Take what the program said while it was idle: that belongs to no turn, but the codec has to know it before it is
    spoken to. What has come since it was given this turn's prompt, if it was, or the first of that."""
    kept = (ModelCall, Notice) if heard.progress.frame == 0 else (ModelCall,)  # one just started speaks of this turn
    first, heard.events = heard.events, []
    behind: Sequence[Any] = ()
    ended: list[Any] = []
    async with aclosing(program.arrived()) as parts:
        async for part in parts:
            given = next((n for n, item in enumerate(part) if is_prompt(item, turn)), len(part))
            for item in part[:given]:
                if isinstance(item, Gone):
                    ended.append(item)
                elif not _is_late(item):
                    heard.take(item)  # it may have asked something, and wait
            if behind := part[given:]:
                break
    for item in ended:
        program.put(item)
    heard.events = [*first, *((event, None) for event, _ in heard.events if isinstance(event, kept))]
    return behind


def _taken(heard: Heard, item: Any, bounds: Bounds) -> Ended | None:
    """How the turn ends with this item, if it does."""
    if isinstance(item, Gone):
        return endings.gone(heard.progress, item.error)
    if item is _GIVE_UP:
        return _GAVE_UP
    if item is _UNHEARD:
        return None if heard.spoke else endings.silent(heard.progress, bounds.start_timeout)
    return heard.take(item)


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
    if bounds.max_cost is not None and ((spent := endings.spent(running.calls)) is None or spent >= bounds.max_cost):
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
