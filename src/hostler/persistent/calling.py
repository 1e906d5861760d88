"""Calls of the app's functions behind a persistent dir: each with a deadline, its errors in words for the app."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from .. import portal
from ..types.errors import PersistenceConflict, PersistenceError
from .dirs import PersistContext

T = TypeVar("T")
_Answer = tuple[Any, Any, BaseException | None]  # of a call in a thread: for which job, its value, what it raised
_GRACE = 3.0  # s that a call under way has when somebody wants the turn to end
_AT_ONCE = 8  # async calls for single files
_AHEAD = 1  # batches that are waiting to be taken
_BATCH, _BATCH_BYTES, _BATCH_TIME = 64, 1 << 20, 0.05  # answers, bytes and s of one batch


class Calls:
    """Of one refresh or commit. Raises PersistenceError for whatever goes wrong, and PersistenceConflict when the app
    raises that. Each call gets ``ctx`` first and has ``timeout`` seconds; ``stopping`` shortens that."""

    def __init__(
        self,
        ctx: PersistContext,
        timeout: float,
        *,
        loop: asyncio.AbstractEventLoop | None,
        stopping: asyncio.Event | None,
    ) -> None:
        self._ctx = ctx
        self._timeout = timeout
        self._loop = loop
        self._stopping = stopping

    async def call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function gives."""
        return await self.bare(what, function, self._ctx, *arguments)

    async def bare(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives that takes no context."""
        return await self._within(what, portal.call_back(function, *arguments, loop=self._loop))

    async def _within(self, what: str, work: Awaitable[T]) -> T:
        """Its outcome in time, in words for the app."""
        task = asyncio.ensure_future(_outcome(work))
        waiting: set[asyncio.Future[Any]] = {task}
        if self._stopping is not None:
            waiting.add(asyncio.ensure_future(self._stopping.wait()))
        limit = self._timeout
        try:
            await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and any(other.done() for other in waiting):
                limit = min(limit, _GRACE)
                await asyncio.wait({task}, timeout=limit)
            if not task.done():
                raise self.wrong(what, f"gave no answer within {limit:g} s")
            value, error = task.result()
        finally:
            if not task.done():
                self._ctx.cancel.set()
            for future in waiting:
                future.cancel()
        if error is not None:
            raise self._raised(what, error) from error
        return value  # type: ignore[no-any-return]

    async def each(
        self, what: str, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], count: int, threads: int = 1
    ) -> AsyncGenerator[tuple[tuple[Any, ...], Any], None]:
        """Call it once for each of ``count`` jobs, and give the answers as they come, each within the deadline. A sync
        function runs in so many ``threads``."""
        if inspect.iscoroutinefunction(function):
            todo = iter(jobs)
            while group := await asyncio.to_thread(lambda: list(itertools.islice(todo, _AT_ONCE))):
                calls = [asyncio.ensure_future(self.call(what, function, *job)) for job in group]
                try:
                    for job, call in zip(group, calls, strict=True):
                        yield job, await call
                finally:
                    for call in calls:
                        call.cancel()
                    await asyncio.gather(*calls, return_exceptions=True)
            return
        source = _Threads(lambda job: function(self._ctx, *job), iter(jobs), threads)
        try:
            for _ in range(count):
                answer = source.ready()
                if answer is None:
                    answer = await self._within(what, source.next())
                job, value, error = answer
                if error is not None:
                    raise self._raised(what, error) from error
                if inspect.isawaitable(value):
                    value = await self._within(what, portal.call_back(lambda value=value: value, loop=self._loop))
                yield job, value
        finally:
            source.leave()

    def wrong(self, what: str, how: str) -> PersistenceError:
        """An error that names the function, the dir and the session."""
        return PersistenceError(
            f"{what} of the persistent dir {self._ctx.path} in session {self._ctx.session!r} {how}."
        )

    def _raised(self, what: str, error: BaseException) -> PersistenceError:
        if isinstance(error, PersistenceConflict):
            return PersistenceConflict(str(error) or f"{self._ctx.path} was changed by somebody else.")
        if isinstance(error, PersistenceError):
            return PersistenceError(str(error))
        return self.wrong(what, f"raised {type(error).__name__}: {error}")


async def _outcome(work: Awaitable[T]) -> tuple[Any, BaseException | None]:
    """What it gives or raises. The app may raise anything, SystemExit too, which must not end the engine."""
    try:
        return await work, None
    except GeneratorExit:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise
        return None, error


class _Threads:
    """Calls of a sync function, one after another in a thread of its own (or in some), a little ahead of who takes the
    answers. They come in batches: waking the engine costs more than a small call."""

    def __init__(self, work: Callable[[Any], Any], jobs: Any, threads: int) -> None:
        self._work = work
        self._jobs = jobs
        self._engine = asyncio.get_running_loop()
        self._batches: asyncio.Queue[list[_Answer]] = asyncio.Queue()
        self._taken: list[_Answer] = []
        self._room = threading.Semaphore(_AHEAD + threads)
        self._taking = threading.Lock()
        self._left = False
        for _ in range(threads):
            # Daemons: the interpreter would wait for one that the app blocks for ever.
            threading.Thread(target=self._run, name="hostler-persistent", daemon=True).start()

    def _run(self) -> None:
        while self._room.acquire() and (batch := self._batch()):
            with contextlib.suppress(RuntimeError):  # the engine is gone
                self._engine.call_soon_threadsafe(self._batches.put_nowait, batch)

    def _batch(self) -> list[_Answer]:
        batch: list[_Answer] = []
        size, end = 0, time.monotonic() + _BATCH_TIME
        while len(batch) < _BATCH and size < _BATCH_BYTES and time.monotonic() < end:
            job = None
            try:
                with self._taking:
                    job = None if self._left else next(self._jobs, None)
                if job is None:
                    break
                value = self._work(job)
            except BaseException as error:
                self._left = True
                batch.append((job, None, error))
                break
            batch.append((job, value, None))
            size += sum(len(part) for part in (value, *job) if isinstance(part, bytes))
        return batch

    def ready(self) -> _Answer | None:
        """An answer that is there."""
        if not self._taken and not self._batches.empty():
            self._take(self._batches.get_nowait())
        return self._taken.pop() if self._taken else None

    async def next(self) -> _Answer:
        """The next answer, when none is there."""
        self._take(await self._batches.get())
        return self._taken.pop()

    def _take(self, batch: list[_Answer]) -> None:
        self._room.release()
        self._taken = batch[::-1]

    def leave(self) -> None:
        """Nobody takes more: each thread ends after its call."""
        self._left = True
        self._room.release(1024)
