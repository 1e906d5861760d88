"""The end of the interpreter: who calls is waited for, what is left open is closed, and nothing begins any more."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # its exit hook must be registered before ours, which then runs first
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

TOO_LATE = "The interpreter is ending, and hostler has closed its sessions: this call came too late."
_FIRST_CALL = 10.0  # s that a thread which has not called yet has for that when the main one is over
_LOOK = 0.05

_callers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_close: Callable[[], None] | None = None
_begun = False


def has_begun() -> bool:
    """Whether it is too late for another call."""
    return _begun


def note_caller() -> None:
    """The thread that runs this uses hostler: its calls come to their end before anything is closed."""
    _callers.add(threading.current_thread())


def at_end(close: Callable[[], None]) -> None:
    """Have ``close`` run once when no call is to be waited for."""
    global _close
    _close = close


def _end() -> None:
    global _begun
    _wait_for_callers()
    _begun = True
    if _close is not None:
        _close()


def _wait_for_callers() -> None:
    """The interpreter would wait for these threads next, and they are not done with their sessions. Not for a pool's:
    they wait for work until a later exit hook ends them, and what they run now is closed with the rest."""
    deadline = time.monotonic() + _FIRST_CALL
    while True:
        alive = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
        others = [t for t in alive if not _waits_for_a_hook(t)]
        callers = [t for t in others if t in _callers]
        if not others or (not callers and time.monotonic() > deadline):
            return
        (callers or others)[0].join(_LOOK)


def _waits_for_a_hook(thread: threading.Thread) -> bool:
    """Whether it is one of the standard library's that end when an exit hook behind ours tells them to."""
    pools: Any = getattr(concurrent.futures.thread, "_threads_queues", ())
    helpers: Any = getattr(sys.modules.get("concurrent.futures.process"), "_threads_wakeups", ())
    return thread in pools or thread in helpers


def _forked() -> None:
    _callers.clear()


# Worker threads are shut down before plain atexit hooks run, and closing needs them.
getattr(threading, "_register_atexit", atexit.register)(_end)
os.register_at_fork(after_in_child=_forked)
