"""Which model calls of a turn may go out: none before what the program has to say first, none beyond ``max_turns``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

from ..running import Running, Stop

_SAID = 5.0  # s in which a program that has called its model has said what belongs before
_LEAVES = 5.0  # s in which a program that is being interrupted lets go of a call; an answer would be in its history


def admitted(running: Running | None, max_turns: int | None, *, sub_agent: bool) -> Awaitable[str | None] | None:
    """None for a call that may go out at once; else what to wait for, which tells why it may not, or None. The limit is
    the main agent's."""
    if running is None:
        return None
    at_once = running.may_call.is_set() and running.stop is None
    return None if at_once and _has_turns(running, max_turns, sub_agent) else _later(running, max_turns, sub_agent)


async def _later(running: Running, max_turns: int | None, sub_agent: bool) -> str | None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(running.may_call.wait(), _SAID)
    if _has_turns(running, max_turns, sub_agent):
        return running.stop
    running.put(Stop("max_turns"))
    await asyncio.sleep(_LEAVES)
    return "max_turns"


def _has_turns(running: Running, max_turns: int | None, sub_agent: bool) -> bool:
    return max_turns is None or sub_agent or running.answered < max_turns
