"""Qwen Code's chat file to OpenAI-format messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hostler.runtimes.jsonrpc import obj, objs
from hostler.runtimes.lines import decode_line
from hostler.types.errors import CapabilityUnsupported


def history(files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
    """All messages of the session, oldest first. A record names the one before it: those of a branch that was left are
    passed over."""
    content = next((data for path, data in files.items() if path.endswith(f"/{native_id}.jsonl")), None)
    if content is None:
        raise CapabilityUnsupported(f"There is no chat file of the Qwen Code session {native_id}.")
    records = [record for line in content.split(b"\n") for record in decode_line(line).objects]
    by_id = {record.get("uuid"): record for record in records}
    path: list[dict[str, Any]] = []
    here = records[-1] if records else None
    while here is not None and len(path) <= len(records):
        path.append(here)
        here = by_id.get(here.get("parentUuid"))
    return [message for record in reversed(path) for message in _messages(record)]


def _messages(record: dict[str, Any]) -> list[dict[str, Any]]:
    parts = objs(obj(record.get("message")).get("parts"))
    match record.get("type"):
        case "user" if record.get("provenance", "real_user") == "real_user":
            return _user(parts)
        case "assistant":
            return _assistant(parts)
        case "tool_result":
            answers = [obj(part.get("functionResponse")) for part in parts if part.get("functionResponse")]
            return [{"role": "tool", "tool_call_id": a.get("id"), "content": _output(a)} for a in answers]
    return []


def _user(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    text = "\n".join(str(part["text"]) for part in parts if part.get("text"))
    images = [obj(part.get("inlineData")) for part in parts if part.get("inlineData")]
    if not images:
        return [{"role": "user", "content": text}] if text else []
    urls = [f"data:{image.get('mimeType')};base64,{image.get('data')}" for image in images]
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": text}, *pictures]}]


def _assistant(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    text = "".join(str(part["text"]) for part in parts if part.get("text") and not part.get("thought"))
    calls = [obj(part.get("functionCall")) for part in parts if part.get("functionCall")]
    if not text and not calls:
        return []
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": str(call.get("name")), "arguments": json.dumps(obj(call.get("args")))},
            }
            for call in calls
        ]
    return [message]


def _output(answer: dict[str, Any]) -> str:
    response = obj(answer.get("response"))
    return str(response.get("output") or response.get("error") or "")
