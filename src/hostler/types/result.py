"""Result: what one turn gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .events import FileChange, TurnEvent

StopReason = Literal["done", "max_turns", "max_cost", "timeout", "cancelled", "interrupted", "error"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of all model calls of a turn or session, sub-agents included, as counted at the endpoint. ``calls`` are those
    that went to the provider.

    ``input_tokens`` holds all input, cached included; ``cached_tokens`` is the part read from the provider's cache.
    ``partial`` says that at least one call did not report its usage (cut, refused, foreign), so that the true figure
    is higher.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    partial: bool = False

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.calls + other.calls,
            self.partial or other.partial,
        )


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Why a turn failed. ``code`` is stable (``model_unavailable``, ``model_auth``, ``program_exited``, ...)."""

    code: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Persistence:
    """What became of the persistent dirs' changes: of all dirs together the worst (``uncommitted``: there are changes,
    and nobody has asked for a commit yet, or the turn failed). ``commits`` has a dict for each dir with changes: ``path``,
    ``status``, ``created``, ``updated``, ``deleted`` and ``conflicts`` (relative paths), ``skipped`` (path to reason, of
    links and the like), ``key`` (the idempotency key) and ``error`` (``code`` and ``message``, or None). What is not
    ``committed`` stays in the session."""

    status: Literal["clean", "committed", "uncommitted", "failed", "conflict"] = "clean"
    commits: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class FileRef:
    """A stored file: ``path`` as the agent sees it, size in bytes, SHA-256 in hex."""

    path: str
    bytes: int
    media_type: str | None
    sha256: str
    artifact: bool = False


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One entry of a directory listing: ``kind`` is ``file``, ``directory``, ``symlink`` or ``other``."""

    path: str
    kind: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """What one turn gave; also given when the turn failed (see ``stop_reason`` and ``error``).

    ``cost`` is in US dollars and None when a price is unknown; 0.0 means free. ``files`` are the workspace changes of
    the turn, ``events`` everything that a stream of this turn yields but the `Done` itself.
    """

    text: str = ""
    output: Any = None
    files: tuple[FileChange, ...] = ()
    events: tuple[TurnEvent, ...] = field(default=(), repr=False)
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    stop_reason: StopReason = "done"
    error: ErrorInfo | None = None
    session_id: str = ""
    turn_id: str = ""
    context: Literal["appended", "forked", "seeded", "native"] = "native"
    persistence: Persistence = field(default_factory=Persistence)
    artifacts: tuple[FileRef, ...] = ()
    warnings: tuple[str, ...] = ()
