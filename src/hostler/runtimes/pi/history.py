"""Pi's session file to OpenAI-format messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hostler.runtimes.jsonrpc import obj, objs
from hostler.runtimes.pi.telling import text_of
from hostler.types.errors import CapabilityUnsupported

_NO_RESULT = "The transcript holds no result of this call."


def history(files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
    """All messages on the way from the conversation's root to its last entry, those before a compaction included; the
    entries of the file are a tree. Answers that failed and were asked for again are not among them."""
    content = next((data for path, data in files.items() if path.endswith(f"_{native_id}.jsonl")), None)
    if content is None:
        raise CapabilityUnsupported(f"There is no session file of the Pi conversation {native_id}.")
    entries = [entry for entry in map(_entry, content.split(b"\n")) if isinstance(entry.get("id"), str)]
    entries = [entry for entry in entries if entry.get("type") != "session"]
    said = [obj(entry.get("message")) for entry in _way(entries) if entry.get("type") == "message"]
    results = {m.get("toolCallId"): text_of(m.get("content")) for m in said if m.get("role") == "toolResult"}
    messages: list[dict[str, Any]] = []
    for message in said:
        if message.get("role") == "user":
            messages.append({"role": "user", "content": _user(message.get("content"))})
        elif message.get("role") == "assistant" and message.get("stopReason") not in ("error", "aborted"):
            messages += _assistant(message, results)
    return messages


def _entry(raw: bytes) -> dict[str, Any]:
    try:
        return obj(json.loads(raw))
    except (ValueError, RecursionError):
        return {}  # empty, or torn


def _way(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_id = {entry["id"]: entry for entry in entries}
    way: list[dict[str, Any]] = []
    entry = entries[-1] if entries else None
    while entry is not None and len(way) < len(entries):
        way.append(entry)
        entry = by_id.get(str(entry.get("parentId")))
    return way[::-1]


def _user(content: Any) -> str | list[dict[str, Any]]:
    images = [part for part in objs(content) if part.get("type") == "image"]
    text = text_of(content)
    if not images:
        return text
    urls = [f"data:{image.get('mimeType')};base64,{image.get('data')}" for image in images]
    return [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]


def _assistant(message: dict[str, Any], results: Mapping[Any, str]) -> list[dict[str, Any]]:
    """One model call, and the answers of the tools that it called."""
    parts = objs(message.get("content"))
    text = "".join(str(part.get("text") or "") for part in parts if part.get("type") == "text")
    calls = [part for part in parts if part.get("type") == "toolCall"]
    if not text and not calls:
        return []
    out: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        out["tool_calls"] = [_call(call) for call in calls]
    answers = [(call.get("id"), results.get(call.get("id"), _NO_RESULT)) for call in calls]
    return [out, *({"role": "tool", "tool_call_id": id, "content": text} for id, text in answers)]


def _call(part: dict[str, Any]) -> dict[str, Any]:
    function = {"name": str(part.get("name")), "arguments": json.dumps(part.get("arguments"))}
    return {"id": part.get("id"), "type": "function", "function": function}
