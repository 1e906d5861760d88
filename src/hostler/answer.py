"""Whether the answer that ends a turn is what the caller wants of it; if not, it is asked for once more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from .output import Output, invalid
from .progress import items_of, text_of
from .types.events import Event, Notice, Retract
from .types.result import StopReason
from .types.runtime import Ended


async def settle(
    output: Output, end: Ended, events: Sequence[tuple[Event, str | None]], *, stop: StopReason | None, last: bool
) -> tuple[Ended, str | None]:
    """The end with its output; the second is what is wrong with an answer that can be asked for again: not when it is
    the ``last`` one, nor when somebody wants the turn to ``stop``."""
    if end.stop_reason != "done":
        return end, None
    text = end.text if end.text is not None else text_of(_own(events))
    end, wrong = await asyncio.to_thread(output.judge, end, text)
    if wrong is None:
        return end, None
    if stop is not None:
        return Ended("interrupted", end.text), None
    if last:
        return replace(end, stop_reason="error", output=None, error=invalid(wrong)), None
    return end, wrong


def refusal(events: Sequence[tuple[Event, str | None]], wrong: str) -> list[Event]:
    """What is journalled of an answer that is asked for again: what was streamed of it is void."""
    notice = Notice("output_asked_again", f"The answer does not fit output= and is asked for once more:\n{wrong}")
    return [*(Retract(item) for item in items_of(_own(events))), notice]


def _own(events: Sequence[tuple[Event, str | None]]) -> list[Event]:
    return [event for event, parent in events if parent is None]
