"""Messages in one form, whatever form their client sent them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class File:
    """A file part. ``digest`` tells one content from another. ``data`` or ``url`` is what was given; ``path``, ``bytes``
    and ``sha256`` say where it was put since then."""

    digest: str
    name: str | None = None
    media_type: str | None = None
    data: bytes | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    path: str | None = None
    bytes: int = 0
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call in a transcript, with its result if there is one. ``input`` is JSON text."""

    name: str
    input: str
    output: str | None = None


Part: TypeAlias = str | File | ToolUse


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said until the other one spoke. ``id`` is the client's own."""

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]
    id: str | None = None

    @property
    def text(self) -> str:
        """All text, a line for each part."""
        return "\n".join(part for part in self.parts if isinstance(part, str))

    @property
    def files(self) -> tuple[File, ...]:
        return tuple(part for part in self.parts if isinstance(part, File))

    @property
    def tools(self) -> tuple[ToolUse, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolUse))


_STORED = tuple(f.name for f in fields(File) if f.name != "data")


def to_json(messages: Sequence[Message]) -> list[Any]:
    """For the inbox; the bytes of files are not in it."""
    return [[m.role, m.id, [_part_to_json(part) for part in m.parts]] for m in messages]


def from_json(stored: Sequence[Any]) -> tuple[Message, ...]:
    """The inverse of `to_json`."""
    return tuple(Message(role, tuple(map(_part_from_json, parts)), id) for role, id, parts in stored)


def _part_to_json(part: Part) -> Any:
    match part:
        case str():
            return part
        case ToolUse():
            return {"tool": [part.name, part.input, part.output]}
        case File():
            return {"file": {name: value for name in _STORED if (value := getattr(part, name))}}


def _part_from_json(stored: str | Mapping[str, Any]) -> Part:
    if isinstance(stored, str):
        return stored
    return ToolUse(*stored["tool"]) if "tool" in stored else File(**stored["file"])
