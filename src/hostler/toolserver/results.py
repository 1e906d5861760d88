"""What a function returned, in the form in which the model is told of it: as it is, or as a file and what is in that."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

LIMIT = 16 * 1024  # bytes of a result that the model is given as it is
_PREVIEW = 2000  # characters
_DEPTH = 4
_KEYS = 20
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpg"),
    (b"GIF8", "gif"),
    (b"%PDF-", "pdf"),
    (b"PK\x03\x04", "zip"),
    (b"\x1f\x8b", "gz"),
)


@dataclass(frozen=True, slots=True)
class Shaped:
    """A result to be told as ``text``; or, where ``data`` is there, to be put into a file that ends in ``ext``, with
    ``text`` for what is in it."""

    text: str
    data: bytes | None = None
    ext: str = ""


def shape(value: Any) -> Shaped:
    """A string as it is, bytes as a file, everything else as JSON; what is larger than 16 KB as a file."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        ext = _ext(data)
        if ext != "txt":
            return Shaped(f"{len(data)} bytes", data, ext)
        return Shaped(_outline(data.decode(), None), data, ext)
    text = answer_text(value)
    data = text.encode("utf-8", "replace")
    if len(data) <= LIMIT:
        return Shaped(text)
    content = _loaded(text)
    return Shaped(_outline(text, content), data, "txt" if content is None else "json")


def told(shaped: Shaped, path: str | None, why_not: str = "") -> str:
    """The words for the model about a result that was put at ``path``, or could not be."""
    if path is None:
        return f"The result is too large to be told and could not be put into a file: {why_not}\n{shaped.text}"
    return f"The result was put into the file {path}\n{shaped.text}"


def answer_text(value: Any) -> str:
    """A string as it is, everything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return to_json(value, bytes_mode="base64", fallback=repr).decode()
    except PydanticSerializationError:
        return repr(value)


def structure(value: Any, depth: int = _DEPTH) -> str:
    """What kind of JSON value it is, a few levels deep: ``{"id": integer, "rows": 3000 of {"name": string}}``."""
    match value:
        case dict() if depth:
            known = [f"{json.dumps(key)}: {structure(value[key], depth - 1)}" for key in list(value)[:_KEYS]]
            more = [f"{len(value) - _KEYS} more keys"] if len(value) > _KEYS else []
            return "{" + ", ".join(known + more) + "}"
        case dict():
            return "object"
        case list():
            kinds = list(dict.fromkeys(structure(item, depth - 1) for item in value[:100])) if depth else []
            return f"{len(value)} of {' or '.join(kinds[:3])}" if kinds else f"{len(value)} items"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
    return "null"


def _outline(text: str, content: Any) -> str:
    size = f"{len(text.encode('utf-8', 'replace'))} bytes, {text.count(chr(10)) + 1} lines of text"
    if content is not None:
        size = f"{len(text.encode('utf-8', 'replace'))} bytes of JSON: {structure(content)}"
    cut = "" if len(text) <= _PREVIEW else f" (the first {_PREVIEW} characters)"
    return f"{size}\nIt begins{cut}:\n{text[:_PREVIEW]}"


def _loaded(text: str) -> Any:
    """The objects and lists that a text is as JSON; None for other texts."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _ext(data: bytes) -> str:
    for magic, ext in _MAGIC:
        if data.startswith(magic):
            return ext
    try:
        return "bin" if "\0" in data.decode() else "txt"
    except UnicodeDecodeError:
        return "bin"
