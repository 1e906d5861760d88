"""How far a session's program was read: the pure fold around a codec that a crash may cut at any item."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .types.events import (
    Approval,
    CallbackFailed,
    Event,
    ModelCall,
    Notice,
    Reasoning,
    Retract,
    Text,
    ToolCall,
    ToolResult,
)
from .types.result import ErrorInfo
from .types.runtime import (
    Answer,
    Codec,
    CodecEvent,
    Command,
    Ended,
    Folded,
    Frame,
    Identified,
    In,
    Prompt,
    Send,
    ServerMissing,
    StepStarted,
    Unfit,
    Withhold,
)

_STDERR = 4096  # bytes of the program's stderr that are kept for errors
_VERSION = 1

HOST_ASKS = "host:"  # how the ids of questions begin that are the host's own: the program knows nothing of them


@dataclass(frozen=True, slots=True)
class Again:
    """The program has ended the turn with an answer that does not do: the same turn goes on with another prompt."""

    text: str
    schema: Mapping[str, Any] | None = None


Item = Frame | ModelCall | CallbackFailed | Approval | Command | Again


@dataclass(frozen=True, slots=True)
class Progress:
    """What is stored with every step: the codec's state, the inputs that the program's log does not show yet
    (``owed``; sent again after a crash), the open turn, what was counted in it, and the state of the masking."""

    codec: dict[str, Any]
    version: int
    owed: tuple[Send, ...] = ()
    turn: str | None = None
    steps: int = 0
    stop: str | None = None
    stderr: bytes = b""
    exited: int | None = None
    frame: int = 0
    masking: Mapping[str, Any] = field(default_factory=dict)
    asked_again: bool = False
    begun: int = 0  # the frame in which the program was given the open turn's prompt
    withheld: bool = False  # model calls wait for what the program has to say first

    def to_dict(self) -> dict[str, Any]:
        return {
            "v": _VERSION,
            "codec": self.codec,
            "codec_version": self.version,
            "owed": [[s.key, _text(s.data)] for s in self.owed],
            "turn": self.turn,
            "steps": self.steps,
            "stop": self.stop,
            "stderr": _text(self.stderr),
            "exited": self.exited,
            "frame": self.frame,
            "masking": self.masking,
            "asked_again": self.asked_again,
            "begun": self.begun,
            "withheld": self.withheld,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Progress:
        return cls(
            data["codec"],
            data["codec_version"],
            tuple(Send(key, _bytes(text)) for key, text in data["owed"]),
            data["turn"],
            data["steps"],
            data["stop"],
            _bytes(data["stderr"]),
            data["exited"],
            data["frame"],
            data["masking"],
            data.get("asked_again", False),
            data.get("begun", 1 if data["turn"] else 0),
            data.get("withheld", False),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What one item gave. ``end`` is set when the turn is over, ``unfit`` when the program must not go on."""

    progress: Progress
    events: tuple[tuple[Event, str | None], ...] = ()
    sends: tuple[Send, ...] = ()
    native_id: str | None = None
    end: Ended | None = None
    unfit: str | None = None
    missing: frozenset[str] = frozenset()  # MCP servers that did not start


def begun(codec: Codec, folded: Folded) -> Progress:
    """The progress of a program that was just started."""
    return Progress(folded.state, codec.version, owed=folded.sends)


def advance(codec: Codec, progress: Progress, item: Item) -> Step:
    """Fold one item: a frame of the program's log, what the host itself saw, or a command from outside."""
    read: dict[str, Any] = {}
    owed = progress.owed
    if isinstance(item, Frame):
        read["frame"] = item.no
        if item.kind == "in":
            owed = tuple(s for s in owed if s.key != item.key)
            read["begun"] = item.no if item.key == progress.turn else progress.begun
        elif item.kind == "err":
            read["stderr"] = (progress.stderr + item.data)[-_STDERR:]
        elif item.kind == "exit":
            read["exited"] = _exit_code(item.data)
        folded = _fold(codec, progress, item)
    elif isinstance(item, ModelCall):
        folded = _fold(codec, progress, item)
        folded = replace(folded, events=(item, *folded.events))
    elif isinstance(item, (CallbackFailed, Approval)):
        folded = Folded(progress.codec, (item,))
    elif isinstance(item, Again):
        read["asked_again"] = True
        folded = codec.encode(progress.codec, Prompt(f"{progress.turn}:again", item.text, schema=item.schema))
    elif isinstance(item, Answer) and item.id.startswith(HOST_ASKS):
        folded = Folded(progress.codec)
    else:
        if isinstance(item, Prompt):
            read = {"turn": item.turn, "steps": 0, "stop": None, "asked_again": False, "begun": 0, "withheld": False}
        folded = codec.encode(progress.codec, item)
    return _sorted(replace(progress, **read, codec=folded.state, owed=owed + folded.sends), folded)


def _sorted(progress: Progress, folded: Folded) -> Step:
    events: list[tuple[Event, str | None]] = []
    native_id: str | None = None
    end: Ended | None = None
    unfit: str | None = None
    missing: frozenset[str] = frozenset()
    for event in folded.events:
        match event:
            case Ended():
                end = end or event
            case Identified():
                native_id = event.native_id
            case StepStarted():
                progress = replace(progress, steps=progress.steps + 1)
            case Withhold(on):
                progress = replace(progress, withheld=on)
            case ServerMissing(name):
                missing |= {name}
            case Unfit():
                unfit = event.message
            case In():
                events.append((event.event, event.parent))
            case _:
                events.append((event, None))
    if progress.exited is not None and progress.turn is not None and (end is None or _only_exited(end)):
        end = Ended("error", error=exit_error(progress))
    return Step(progress, tuple(events), folded.sends, native_id, end, unfit, missing)


def _only_exited(end: Ended) -> bool:
    return end.error is not None and end.error.code == "program_exited"


def _fold(codec: Codec, progress: Progress, item: Frame | ModelCall) -> Folded:
    try:
        folded = codec.fold(progress.codec, item)
    except Exception as error:  # one frame that nobody foresaw must not cost the turn
        return Folded(progress.codec, (_not_understood(f"{type(error).__name__}: {error}", item),))
    if odd := [event for event in folded.events if not _is_sound(event)]:
        sound = tuple(event for event in folded.events if event not in odd)
        return replace(folded, events=(*sound, _not_understood(f"{odd[0]!r}"[:200], item)))
    return folded


def _not_understood(why: str, item: Frame | ModelCall) -> Notice:
    seen = item.data[:200] if isinstance(item, Frame) else item
    return Notice("not_understood", f"{why}; seen: {seen!r}")


_STRINGS: dict[type[Any], tuple[str, ...]] = {
    Text: ("item", "delta"),
    Reasoning: ("item", "delta"),
    Retract: ("item",),
    ToolCall: ("id", "name", "native_name"),
    ToolResult: ("id", "output"),
    Approval: ("id", "tool"),
    Notice: ("code", "message"),
    Identified: ("native_id",),
}


def _is_sound(event: CodecEvent) -> bool:
    """Whether what must be text is text: a program may send anything where its protocol has a string."""
    if isinstance(event, In):
        event = event.event
    return all(type(getattr(event, name)) is str for name in _STRINGS.get(type(event), ()))


# What colours a terminal or moves its cursor; and other control characters.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?|[\0-\x08\x0b-\x1f\x7f-\x9f]"
)


def last_words(progress: Progress) -> str:
    """The end of what the program wrote to its stderr, as plain text."""
    said = progress.stderr.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return _ESCAPES.sub("", said).strip()[-2000:]


def exit_error(progress: Progress) -> ErrorInfo:
    """Why a program that ended in mid-turn did so, as far as it said."""
    said = last_words(progress)
    how = f"with code {progress.exited}" if (progress.exited or 0) >= 0 else f"by signal {-(progress.exited or 0)}"
    return ErrorInfo(
        "program_exited",
        f"The program ended {how} in the middle of the turn, without a result."
        + (f" Its last words: {said}" if said else " It wrote nothing to stderr."),
        retryable=True,
    )


def text_of(events: Iterable[Event], *, whole: bool = False) -> str:
    """The answer that was streamed: the text after the last tool call, without what was retracted; with ``whole`` also
    the text before it."""
    return "".join("".join(deltas) for deltas in _answer(events, whole).values())


def items_of(events: Iterable[Event]) -> tuple[str, ...]:
    """The items that this answer was streamed under."""
    return tuple(_answer(events, whole=False))


def _answer(events: Iterable[Event], whole: bool) -> dict[str, list[str]]:
    pieces: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, Text):
            pieces.setdefault(event.item, []).append(event.delta)
        elif isinstance(event, Retract):
            pieces.pop(event.item, None)
        elif isinstance(event, ToolCall) and not whole:
            pieces.clear()
    return pieces


def _exit_code(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        return -1


def _text(data: bytes) -> str:
    """Bytes in JSON: as they are when they are text, else base64 behind a NUL."""
    try:
        text = data.decode()
        if not text.startswith("\0"):
            return text
    except UnicodeDecodeError:
        pass
    return "\0" + base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text[1:]) if text.startswith("\0") else text.encode()
