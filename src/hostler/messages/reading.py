"""What clients send as messages, to one form: OpenAI chat messages, AI SDK UI and model messages."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .values import File, Message, Part, ToolUse

_TEXTS = ("text", "input_text", "output_text", "refusal")
# What a client draws for its user's eyes, and what the model thought: no part of what was said.
_UNSAID = ("step-start", "reasoning", "thinking", "redacted_thinking", "source", "source-url", "source-document")
_DATA_URL = re.compile(r"data:(?P<media>[^,;]*)(?P<rest>[^,]*),(?P<data>.*)", re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair: in no encoding


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages that were said, each side's in turn, and what the ``system`` messages among them ask for."""

    messages: tuple[Message, ...]
    instructions: str | None = None


def read(messages: Any) -> Transcript:
    """Raises TypeError or ValueError that names the message and part which cannot be read."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError("messages must be a list of messages: messages=[{'role': 'user', 'content': '...'}].")
    system: list[str] = []
    said: list[Message] = []
    calls: dict[str, tuple[int, int]] = {}  # id of a tool call to where it is
    last: Any = None
    for number, given in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(given, Mapping):
            raise TypeError(f"{where} must be a dict with 'role', not {type(given).__name__}.")
        match given.get("role"):
            case "system" | "developer":
                system.append("\n".join(part for part in _parts(given, where) if isinstance(part, str)))
            case "user":
                said.append(Message("user", tuple(_parts(given, where)), _id(given)))
            case "assistant":
                _assistant(said, calls, given, where)
            case "tool" | "function":
                _results(said, calls, given, where)
            case role:
                raise ValueError(f"{where}.role must be system, user, assistant or tool, not {role!r}.")
        last = last if given["role"] in ("system", "developer") else given["role"]
    if not said:
        raise ValueError("messages holds nothing that was said: it needs at least one user message.")
    if said[-1].role == "user" and not said[-1].files and not said[-1].text.strip():
        raise ValueError("The last of messages is empty: a user message needs a text or a file.")
    if last == "assistant":
        raise ValueError(
            "The last of messages is from the assistant; the turn answers a user message, which goes last."
        )
    return Transcript(tuple(said), "\n\n".join(text for text in system if text.strip()) or None)


def _id(given: Mapping[str, Any]) -> str | None:
    id = given.get("id")
    return _clean(id) if isinstance(id, str) and id else None


# ---- the assistant's side ----------------------------------------------------------------------------------------


def _assistant(said: list[Message], calls: dict[str, tuple[int, int]], given: Mapping[str, Any], where: str) -> None:
    at = _answer(said, _id(given))
    new: list[Part] = []

    def call(id: Any, tool: ToolUse) -> None:
        calls[str(id)] = (at, len(said[at].parts) + len(new))
        new.append(tool)

    for part in _raw(given, where):
        kind = str(part.get("type"))
        if isinstance(text := part.get("text") or part.get("refusal"), str) and kind in _TEXTS:
            new.append(_clean(text))
        elif kind in ("tool-call", "tool_use"):
            call(part.get("toolCallId") or part.get("id"), _use(part.get("toolName") or part.get("name"), part))
        elif kind in ("tool-result", "tool_result"):
            said[at] = replace(said[at], parts=(*said[at].parts, *new))
            new = []
            _result(said, calls, part.get("toolCallId") or part.get("tool_use_id"), part)
        elif kind == "dynamic-tool" or kind.startswith("tool-"):
            new.append(_ui_tool(part, kind))
        elif kind in ("file", "image", "image_url"):
            with contextlib.suppress(ValueError):  # what the assistant made is the client's to keep in any form
                new.append(_file(part, kind, where))
    for tool in _mappings(given.get("toolInvocations")) if not isinstance(given.get("parts"), Sequence) else ():
        new.append(_ui_tool(tool, "dynamic-tool"))
    for tool in _mappings(given.get("tool_calls")):
        function = tool.get("function")
        function = function if isinstance(function, Mapping) else tool
        call(tool.get("id"), _use(function.get("name"), {"input": function.get("arguments")}))
    said[at] = replace(said[at], parts=(*said[at].parts, *new))


def _answer(said: list[Message], id: str | None) -> int:
    """Where the assistant's side of this exchange is collected."""
    if not said or said[-1].role != "assistant":
        said.append(Message("assistant", (), id))
    return len(said) - 1


def _results(said: list[Message], calls: dict[str, tuple[int, int]], given: Mapping[str, Any], where: str) -> None:
    content = given.get("content")
    parts = _mappings(content)
    if results := [part for part in parts if part.get("type") in ("tool-result", "tool_result")]:
        for part in results:
            _result(said, calls, part.get("toolCallId") or part.get("tool_use_id"), part)
        return
    text = content if isinstance(content, str) else "\n".join(str(part.get("text") or "") for part in parts)
    _result(said, calls, given.get("tool_call_id"), {"output": text, "toolName": given.get("name")})


def _result(said: list[Message], calls: dict[str, tuple[int, int]], id: Any, part: Mapping[str, Any]) -> None:
    output = _output(part.get("output", part.get("result", part.get("content"))))
    if (found := calls.get(str(id))) is None:  # the result of a call that was left out
        at = _answer(said, None)
        tool = ToolUse(_clean(str(part.get("toolName") or "tool")), "{}", output)
        said[at] = replace(said[at], parts=(*said[at].parts, tool))
        return
    at, index = found
    whole = list(said[at].parts)
    tool_use = whole[index]
    assert isinstance(tool_use, ToolUse)
    whole[index] = replace(tool_use, output=output)
    said[at] = replace(said[at], parts=tuple(whole))


def _use(name: Any, part: Mapping[str, Any]) -> ToolUse:
    given = part.get("input", part.get("args"))
    return ToolUse(_clean(str(name or "tool")), _clean(given) if isinstance(given, str) else _json(given or {}))


def _ui_tool(part: Mapping[str, Any], kind: str) -> ToolUse:
    name = part.get("toolName") or kind.removeprefix("tool-")
    failed = part.get("errorText")
    done = part.get("output", part.get("result"))
    output = _clean(str(failed)) if failed else None if done is None else _output(done)
    return replace(_use(name, part), output=output)


def _output(value: Any) -> str:
    if isinstance(value, Mapping) and set(value) <= {"type", "value", "providerOptions"} and "value" in value:
        value = value["value"]
    if texts := [str(v["text"]) for v in _mappings(value) if v.get("type") == "text" and "text" in v]:
        value = "\n".join(texts)
    return _clean(value) if isinstance(value, str) else "" if value is None else _json(value)


# ---- the user's side ---------------------------------------------------------------------------------------------


def _parts(given: Mapping[str, Any], where: str) -> Iterator[Part]:
    for number, part in enumerate(_raw(given, where)):
        kind = str(part.get("type"))
        text = part.get("text")
        if kind in _TEXTS and isinstance(text, str):
            yield _clean(text)
        elif kind in ("file", "image", "image_url", "input_image", "input_file", "input_audio"):
            yield _file(part, kind, f"{where}.parts[{number}]")
        elif kind not in _UNSAID and not kind.startswith("data-"):
            raise ValueError(
                f"{where}.parts[{number}] has the type {kind!r}, which a {given.get('role')} message cannot have."
            )


def _raw(given: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """The parts of a message: AI SDK's ``parts``, else its content; with the attachments of older AI SDKs."""
    content = given["parts"] if isinstance(given.get("parts"), Sequence) else given.get("content")
    if isinstance(content, str):
        parts: list[Mapping[str, Any]] = [{"type": "text", "text": content}]
    elif content is None:
        parts = []
    elif isinstance(content, Sequence) and all(isinstance(part, (str, Mapping)) for part in content):
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    else:
        raise TypeError(f"{where}.content must be a string or a list of parts, not {type(content).__name__}.")
    attachments = _mappings(given.get("experimental_attachments"))
    return [*parts, *({"type": "file", **attachment} for attachment in attachments)]


def _file(part: Mapping[str, Any], kind: str, where: str) -> File:
    """A file in any of the forms in which clients send one."""
    inner = part.get("file") or part.get("input_audio") or part.get("image_url")
    about: dict[str, Any] = dict(inner) if isinstance(inner, Mapping) else {}
    about = {**part, **about}
    media = _first(str, about, "mediaType", "media_type", "mimeType", "contentType")
    if media is None and isinstance(about.get("format"), str):
        media = f"audio/{about['format']}"
    name = _first(str, about, "filename", "name")
    content = _first(
        (str, bytes, bytearray, memoryview), about, "url", "image_url", "file_data", "data", "image", "file_url"
    )
    if content is None:
        raise ValueError(
            f"{where} is a {kind} without its content: give a data URL, a URL, base64 or bytes "
            "(an id of a file that a provider keeps cannot be read from here)."
        )
    media, name = (None if text is None else _clean(text) for text in (media, name))
    if not isinstance(content, str):
        return _of_bytes(bytes(content), name, media)
    content = _clean(content)
    if found := _DATA_URL.fullmatch(content):
        data = urllib.parse.unquote_to_bytes(found["data"])
        if found["rest"].endswith(";base64"):
            data = _decoded(data, where)
        return _of_bytes(data, name, media or found["media"] or None)
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", content):
        digest = hashlib.sha256(b"url:" + content.encode()).hexdigest()
        name = name or urllib.parse.unquote(urllib.parse.urlsplit(content).path.rpartition("/")[2]) or None
        return File(digest, name, media, url=content)
    return _of_bytes(_decoded(content.encode(), where), name, media)


def _of_bytes(data: bytes, name: str | None, media: str | None) -> File:
    return File(hashlib.sha256(data).hexdigest(), name, media, data)


def _decoded(data: bytes, where: str) -> bytes:
    data = data.translate(None, b" \t\r\n")
    try:
        return base64.b64decode(
            data + b"=" * (-len(data) % 4), altchars=b"-_" if b"-" in data or b"_" in data else None, validate=True
        )
    except (binascii.Error, ValueError):
        raise ValueError(f"{where} holds a file that is neither a data URL, a URL, nor base64.") from None


# ---- small things ------------------------------------------------------------------------------------------------


def _first(kinds: Any, about: Mapping[str, Any], *names: str) -> Any:
    return next((about[name] for name in names if isinstance(about.get(name), kinds) and about[name]), None)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, (list, tuple)) else []


def _clean(text: str) -> str:
    return _HALF.sub("\ufffd", text)


def _json(value: Any) -> str:
    try:
        return _clean(json.dumps(value, ensure_ascii=False, sort_keys=True, default=str))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The data of a tool is no JSON: {error}.") from None
