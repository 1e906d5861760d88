"""Which model calls of a turn may go out: none before what the program has to say first, none beyond ``max_turns``."""

from __future__ import annotations

import asyncio
import contextlib

from ..running import Running, Stop

_SAID = 5.0  # s in which a program that has called its model has said what belongs before
_LEAVES = 5.0  # s in which a program that is being interrupted lets go of a call; an answer would be in its history


async def admitted(running: Running | None, max_turns: int | None, *, sub_agent: bool) -> str | None:
    """None for a call that may go out, at once or after a while; else why not. The limit is the main agent's."""
    if running is None:
        return None
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(running.may_call.wait(), _SAID)
    if max_turns is None or sub_agent or running.answered < max_turns:
        return running.stop
    running.put(Stop("max_turns"))
    await asyncio.sleep(_LEAVES)
    return "max_turns"
