"""Codex's rollout file to OpenAI-format messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hostler.runtimes.codex.items import content_text
from hostler.types.errors import CapabilityUnsupported

# What Codex itself puts before the user's words, as messages of the user.
_CONTEXT = re.compile(r"\s*(<[a-z_]+>|# AGENTS\.md instructions)")


def history(files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
    """All messages of the thread, those before a compaction included, and those of the threads that it was forked from."""
    messages: list[dict[str, Any]] = []
    for line in _lines(files, native_id):
        if line.get("type") == "response_item":
            _add(messages, line.get("payload") or {})
    return messages


def _lines(files: Mapping[str, bytes], thread: str) -> list[dict[str, Any]]:
    """The lines of a thread. A fork's file holds only what is its own; before that goes, of the file of the thread that
    it names, what has lower numbers than it says."""
    tails: list[list[dict[str, Any]]] = []
    end: int | None = None
    seen: set[str] = set()
    while thread not in seen:
        seen.add(thread)
        content = next((data for path, data in files.items() if path.endswith(f"-{thread}.jsonl")), None)
        if content is None:
            raise CapabilityUnsupported(f"There is no rollout file of the Codex thread {thread}.")
        lines = [line for line in map(_line, content.split(b"\n")) if line]
        tails.append([line for line in lines if end is None or int(line.get("ordinal") or 0) < end])
        about = lines[0].get("payload") if lines and lines[0].get("type") == "session_meta" else None
        if not isinstance(about, dict) or not about.get("forked_from_id"):
            break
        thread, limit = str(about["forked_from_id"]), about.get("forked_from_ordinal_exclusive")
        end = limit if end is None else min(end, limit) if isinstance(limit, int) else end
    return [line for tail in reversed(tails) for line in tail]


def _line(raw: bytes) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except ValueError:
        return {}  # empty, or torn
    return line if isinstance(line, dict) else {}


def _add(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    match item.get("type"):
        case "message" if item.get("role") == "user":
            if not _injected(item):
                messages.append({"role": "user", "content": _user_content(item.get("content") or [])})
        case "message" if item.get("role") == "assistant":
            messages.append({"role": "assistant", "content": content_text(item.get("content"))})
        case "function_call" | "custom_tool_call":
            given = item.get("arguments") if item["type"] == "function_call" else item.get("input")
            arguments = given if isinstance(given, str) else json.dumps(given)
            function = {"name": str(item.get("name")), "arguments": arguments}
            _assistant(messages).setdefault("tool_calls", []).append(
                {"id": item.get("call_id"), "type": "function", "function": function}
            )
        case "function_call_output" | "custom_tool_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else content_text(output)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant message that a tool call belongs to: the last one, or a new one without text."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _injected(item: dict[str, Any]) -> bool:
    passed = item.get("internal_chat_message_metadata_passthrough")
    kinds = passed.get("content_item_kinds") if isinstance(passed, dict) else None
    if kinds:
        return not any(str(kind).startswith("user.") for kind in kinds)
    return bool(_CONTEXT.match(content_text(item.get("content"))))


def _user_content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if all(part.get("type") == "input_text" for part in parts):
        return content_text(parts)
    out: list[dict[str, Any]] = []
    for part in parts:
        if part.get("type") == "input_image":
            out.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
        elif part.get("text"):
            out.append({"type": "text", "text": part["text"]})
    return out
