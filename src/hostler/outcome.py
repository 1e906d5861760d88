"""How a turn ended, and the Result that it makes with what is in its journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .progress import Progress, exit_error, last_words, text_of
from .store.journal import Journalled
from .types.events import FileChange, ModelCall, Notice
from .types.result import ErrorInfo, Result, Usage
from .types.runtime import Ended


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended. ``events`` are its last ones: they are committed together with its `Done`, so that a crash
    before that finds the turn open and its end still in the keeper's log. ``leftover`` came after the end. Without
    ``progress`` the turn never came to its program, and whatever that is stays as it is."""

    ended: Ended
    progress: Progress | None = None
    native_id: str | None = None
    program_alive: bool = False
    events: tuple[Journalled, ...] = ()
    leftover: tuple[Any, ...] = ()


def gone(progress: Progress, why: Exception) -> Ended:
    """The connection to the program's keeper ended in mid-turn."""
    if progress.exited is not None:
        return Ended("error", error=exit_error(progress))
    message = f"The agent program was lost in the middle of the turn: {why}"
    return Ended("error", error=ErrorInfo("program_lost", message, retryable=True))


def silent(progress: Progress, seconds: float) -> Ended:
    """A program just started has said nothing for so long."""
    said = last_words(progress)
    message = f"The program was started and said nothing for {seconds:g} s (HOSTLER_START_TIMEOUT). " + (
        f"On stderr: {said}" if said else "Nothing on stderr either."
    )
    return Ended("error", error=ErrorInfo("program_silent", message, retryable=True))


def without_server(names: frozenset[str]) -> Ended:
    """MCP servers that the session requires did not start."""
    message = (
        f"The MCP server {min(names)!r} did not start, and this session requires it. The model was not asked; the next "
        "turn starts it again."
    )
    return Ended("error", error=ErrorInfo("mcp_server_failed", message, retryable=True))


def unfit(why: str) -> Ended:
    """The program is not in the conversation that it should be in."""
    return Ended("error", error=ErrorInfo("state_incompatible", why))


def result_of(
    ended: Ended,
    events: Sequence[Journalled],
    files: tuple[FileChange, ...],
    *,
    session: str,
    turn: str,
) -> Result:
    """The Result of a turn from how it ended and what is in its journal, without the events, which whoever reads the turn
    has. Pure."""
    calls = [e for e, _ in events if isinstance(e, ModelCall)]
    usage = sum((c.usage for c in calls), Usage())
    error = ended.error
    if error is not None and calls and calls[-1].error is not None and error.code != "program_lost":
        error = calls[-1].error  # the endpoint saw what the program only reports
    text = ended.text if ended.text is not None else text_of(e for e, parent in events if parent is None)
    return Result(
        text=text,
        output=ended.output,
        files=files,
        usage=usage,
        cost=cost_of(calls),
        stop_reason=ended.stop_reason,
        error=error,
        session_id=session,
        turn_id=turn,
        warnings=tuple(e.message for e, _ in events if isinstance(e, Notice)),
    )


def cost_of(calls: Sequence[ModelCall]) -> float | None:
    """The sum of the calls' costs; None when one is unknown, 0.0 when there was none."""
    total = 0.0
    for call in calls:
        if call.cost is None:
            return None
        total += call.cost
    return total


def spent(calls: Sequence[ModelCall]) -> float | None:
    """What the calls have cost at the least. One that may have run unseen (it was cut) counts as the dearest that is known;
    None when an answer came without a word of what it took, as all of them will."""
    known = [call.cost for call in calls if call.cost is not None]
    unknown = [call for call in calls if call.cost is None]
    if any(call.status == "ok" and not (call.usage.input_tokens or call.usage.output_tokens) for call in unknown):
        return None
    return sum(known) + len(unknown) * max(known, default=0.0)
