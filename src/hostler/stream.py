"""Stream: the events of one turn as they come, for sync and async code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

from . import portal
from .output import checked
from .types.events import Done, TurnEvent
from .types.result import Result


class Source(Protocol):
    """The engine side of a stream."""

    async def batch(self) -> list[TurnEvent]:
        """The next events, at least one; the last one is the `Done`. Empty once closed."""
        ...

    async def cancel(self) -> None: ...

    async def leave(self) -> None:
        """The consumer is gone. Whether the turn goes on is the source's to say."""
        ...


class Stream:
    """The turn's events: iterate it with ``for`` or ``async for``; the last one is the `Done`.

    The turn runs whether or not somebody iterates. Leaving the loop early unsubscribes and does not cancel it (only a
    dropped `agent` stream is cancelled). ``result`` is there after the end; ``await stream.finished`` waits for it;
    ``cancel()`` / ``await acancel()`` end the turn.
    """

    def __init__(self, opening: concurrent.futures.Future[Source]) -> None:
        self._opening = opening
        self._ready: deque[TurnEvent] = deque()
        self._seen: list[TurnEvent] = []
        self._result: Result | None = None
        self._left = False
        self._filling: asyncio.Task[None] | None = None  # on the engine

    @property
    def result(self) -> Result:
        """The turn's Result. Raises RuntimeError before its end, and OutputInvalid (which has the Result) when the answer
        does not fit ``output=``."""
        if self._result is None:
            raise RuntimeError("The turn is not over yet: iterate the stream to its end, or await stream.finished.")
        return checked(self._result)

    @property
    def finished(self) -> Finished:
        """Awaitable: takes the rest of the events and gives the Result."""
        return Finished(self)

    def wait(self) -> Result:
        """The sync twin of ``await stream.finished``."""
        for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """End the turn: within 5 s none of its processes is left."""
        portal.run(self._cancel())

    def cancel_soon(self) -> None:
        """`cancel` without waiting; from signal handlers."""
        portal.post(self._cancel)

    async def acancel(self) -> None:
        await portal.arun(self._cancel())

    def close(self) -> None:
        """Stop listening."""
        if not self._left and self._result is None:
            self._left = True
            portal.run(self._leave())

    async def aclose(self) -> None:
        if not self._left and self._result is None:
            self._left = True
            await portal.arun(self._leave())

    def __iter__(self) -> Iterator[TurnEvent]:
        return self

    def __next__(self) -> TurnEvent:
        if not self._ready and not self._over():
            portal.run(self._fill())
        if not self._ready:
            raise StopIteration
        return self._give()

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        return self

    async def __anext__(self) -> TurnEvent:
        if not self._ready and not self._over():
            await portal.arun(self._fill())
        if not self._ready:
            raise StopAsyncIteration
        return self._give()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self._left and self._result is None:
            self._left = True
            portal.post(self._leave)

    def _over(self) -> bool:
        return self._result is not None or self._left

    def _take(self, events: list[TurnEvent]) -> None:
        self._filling = None
        self._ready.extend(events)
        if not events:
            self._left = True

    def _give(self) -> TurnEvent:
        event = self._ready.popleft()
        if isinstance(event, Done):
            event = Done(replace(event.result, events=tuple(self._seen)))
            self._result = event.result
        else:
            self._seen.append(event)
        return event

    # On the engine.

    async def _source(self) -> Source:
        return await _begun(self._opening)

    async def _fill(self) -> None:
        """Have what comes next ready. Whoever waits for it may be cancelled: it is there for the one after him."""
        filling = self._filling = self._filling or asyncio.create_task(_read(self._opening, weakref.ref(self)))
        try:
            await asyncio.shield(filling)
        finally:
            if filling.done() and self._filling is filling:
                self._filling = None

    async def _cancel(self) -> None:
        await (await self._source()).cancel()

    async def _leave(self) -> None:
        try:
            source = await self._source()
        except Exception:
            return  # it never began, and whoever iterated was told
        await source.leave()


async def _begun(opening: concurrent.futures.Future[Source]) -> Source:
    """Whoever waits for it may be cancelled; the turn is accepted all the same."""
    return await asyncio.shield(asyncio.wrap_future(opening))


async def _read(opening: concurrent.futures.Future[Source], stream: weakref.ref[Stream]) -> None:
    """The next events for the stream, which is not kept by this."""
    events = await (await _begun(opening)).batch()
    if (reader := stream()) is not None:
        reader._take(events)


class Finished(Awaitable[Result]):
    """Waits for the end of a stream's turn."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait().__await__()

    async def _wait(self) -> Result:
        async for _ in self._stream:
            pass
        return self._stream.result


def open_stream(begin: Callable[[], Any]) -> Stream:
    """A Stream of the turn that the coroutine made by ``begin`` accepts; it starts at once."""
    return Stream(portal.engine().submit(begin()))
