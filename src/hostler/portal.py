"""The engine: one event loop a process in its own thread, and the ways into and out of it."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from . import ending

T = TypeVar("T")

_START = 10.0
_SLICE = 1.0
_CLOSE = 15.0  # s that each step of the end may take


class Engine:
    """A loop in a thread of its own."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._started = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()
        if not self._started.wait(_START):
            raise RuntimeError("hostler's engine thread did not start.")

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._started.set)
        self.loop.run_forever()
        self.loop.close()

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start it. Raises RuntimeError when the interpreter ends."""
        if ending.has_begun():
            coro.close()
            raise RuntimeError(ending.TOO_LATE)
        return asyncio.run_coroutine_threadsafe(coro, self.loop)

    def stop(self) -> None:
        if self.thread.is_alive() and threading.current_thread() is not self.thread:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(5)


def _fast_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, on which all work with sockets is cheaper, where there is one, and a thread that it can have to itself:
    those of gevent and eventlet are not, and only asyncio's loop lets the others run."""
    if not inspect.isbuiltin(_thread.start_new_thread):
        return asyncio.new_event_loop()
    try:
        import uvloop  # not before the engine is wanted: it takes long to import
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_lock = threading.RLock()
_engine: Engine | None = None
_callbacks: Engine | None = None
_posted: set[asyncio.Task[Any]] = set()
_closers: list[Callable[[], Awaitable[None]]] = []


def engine() -> Engine:
    """The loop that all of hostler's own code runs on, started when first needed."""
    global _engine
    with _lock:
        if _engine is None:
            _engine = Engine("hostler-engine", _fast_loop())
        return _engine


def run(coro: Coroutine[Any, Any, T]) -> T:
    """The sync face: run on the engine and wait. Raises RuntimeError on the engine's own thread."""
    current = engine()
    if threading.current_thread() is current.thread:
        coro.close()
        raise RuntimeError(
            "A sync hostler call on hostler's own thread would wait for itself. Use the async twin (arun, astream, ...)."
        )
    ending.note_caller()
    future = current.submit(coro)
    try:
        # In slices: a signal that comes just before the wait begins is seen at the next one.
        while not concurrent.futures.wait([future], timeout=_SLICE).done:
            if not current.thread.is_alive() and not future.done():
                raise RuntimeError(ending.TOO_LATE)
        return future.result()
    except concurrent.futures.CancelledError:
        if ending.has_begun():
            raise RuntimeError(ending.TOO_LATE) from None
        raise
    except KeyboardInterrupt:
        future.cancel()
        raise


async def arun(coro: Coroutine[Any, Any, T]) -> T:
    """The async face: run on the engine and await it from any loop."""
    current = engine()
    if threading.current_thread() is current.thread:
        return await coro
    return await asyncio.wrap_future(current.submit(coro))


def either(coro: Coroutine[Any, Any, T]) -> Awaitable[T]:
    """Both faces in one method: it begins now; a sync caller waits here, an async one may await what this gives."""
    begun = Begun(engine().submit(coro))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        begun.future.result()
    return begun


class Begun(Awaitable[T]):
    """Work on the engine, to be awaited from any loop, or not at all."""

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        self.future = future

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self.future).__await__()


def post(work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Start it on the engine and do not wait; from finalisers, where nothing may block."""
    current = _engine
    if current is not None and not current.loop.is_closed():

        def start() -> None:
            task = current.loop.create_task(work())
            _posted.add(task)
            task.add_done_callback(_posted.discard)

        current.loop.call_soon_threadsafe(start)


def on_exit(close: Callable[[], Awaitable[None]]) -> None:
    """Have ``close`` run on the engine when the interpreter ends cleanly; it may be called twice."""
    if close not in _closers:
        _closers.append(close)


def caller_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of the code that calls, for its async callbacks."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return None if _engine is not None and loop is _engine.loop else loop


async def call_back(function: Callable[..., Any], *args: Any, loop: asyncio.AbstractEventLoop | None) -> Any:
    """Run a callback of the app, from the engine: async ones on ``loop`` (or on one callback loop of our own), sync ones
    in a worker thread."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(*args), _loop_for(loop)))
    value = await _in_thread(function, *args)
    if inspect.isawaitable(value):
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(value), _loop_for(loop)))
    return value


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    # A daemon thread of its own, not a pool's: the interpreter would wait for one that the app blocks for ever.
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()  # nobody can take it back: one who stopped waiting is not told

    def work() -> None:
        try:
            done.set_result(function(*args))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="hostler-callback", daemon=True).start()
    return await asyncio.wrap_future(done)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _loop_for(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    global _callbacks
    if loop is not None and loop.is_running():
        return loop
    with _lock:
        if _callbacks is None:
            _callbacks = Engine("hostler-callbacks", asyncio.new_event_loop())
        return _callbacks.loop


def _exit() -> None:
    """At the end of the interpreter: close what the app left open, bounded in time."""
    current = _engine
    if current is None or not current.thread.is_alive():
        return
    # Twice: who was in the middle of opening something is cut off in between, and may just have opened it.
    for work in (_close_all, _cut_off, _close_all):
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(work(), current.loop).result(_CLOSE)
    current.stop()
    if _callbacks is not None:
        _callbacks.stop()


async def _close_all() -> None:
    for close in reversed(_closers):
        with contextlib.suppress(Exception):
            await close()


async def _cut_off() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _forked() -> None:
    # The threads and connections stayed with the parent; the child makes its own when it needs them.
    global _engine, _callbacks, _lock
    _engine = _callbacks = None
    _lock = threading.RLock()
    _closers.clear()


ending.at_end(_exit)
os.register_at_fork(after_in_child=_forked)
