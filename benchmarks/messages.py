"""What ``context="auto"`` saves beside ``"replay"``: input tokens at the wire over a chat of 30 turns.

The client keeps answers with their tools. A token is taken for four characters. Input is split as a provider's prompt cache
would: what a request has in common, from its beginning, with the session's request before it, and the rest. Cost counts what
is in common at a tenth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common import HARNESSES, KEY, MODELS, Row, folder, is_installed, print_table

import hostler
from hostler.harness import ToolCall, ToolResult
from hostler.testing.model_server import ModelRequest, ModelServer

_TITLES = {"claude_code": "Claude Code", "codex": "Codex", "opencode": "OpenCode"}
_CHARACTERS = 4  # of a token
_CACHED = 0.1  # of the price


@dataclass(frozen=True)
class Spent:
    """What a chat took: input tokens that the request before had too, others, and seconds a turn."""

    cached: float
    new: float
    seconds: float

    @property
    def cost(self) -> float:
        return self.new + self.cached * _CACHED


def chat(name: str, context: Any, turns: int) -> Spent:
    """A chat in which every third turn reads two kilobytes with a tool."""
    with ModelServer(key=KEY) as models, folder() as at:
        options = {"model": MODELS[name], "api_base": models.url, "api_key": KEY}
        host = hostler.local_host(data_dir=at / "data")
        harness = hostler.create_harness(host=host, runtime=HARNESSES[name], **options)
        messages: list[dict[str, Any]] = []
        began = time.perf_counter()
        for number in range(turns):
            tool = [{"shell": f"seq {number * 1000} {number * 1000 + 400}"}] if number % 3 == 2 else []
            models.script([*tool, {"text": f"Answer {number}: " + f"word{number} " * 150}])
            messages.append({"role": "user", "content": f"Question {number}: " + f"thing{number} " * 60})
            result = hostler.generate_harness(harness=harness, messages=messages, session="chat", context=context)
            if result.stop_reason != "done":
                raise RuntimeError(f"turn {number} failed: {result.error}")
            messages.append(_message(result))
        taken = time.perf_counter() - began
        harness.sessions.delete("chat")
        requests = [_pieces(call) for call in models.calls]
    common = [_size(_common(*pair)) for pair in itertools.pairwise(requests)]
    cached = sum(common) / _CHARACTERS
    return Spent(cached, sum(map(_size, requests)) / _CHARACTERS - cached, taken / turns)


def _message(result: hostler.Result) -> dict[str, Any]:
    """The answer as an AI SDK client keeps it, with its tools."""
    calls = {event.id: event for event in result.events if isinstance(event, ToolCall)}
    parts: list[dict[str, Any]] = [
        {
            "type": "dynamic-tool",
            "toolName": calls[event.id].native_name,
            "toolCallId": event.id,
            "state": "output-available",
            "input": calls[event.id].input,
            "output": event.output,
        }
        for event in result.events
        if isinstance(event, ToolResult)
    ]
    return {"role": "assistant", "parts": [*parts, {"type": "text", "text": result.text}]}


def _pieces(call: ModelRequest) -> str | list[str]:
    """A request as its provider's cache compares it, from its beginning: in whole blocks on Anthropic's wire, else by the
    character."""
    body = {
        name: _plain(call.body.get(name) or []) for name in ("tools", "system", "instructions", "messages", "input")
    }
    if call.api != "anthropic":
        return json.dumps(body)
    blocks = [block for message in body["messages"] for block in _blocks(message)]
    return [*map(json.dumps, body["tools"]), *map(json.dumps, body["system"]), *blocks]


def _blocks(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    return [json.dumps([message["role"], block]) for block in ([content] if isinstance(content, str) else content)]


def _common(a: str | list[str], b: str | list[str]) -> str | list[str]:
    """With what both begin."""
    return a[: next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))]


def _size(pieces: str | list[str]) -> int:
    return len(pieces) if isinstance(pieces, str) else sum(map(len, pieces))


def _plain(value: Any) -> Any:
    """Without the marks that tell the provider what to cache."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if k != "cache_control"}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def rows(quick: bool) -> list[Row]:
    """Beside are the numbers of ``"replay"``."""
    turns = 6 if quick else 30
    found: list[Row] = []
    for name in filter(is_installed, HARNESSES):
        auto, replay = chat(name, "auto", turns), chat(name, "replay", turns)
        title = f"{_TITLES[name]}, {turns} turns, auto beside replay"
        found += [
            _row(f"{title}: input tokens", turns, auto.cached + auto.new, replay.cached + replay.new, "{:,.0f}"),
            _row(f"{title}: input tokens that no cache has", turns, auto.new, replay.new, "{:,.0f}"),
            _row(f"{title}: cost of the input, in tokens", turns, auto.cost, replay.cost, "{:,.0f}"),
            _row(f"{title}: seconds a turn", turns, auto.seconds, replay.seconds, "{:.2f}"),
        ]
    return found


def _row(name: str, turns: int, ours: float, beside: float, form: str) -> Row:
    value = ours / beside
    return Row(name, turns, form.format(ours), form.format(beside), value, value, value, "×")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="6 turns instead of 30")
    print_table(rows(parser.parse_args(arguments).quick))


if __name__ == "__main__":
    main()
