"""One call of a tool from its arrival to its answer: checked, permitted, journalled, run once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from .. import portal
from ..types.events import CallbackFailed
from ..types.tools import ToolAnswer, ToolCallAsked, ToolContext, Verdict
from . import results
from .functions import HostTool

_REJOIN = 1.0  # s in which a client that has left may ask for the same call again, before the call is ended
_HOLD = 3.0  # s for which a program that is being interrupted gets no answer: it would go on with it
_CALL_IDS = ("claudecode/toolUseId", "callId")  # where programs say which of the model's calls it is
_log = logging.getLogger("hostler")

ENDED = ToolAnswer("The turn has ended, and this call with it.", is_error=True)
NO_TURN = ToolAnswer("No turn is running: tools can be called in a turn only.", is_error=True)
OUTCOME_UNKNOWN = ToolAnswer(
    "The outcome of this call is unknown: the app ended while it ran. It was not repeated. Find out what it did before "
    "you call it again.",
    is_error=True,
)


@dataclass(frozen=True, slots=True)
class Now:
    """The turn that calls belong to at this moment. ``stopping`` is set when its end is wanted, ``over`` when it has
    ended; async functions run on ``loop``."""

    turn: str
    stopping: asyncio.Event
    over: asyncio.Event
    loop: asyncio.AbstractEventLoop | None

    @property
    def ending(self) -> bool:
        return self.stopping.is_set() or self.over.is_set()


class Desk(Protocol):
    """What the session's host decides and keeps of calls."""

    async def now(self, frame: int | None) -> Now | None:
        """The running turn, if a request belongs to it that came before frame ``frame`` of the program's log."""
        ...

    def shows(self, tool: str) -> bool:
        """Whether the agent is told of this tool."""
        ...

    def context(self, call: ToolCallAsked, cancel: threading.Event) -> ToolContext: ...

    async def permit(self, call: ToolCallAsked) -> Verdict:
        """Whether it may run, after asking whoever is to be asked."""
        ...

    async def begin(self, call: ToolCallAsked) -> ToolAnswer | None:
        """Note that it begins; or, when it has begun before, the answer that it had then."""
        ...

    async def finish(self, call: ToolCallAsked, answer: ToolAnswer) -> ToolAnswer:
        """Note its answer; gives what the model is to be told."""
        ...

    async def put(self, call: ToolCallAsked, data: bytes, ext: str) -> str:
        """Put a large result into a file; its path for the model. Raises OSError."""
        ...

    def failed(self, failure: CallbackFailed) -> None:
        """A function raised, or took too long."""
        ...


class GivenUp(Exception):
    """The call was ended without an answer."""


class _UnderWay:
    def __init__(self, task: asyncio.Task[ToolAnswer]) -> None:
        self.task = task
        self.waiting = 0
        self.begun = False


class Calls:
    """The calls of one session's tools. A call that is delivered twice is run once."""

    def __init__(self, desk: Desk, timeout: float) -> None:
        self._desk = desk
        self._timeout = timeout
        self._under_way: dict[str, _UnderWay] = {}
        self._delivered: dict[str, object] = {}  # keys to the request that was given the answer
        self.left = False

    async def answer(
        self,
        tool: HostTool,
        arguments: Mapping[str, Any],
        *,
        request: object,
        meta: Mapping[str, Any],
        frame: int | None = None,
    ) -> ToolAnswer:
        """Run it, or join it when it is under way. ``request`` is the id of the JSON-RPC request, ``meta`` its ``_meta``,
        ``frame`` when it came, where that is known (see `Desk.now`).
        Raises GivenUp when there is to be no answer: whoever has the program next is asked again."""
        now = await self._desk.now(frame)
        if now is None:
            return NO_TURN
        try:
            given = tool.check(arguments)
        except ValueError as error:
            return ToolAnswer(str(error), is_error=True)
        call = self._asked(now, tool.name, arguments, tool.about(given), request, meta)
        under_way = self._under_way.get(call.key)
        if under_way is None:
            task = asyncio.create_task(self._whole(tool, given, call, now), name=f"hostler-tool-{tool.name}")
            under_way = self._under_way[call.key] = _UnderWay(task)
            task.add_done_callback(lambda _: self._under_way.pop(call.key, None))
        under_way.waiting += 1
        try:
            answer = await asyncio.shield(under_way.task)
        except asyncio.CancelledError:
            if _is_ending():
                raise
            raise GivenUp from None
        finally:
            under_way.waiting -= 1
            if not under_way.task.done():
                asyncio.get_running_loop().call_later(_REJOIN, self._abandon, under_way)
        if answer == ENDED:  # not unanswered when the turn is over: the request would be given to the next turn
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(now.over.wait(), _HOLD)
        self._delivered[call.key] = request
        return answer

    def leave(self) -> list[asyncio.Task[ToolAnswer]]:
        """The program is another host's from now on: what has not begun is asked there again, what runs goes on to its
        end. Gives what goes on."""
        self.left = True
        for under_way in self._under_way.values():
            if not under_way.begun:
                under_way.task.cancel()
        return [u.task for u in self._under_way.values() if u.begun]

    def come_back(self) -> None:
        """The program is this host's again."""
        self.left = False

    def end(self) -> list[asyncio.Task[ToolAnswer]]:
        """The program has ended: end the calls, too."""
        for under_way in self._under_way.values():
            under_way.task.cancel()
        return [u.task for u in self._under_way.values()]

    def _abandon(self, under_way: _UnderWay) -> None:
        if under_way.waiting == 0 and not (self.left and under_way.begun):
            under_way.task.cancel()

    def _asked(
        self,
        now: Now,
        tool: str,
        arguments: Mapping[str, Any],
        about: str | None,
        request: object,
        meta: Mapping[str, Any],
    ) -> ToolCallAsked:
        """A call is the same one when the program's id of it is, or else the request's, and all else is. Models' servers
        exist that give one id to many calls: after an answer was delivered, another request is another call."""
        id = next((str(meta[name]) for name in _CALL_IDS if meta.get(name)), None)
        parts = [now.turn, id or "", None if id else request, tool, arguments]
        key = _digest(parts)
        if id and self._delivered.get(key, request) != request:
            key = _digest([*parts, request])
        return ToolCallAsked(key, now.turn, id or key[:16], tool, dict(arguments), about)

    async def _whole(self, tool: HostTool, given: dict[str, Any], call: ToolCallAsked, now: Now) -> ToolAnswer:
        verdict = await self._desk.permit(call)
        if not verdict.allow:
            return ToolAnswer(f"Not allowed: {verdict.reason or 'the rules of this session forbid it.'}", is_error=True)
        if now.ending:
            return ENDED
        if verdict.answer is not None:
            return verdict.answer
        if (before := await self._desk.begin(call)) is not None:
            return before
        self._under_way[call.key].begun = True
        return await self._desk.finish(call, await self._run(tool, given, call, now))

    async def _run(self, tool: HostTool, given: dict[str, Any], call: ToolCallAsked, now: Now) -> ToolAnswer:
        cancel = threading.Event()
        if tool.context is not None:
            given = {**given, tool.context: self._desk.context(call, cancel)}
        work = asyncio.create_task(_outcome(partial(tool.function, **given), now.loop))
        ends = [asyncio.create_task(event.wait()) for event in (now.stopping, now.over)]
        try:
            await asyncio.wait({work, *ends}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                value, error = work.result()
                if error is None:
                    return await self._told(call, value)
                why = f"{type(error).__name__}: {error}"
            elif now.ending:
                return ENDED
            else:
                why = f"it took longer than {self._timeout:g} s"
        except Exception as error:  # what it returned cannot be told
            why = f"{type(error).__name__}: {error}"
        finally:
            cancel.set()
            for task in (work, *ends):
                task.cancel()
            await asyncio.gather(work, *ends, return_exceptions=True)
        _log.warning("The tool %s failed: %s", tool.name, why)
        self._desk.failed(CallbackFailed(f"tool {tool.name}", why))
        return ToolAnswer(f"The tool failed: {why}", is_error=True)

    async def _told(self, call: ToolCallAsked, value: Any) -> ToolAnswer:
        if isinstance(value, str) and len(value) * 4 <= results.LIMIT:
            return ToolAnswer(value)
        shaped = await asyncio.to_thread(results.shape, value)
        if shaped.data is None:
            return ToolAnswer(shaped.text)
        try:
            return ToolAnswer(results.told(shaped, await self._desk.put(call, shaped.data, shaped.ext)))
        except OSError as error:
            return ToolAnswer(results.told(shaped, None, str(error)))


async def _outcome(function: partial[Any], loop: asyncio.AbstractEventLoop | None) -> tuple[Any, BaseException | None]:
    """What it returned, or raised: it may be anything, SystemExit too. Only our own end is let through."""
    try:
        return await portal.call_back(function, loop=loop), None
    except BaseException as error:
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)) and _is_ending():
            raise
        return None, error


def _is_ending() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()[:32]
