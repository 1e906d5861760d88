"""What the answers on each model wire say: tokens, errors and whether the answer is whole. Pure translation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from . import bodies, google
from .routes import WireName

PATHS: Mapping[str, WireName] = {
    "/v1/messages": "anthropic",
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
}

# Fields by which a request could leave the session's model, key or upstream (gateways read them from the body).
_FOREIGN = frozenset(
    {
        "api_base",
        "api_key",
        "api_version",
        "base_url",
        "content_policy_fallbacks",
        "context_window_fallbacks",
        "custom_llm_provider",
        "fallbacks",
        "mock_response",
        "mock_timeout",
        "model_list",
        "models",
        "user_config",
    }
)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token counts of one call; None where they were not told. ``input`` holds all input, cached included;
    ``cache_write`` holds ``cache_write_1h``, the part that is kept for an hour at another price."""

    input: int | None = None
    output: int | None = None
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0

    @property
    def known(self) -> bool:
        return self.input is not None and self.output is not None


@dataclass(frozen=True, slots=True)
class Seen:
    """What an answer has said so far. ``whole``: its last event came. ``stopped``: the model said why it stopped, so
    that a clean end is an end. ``error``: (type or code, message) of an error told in the stream."""

    tokens: Tokens = field(default_factory=Tokens)
    whole: bool = False
    stopped: bool = False
    error: tuple[str, str] | None = None
    cost: float | None = None


def count(value: object) -> int | None:
    """A token count, or None for anything that is not one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if value >= 0 and value == value and value != float("inf") else None


def number(value: object) -> float | None:
    """A non-negative finite number of dollars from a header or a field, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        amount = float(value)
    except ValueError:
        return None
    return amount if 0 <= amount < float("inf") else None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def pin(body: dict[str, Any], model: str, wire: WireName, *, gateway: bool = False) -> dict[str, Any]:
    """The request as it goes upstream: the session's model, no way around it, and usage reported."""
    sent = {k: v for k, v in body.items() if k not in _FOREIGN and not k.startswith("litellm")}
    if wire == "gemini":
        return {k: v for k, v in sent.items() if k != "model"}  # it is named in the path
    sent["model"] = model
    if wire == "chat" and sent.get("stream") is True:
        sent["stream_options"] = {**_dict(sent.get("stream_options")), "include_usage": True}
    if gateway and wire != "anthropic":
        sent["drop_params"] = True  # the group's provider need not know all that a program says; LiteLLM refuses else
    return sent


# ---- usage ----------------------------------------------------------------------------------------------------------


def anthropic_tokens(usage: object, before: Tokens = Tokens()) -> Tokens:
    """Counts are cumulative over the events of a stream; gateways tell some of them only in the first or last one."""
    told = _dict(usage)
    plain = count(told.get("input_tokens"))
    read = max(before.cache_read, count(told.get("cache_read_input_tokens")) or 0)
    write = max(before.cache_write, count(told.get("cache_creation_input_tokens")) or 0)
    earlier = None if before.input is None else before.input - before.cache_read - before.cache_write
    best = max((n for n in (plain, earlier) if n is not None), default=None)
    output = max((n for n in (count(told.get("output_tokens")), before.output) if n is not None), default=None)
    hour = count(_dict(told.get("cache_creation")).get("ephemeral_1h_input_tokens")) or 0
    hour = min(write, max(before.cache_write_1h, hour))
    return Tokens(None if best is None else best + read + write, output, read, write, hour)


def openai_tokens(usage: object) -> Tokens:
    """Of Responses and Chat Completions, which differ in names only."""
    told = _dict(usage)
    details = _dict(told.get("input_tokens_details") or told.get("prompt_tokens_details"))
    given = count(told.get("input_tokens", told.get("prompt_tokens")))
    output = count(told.get("output_tokens", told.get("completion_tokens")))
    read = count(details.get("cached_tokens")) or 0
    return Tokens(given, output, read if given is None else min(read, given))


def google_tokens(usage: object) -> Tokens:
    given, output, cached = (count(value) for value in google.counts(usage))
    return Tokens(given, output, min(cached or 0, given) if given is not None else 0)


# ---- streams --------------------------------------------------------------------------------------------------------


def absorb(wire: WireName, seen: Seen, data: bytes) -> Seen:
    """``seen`` after the data of one more server-sent event. Whatever it is, never an exception."""
    if wire == "chat" and data == b"[DONE]":
        return replace(seen, whole=True)
    if wire != "chat" and not any(word in data for word in _WORDS[wire]):
        return seen
    event = bodies.loads(data)
    if not isinstance(event, dict):
        return seen
    return _ABSORB[wire](seen, event)


def _absorb_anthropic(seen: Seen, event: dict[str, Any]) -> Seen:
    kind = event.get("type")
    if kind == "message_start":
        usage = _dict(event.get("message")).get("usage")
        # the output count of this event is a placeholder: the true one comes with message_delta
        opening = replace(anthropic_tokens(usage, seen.tokens), output=None)
        return replace(seen, tokens=opening)
    if kind == "message_delta":
        usage = event.get("usage")
        stopped = seen.stopped or bool(_dict(event.get("delta")).get("stop_reason"))
        tokens = anthropic_tokens(usage, seen.tokens)
        return replace(seen, tokens=tokens, stopped=stopped, cost=_cost(usage, seen))
    if kind == "message_stop":
        return replace(seen, whole=True)
    if kind == "error":
        return replace(seen, error=_error(event))
    return seen


def _absorb_responses(seen: Seen, event: dict[str, Any]) -> Seen:
    kind = event.get("type")
    if kind in ("response.completed", "response.incomplete", "response.failed"):
        response = _dict(event.get("response"))
        usage = response.get("usage")
        seen = replace(seen, tokens=openai_tokens(usage), cost=_cost(usage, seen))
        return replace(seen, error=_error(response)) if kind == "response.failed" else replace(seen, whole=True)
    if kind == "error":
        return replace(seen, error=_error(event))
    return seen


def _absorb_chat(seen: Seen, event: dict[str, Any]) -> Seen:
    if event.get("error"):
        return replace(seen, error=_error(event))
    if isinstance(event.get("usage"), dict):
        seen = replace(seen, tokens=openai_tokens(event["usage"]), cost=_cost(event["usage"], seen))
    choices = event.get("choices")
    if isinstance(choices, list) and any(_dict(c).get("finish_reason") for c in choices):
        seen = replace(seen, stopped=True)
    return seen


def _absorb_google(seen: Seen, event: dict[str, Any]) -> Seen:
    if (error := google.error_of(event)) is not None:
        return replace(seen, error=error)
    if isinstance(event.get("usageMetadata"), dict):
        seen = replace(seen, tokens=google_tokens(event["usageMetadata"]))
    return replace(seen, stopped=True) if google.has_stopped(event) else seen


_ABSORB = {
    "anthropic": _absorb_anthropic,
    "responses": _absorb_responses,
    "chat": _absorb_chat,
    "gemini": _absorb_google,
}
_WORDS = {
    "anthropic": (b"message_", b'"error"'),
    "responses": (b"response.completed", b"response.incomplete", b"response.failed", b'"error"'),
    "gemini": google.WORDS,
}


def _cost(usage: object, seen: Seen) -> float | None:
    """The cost that gateways add to the usage of a stream, whose headers are sent before it is known."""
    told = number(_dict(usage).get("cost"))
    return seen.cost if told is None else told


class Events:
    """Cuts a byte stream into the data of its server-sent events."""

    LIMIT = 32 * 1024 * 1024  # of one event; a larger one is passed on but not read

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        blocks = (self._rest + chunk.replace(b"\r", b"")).split(b"\n\n")
        self._rest = blocks.pop()[-self.LIMIT :]
        return [data for block in blocks if (data := _data(block))]


def _data(block: bytes) -> bytes:
    lines = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


# ---- whole answers and errors ---------------------------------------------------------------------------------------


def read_whole(wire: WireName, body: bytes) -> Seen | None:
    """What an answer that was not streamed says; None when it is no model answer."""
    answer = bodies.loads(body)
    if not isinstance(answer, dict):
        return None
    if wire == "gemini":
        return Seen(google_tokens(answer.get("usageMetadata")), whole=True, stopped=True)
    usage = answer.get("usage")
    tokens = anthropic_tokens(usage) if wire == "anthropic" else openai_tokens(usage)
    return Seen(tokens, whole=True, stopped=True, cost=number(_dict(usage).get("cost")))


def _error(event: Mapping[str, Any]) -> tuple[str, str]:
    error = event.get("error", event)
    if not isinstance(error, dict):
        return "", str(error)
    return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")


def read_error(body: bytes) -> tuple[str, str]:
    """(type or code, message) of an error answer in any of the shapes that providers and gateways use."""
    answer = bodies.loads(body)
    if isinstance(answer, dict):
        kind, message = _error(answer)
        return kind, message or str(answer.get("detail") or "")
    return "", " ".join(body.decode(errors="replace").split())[:500]


def write_error(wire: WireName, kind: str, message: str) -> bytes:
    """An error answer as the wire's clients read it."""
    if wire == "gemini":
        return google.error_body(kind, message)
    if wire == "anthropic":
        answer: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        # "server_error" and the like as the type make clients repeat the call, whatever the status says
        answer = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": kind}}
    return json.dumps(answer).encode()


def stream_error(wire: WireName, answer: bytes) -> bytes:
    """An error answer as the last event of a stream, of a kind that clients do not repeat."""
    if wire == "responses":
        error = {"code": "invalid_prompt", "message": read_error(answer)[1]}
        response = {"id": "resp_failed", "object": "response", "status": "failed", "output": [], "error": error}
        kind, answer = "response.failed", json.dumps({"type": "response.failed", "response": response}).encode()
    else:
        kind = "error"
    return (b"" if wire in ("chat", "gemini") else f"event: {kind}\n".encode()) + b"data: " + answer + b"\n\n"
