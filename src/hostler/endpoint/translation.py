"""What of a program's request can be asked of an upstream that speaks another wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .routes import WireName

# An allow-list: LiteLLM takes its own settings (addresses, callbacks, fallbacks) from the same keywords.
_FIELDS: Mapping[WireName, frozenset[str]] = {
    "anthropic": frozenset(
        [
            "messages",
            "system",
            "max_tokens",
            "stream",
            "temperature",
            "top_p",
            "top_k",
            "stop_sequences",
            "tools",
            "tool_choice",
            "thinking",
            "output_config",
        ]
    ),
    "responses": frozenset(
        [
            "input",
            "instructions",
            "stream",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "reasoning",
            "text",
            "temperature",
            "top_p",
            "max_output_tokens",
            "include",
        ]
    ),
    "chat": frozenset(
        [
            "messages",
            "stream",
            "stream_options",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "temperature",
            "top_p",
            "max_tokens",
            "max_completion_tokens",
            "stop",
            "reasoning_effort",
            "response_format",
        ]
    ),
}
_REQUIRED: Mapping[WireName, str] = {"anthropic": "messages", "responses": "input", "chat": "messages"}
# Every other kind of tool is run by the provider of the wire: the other one does not have it.
_TOOLS = frozenset({None, "function", "custom", "namespace"})


class Untranslatable(Exception):
    """The request cannot be asked in another wire."""


def translatable(wire: WireName, body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request that means something to a provider of another wire."""
    name = _REQUIRED[wire]
    if not isinstance(body.get(name), str if wire == "responses" and isinstance(body.get(name), str) else list):
        raise Untranslatable(f"{name} is missing or of the wrong type")
    request = {key: value for key, value in body.items() if key in _FIELDS[wire] and value is not None}
    tools = request.get("tools")
    if isinstance(tools, list):
        request["tools"] = [t for t in tools if isinstance(t, dict) and t.get("type") in _TOOLS]
    if not request.get("tools"):
        for key in ("tools", "tool_choice", "parallel_tool_calls"):
            request.pop(key, None)
    if wire == "anthropic":
        request["messages"] = [_as_user(message) for message in request["messages"]]
        request.setdefault("max_tokens", 4096)  # the wire demands it, and so does the translation
    if wire == "chat" and request.get("stream"):
        request["stream_options"] = {"include_usage": True}
    return request


def _as_user(message: Any) -> Any:
    """Claude Code gives its reminders to some models in the system's name between the messages; to all others, as
    here, in the user's name and marked."""
    if not isinstance(message, dict) or message.get("role") != "system":
        return message
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [str(block.get("text", "")) for block in blocks if isinstance(block, dict)]
    said = [{"type": "text", "text": f"<system-reminder>\n{text}\n</system-reminder>"} for text in texts]
    return {"role": "user", "content": said}
