"""Events and Records: what a turn yields and what the journal holds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .questions import Answers, Question, questions_of
from .result import ErrorInfo, FileRef, Persistence, Result, Usage

# ---- what the agent did: TurnEvents ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the agent's answer; pieces with the same ``item`` belong together."""

    item: str
    delta: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's visible reasoning."""

    item: str
    delta: str


@dataclass(frozen=True, slots=True)
class Retract:
    """What was streamed under ``item`` is void: the model call was repeated, or the answer is asked for again."""

    item: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The agent calls a tool. ``name`` is normalised (read write edit bash glob grep ls web_search, else as it is),
    ``native_name`` the program's own; ``builtin`` is False for the caller's tools; ``parent`` is the id of the
    sub-agent's ToolCall."""

    id: str
    name: str
    native_name: str
    input: Any
    builtin: bool = True
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to the ToolCall with the same ``id``."""

    id: str
    output: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class FileChange:
    """A workspace path that differs from before the turn. ``diff`` is unified, None for binary, large or mode-only changes."""

    path: str
    kind: Literal["created", "modified", "deleted"]
    diff: str | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """The program asks before it uses a tool. Answer with ``a.allow()`` / ``a.deny(reason)``, awaited in async code, or
    from any process with ``session.answer(a.id, allow=...)``. ``always=True`` answers for good: the session does not ask
    again for the same tool (for a shell command: for the same command).

    With the tool ``"question"`` it asks something else: ``questions`` are what, and ``allow(answers="...")``, or
    ``answers={id: text}`` when there are several, answers them."""

    id: str
    tool: str
    input: Any
    extra_body: Any = None
    answer: Callable[[bool, str | None, bool, Answers | None], Awaitable[None]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def questions(self) -> tuple[Question, ...]:
        """What is asked, when it is not whether a tool may be used."""
        return questions_of(self.tool, self.input)

    def allow(self, *, always: bool = False, answers: Answers | None = None) -> Awaitable[None]:
        return self._answer(True, None, always, answers)

    def deny(self, reason: str | None = None, *, always: bool = False) -> Awaitable[None]:
        return self._answer(False, reason, always, None)

    def _answer(self, allow: bool, reason: str | None, always: bool, answers: Answers | None) -> Awaitable[None]:
        if self.answer is None:
            raise RuntimeError("This Approval was read from the journal; answer it with session.answer(id, allow=...).")
        return self.answer(allow, reason, always, answers)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The program shortened its history; token counts are None where it does not say them."""

    tokens_before: int | None = None
    tokens_after: int | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the host should know; never shown to the model."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of every accepted turn, exactly once."""

    result: Result


TurnEvent: TypeAlias = (
    Text | Reasoning | Retract | ToolCall | ToolResult | FileChange | Approval | Compaction | Notice | Done
)


# ---- what the host did: HostEvents ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accepted:
    """A turn's first record: the input is safe in the store."""

    extra_body: Any = None
    preview: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """The turn has the session's lease. ``resumed`` says how its program was reached: attached, native, replayed (a new
    conversation that is told the transcript), or None (new)."""

    resumed: str | None
    epoch: int
    recovered: bool = False


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One model call as the endpoint saw it. ``cost`` in US dollars or None when unknown; ``status`` is ``ok``,
    ``refused`` (``error`` says how), ``cut`` (the stream ended early) or ``silent``; ``http_status`` is the
    provider's last answer. ``sub_agent``: it is known not to be the main agent's."""

    model: str
    usage: Usage
    cost: float | None
    status: Literal["ok", "refused", "cut", "silent"] = "ok"
    http_status: int | None = None
    error: ErrorInfo | None = None
    sub_agent: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """An Approval was answered; ``answers`` are those to its questions, by their ids."""

    id: str
    allow: bool
    reason: str | None = None
    answers: dict[str, list[str]] | None = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Somebody asked for the end of the turn: ``cancelled``, ``interrupted``, ``timeout``, ``max_cost``, ``max_turns``."""

    reason: str


@dataclass(frozen=True, slots=True)
class FileStaged:
    """The host wrote a file into the workspace."""

    file: FileRef
    source: str | None = None
    metadata: Any = None


@dataclass(frozen=True, slots=True)
class FileRemoved:
    """The app removed a file, a link, or a folder with all that was in it."""

    path: str


@dataclass(frozen=True, slots=True)
class FileMoved:
    """The app renamed a file, a link or a folder to ``target``."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class CallbackFailed:
    """A callback of the app raised or timed out; the turn went on."""

    callback: str
    message: str


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot of the workspace was taken: its id, how many entries and bytes it holds, and what it could not take, as
    ``path: reason``."""

    id: str
    entries: int
    bytes: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotRestored:
    """The workspace was made what it was at a snapshot."""

    id: str


@dataclass(frozen=True, slots=True)
class Forked:
    """A session was made under ``key`` that goes on from here."""

    key: str


@dataclass(frozen=True, slots=True)
class CheckedOut:
    """A persistent dir was refreshed: so many files of its checkout were written and removed."""

    path: str
    written: int
    removed: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Changes of a persistent dir were stored under the idempotency key ``key``. The names are relative paths."""

    path: str
    key: str
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PersistenceFailed:
    """A persistent dir could not be refreshed or committed, or the agent changed one that is read-only (``step``: load,
    commit, read-only). ``paths`` are those in conflict, or those that were put back; the model is told nothing of it."""

    path: str
    step: str
    code: str
    message: str
    paths: tuple[str, ...] = ()


HostEvent: TypeAlias = (
    Accepted
    | Started
    | ModelCall
    | Answered
    | CancelRequested
    | FileStaged
    | FileRemoved
    | FileMoved
    | CallbackFailed
    | SnapshotTaken
    | SnapshotRestored
    | Forked
    | CheckedOut
    | Committed
    | PersistenceFailed
)
Event: TypeAlias = TurnEvent | HostEvent


@dataclass(frozen=True, slots=True)
class Record:
    """One numbered line of a session's journal. ``at`` is seconds since the epoch (UTC), ``parent`` the id of the
    ToolCall of the sub-agent that the event belongs to."""

    seq: int
    at: float
    session: str
    turn: str | None
    parent: str | None
    event: Event


# ---- JSON -----------------------------------------------------------------------------------------------------------

_TURN_EVENTS: dict[str, type[Any]] = {
    "text": Text,
    "reasoning": Reasoning,
    "retract": Retract,
    "tool_call": ToolCall,
    "tool_result": ToolResult,
    "file_change": FileChange,
    "approval": Approval,
    "compaction": Compaction,
    "notice": Notice,
    "done": Done,
}
_HOST_EVENTS: dict[str, type[Any]] = {
    "accepted": Accepted,
    "started": Started,
    "model_call": ModelCall,
    "answered": Answered,
    "cancel_requested": CancelRequested,
    "file_staged": FileStaged,
    "file_removed": FileRemoved,
    "file_moved": FileMoved,
    "callback_failed": CallbackFailed,
    "snapshot_taken": SnapshotTaken,
    "snapshot_restored": SnapshotRestored,
    "forked": Forked,
    "checked_out": CheckedOut,
    "committed": Committed,
    "persistence_failed": PersistenceFailed,
}
_BY_NAME = {**_TURN_EVENTS, **_HOST_EVENTS}
_BY_TYPE = {cls: name for name, cls in _BY_NAME.items()}
_FIELDS = {cls: tuple(f.name for f in dataclasses.fields(cls) if f.name != "answer") for cls in _BY_TYPE}
_NESTED: dict[type[Any], Callable[[dict[str, Any]], dict[str, Any]]] = {
    Done: lambda d: {"result": result_from_dict(d["result"])},
    ModelCall: lambda d: {**d, "usage": Usage(**d["usage"]), "error": ErrorInfo(**d["error"]) if d["error"] else None},
    FileStaged: lambda d: {**d, "file": FileRef(**d["file"])},
    SnapshotTaken: lambda d: {**d, "skipped": tuple(d["skipped"])},
    Committed: lambda d: {**d, **{name: tuple(d[name]) for name in ("created", "updated", "deleted")}},
    PersistenceFailed: lambda d: {**d, "paths": tuple(d["paths"])},
}


def is_turn_event(event: Event) -> bool:
    """Whether a stream of the turn yields it (and not only the journal)."""
    return type(event) in _TURN_TYPES


_TURN_TYPES = frozenset(_TURN_EVENTS.values())


def event_to_dict(event: Event) -> dict[str, Any]:
    """A JSON-ready dict with the event's name under ``type``. A Result is written without its ``events``."""
    cls = type(event)
    return {"type": _BY_TYPE[cls], **{name: _plain(getattr(event, name)) for name in _FIELDS[cls]}}


# As the journal holds it: ASCII, without spaces, what is not JSON as its ``repr``.
dump = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=repr).encode


def _heads(cls: type[Any]) -> list[tuple[str, str]]:
    """Of each field of an event its name, and what stands before its value."""
    first = f'{{"type":"{_BY_TYPE[cls]}",'
    return [(name, f'{"," if index else first}"{name}":') for index, name in enumerate(_FIELDS[cls])]


_HEADS = {cls: _heads(cls) for cls in _BY_TYPE}


def event_to_json(event: Event) -> str:
    """The text of its `event_to_dict`, as the journal holds it."""
    parts = []
    for name, head in _HEADS[type(event)]:
        value = getattr(event, name)
        parts.append(head + dump(value if type(value) is str else _plain(value)))  # of a string it costs almost nothing
    return "".join(parts) + "}"


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return result_to_dict(value)
    if type(value) in _NAMES:
        return _flat(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)  # the app's own
    return value


# Those of which no field holds another one.
_NAMES = {
    cls: tuple(f.name for f in dataclasses.fields(cls)) for cls in (Usage, ErrorInfo, FileRef, FileChange, Persistence)
}


def _flat(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _NAMES[type(value)]}


def event_from_dict(data: dict[str, Any]) -> Event:
    """The inverse of `event_to_dict`. Raises ValueError for a name that this version does not know."""
    fields = dict(data)
    cls = _BY_NAME.get(fields.pop("type", ""))
    if cls is None:
        raise ValueError(f"Unknown event type {data.get('type')!r}: written by a newer hostler?")
    if nested := _NESTED.get(cls):
        fields = nested(fields)
    return cls(**fields)  # type: ignore[no-any-return]


_RESULT = tuple(f.name for f in dataclasses.fields(Result))


def result_to_dict(result: Result) -> dict[str, Any]:
    """A JSON-ready dict of a Result, without its ``events``."""
    return {
        **{name: getattr(result, name) for name in _RESULT},
        "files": tuple(map(_flat, result.files)),
        "events": (),
        "usage": _flat(result.usage),
        "error": None if result.error is None else _flat(result.error),
        "persistence": _flat(result.persistence),
        "artifacts": tuple(map(_flat, result.artifacts)),
    }


def result_from_dict(data: dict[str, Any]) -> Result:
    """The inverse of `result_to_dict`."""
    d = dict(data)
    d["usage"] = Usage(**d["usage"])
    d["error"] = ErrorInfo(**d["error"]) if d["error"] else None
    d["persistence"] = Persistence(d["persistence"]["status"], tuple(d["persistence"]["commits"]))
    d["files"] = tuple(FileChange(**f) for f in d["files"])
    d["artifacts"] = tuple(FileRef(**f) for f in d["artifacts"])
    d["warnings"] = tuple(d["warnings"])
    d["events"] = ()
    return Result(**d)
