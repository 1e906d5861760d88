"""Gemini CLI's chat file to OpenAI-format messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hostler.runtimes.acp.prompting import GO_ON
from hostler.runtimes.gemini_cli.words import NO_COMMAND
from hostler.runtimes.jsonrpc import obj, objs
from hostler.types.errors import CapabilityUnsupported

_OWN = ("<session_context>", "<hook_context>")  # what it says itself in the user's name


def history(files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
    """All messages of the conversation. The file is a log: a message that is told again replaces what was told of it."""
    for path, content in sorted(files.items()):
        records = [record for record in map(_record, content.split(b"\n")) if record]
        if path.endswith(f"-{native_id[:8]}.jsonl") and records and records[0].get("sessionId") == native_id:
            return [message for record in _said(records).values() for message in _messages(record)]
    raise CapabilityUnsupported(f"There is no chat file of the Gemini CLI session {native_id}.")


def _record(raw: bytes) -> dict[str, Any]:
    try:
        return obj(json.loads(raw))
    except (ValueError, RecursionError):
        return {}  # empty, or torn


def _said(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    said: dict[str, dict[str, Any]] = {}
    for record in records:
        if isinstance(back := record.get("$rewindTo"), str):
            kept = list(said)[: list(said).index(back)] if back in said else []
            said = {id: said[id] for id in kept}
        elif isinstance(messages := obj(record.get("$set")).get("messages"), list):
            said = {str(m.get("id")): m for m in objs(messages)}
        elif isinstance(record.get("id"), str) and record.get("type"):
            said[record["id"]] = record
    return said


def _messages(record: dict[str, Any]) -> list[dict[str, Any]]:
    parts = record.get("content")
    texts = [parts] if isinstance(parts, str) else [p["text"] for p in objs(parts) if isinstance(p.get("text"), str)]
    text = "".join(texts)
    if record.get("type") == "user":
        return _user(text, objs(parts))
    if record.get("type") != "gemini":
        return []
    calls = objs(record.get("toolCalls"))
    if not text and not calls:
        return []
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return [message, *({"role": "tool", "tool_call_id": call.get("id"), "content": _output(call)} for call in calls)]


def _user(text: str, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    text = text.removeprefix(NO_COMMAND)
    if text == GO_ON or text.lstrip().startswith(_OWN) or any("functionResponse" in part for part in parts):
        return []
    images = [obj(part.get("inlineData")) for part in parts if "inlineData" in part]
    if not images:
        return [{"role": "user", "content": text}] if text else []
    urls = [f"data:{image.get('mimeType')};base64,{image.get('data')}" for image in images]
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": text}, *shown]}]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": str(call.get("name")), "arguments": json.dumps(call.get("args"))}
    return {"id": call.get("id"), "type": "function", "function": function}


def _output(call: dict[str, Any]) -> str:
    """What the model was told."""
    told = [obj(obj(part.get("functionResponse")).get("response")) for part in objs(call.get("result"))]
    texts = [str(answer.get("output") or answer.get("error") or "") for answer in told]
    return "\n".join(text for text in texts if text) or "interrupted"
