"""Real agent programs on a provider that does not speak their wire: turns, usage, cost, and failures told alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.endpoint.routes import can_translate
from hostler.harness import Harness, ModelCall, Text, ToolCall, ToolResult
from hostler.testing.model_server import ModelServer

KEY = "planted-provider-key-51c9"
FAILURES = {
    json.dumps(step): code
    for step, code in (
        ({"error": 401}, "model_auth"),
        ({"error": 429, "retry_after": 60}, "model_rate_limited"),
        ({"error": 400, "message": "too clever"}, "model_refused"),
        ({"text": "half of it", "drop": True}, "model_cut"),
    )
}
CELLS = [
    pytest.param(Harness.CLAUDE_CODE, "openai/gpt-5", id="claude_code-openai"),
    pytest.param(Harness.CODEX, "anthropic/claude-sonnet-4-5", id="codex-anthropic"),
    pytest.param(Harness.OPENCODE, "anthropic/claude-sonnet-4-5", id="opencode-anthropic", marks=pytest.mark.soak),
]
pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.xdist_group("translator"),
    pytest.mark.skipif(not can_translate(), reason="the litellm extra is not installed"),
]


def files_with(word: str, folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and word.encode() in p.read_bytes()]


@pytest.mark.parametrize(("harness", "model"), CELLS)
def test_turns_and_failures(harness: Harness, model: str, models: ModelServer, state_dir: Path) -> None:
    options: dict[str, Any] = {"model": model, "api_base": models.url, "api_key": KEY, "timeout": 60}
    step = json.dumps([{"shell": "echo from-the-$((40+2))"}, {"text": "It said so, word by word.", "chunks": 5}])
    with hostler.agent_session(harness, **options) as session:
        first = session.run(f"Remember CODEWORD-one. @@{step}@@")
        assert (first.stop_reason, first.text) == ("done", "It said so, word by word."), first
        [call] = [e for e in first.events if isinstance(e, ToolCall)]
        [result] = [e for e in first.events if isinstance(e, ToolResult)]
        assert (call.name, result.is_error) == ("bash", False)
        assert "from-the-42" in result.output
        assert len([e for e in first.events if isinstance(e, Text) and e.delta]) >= 3  # streamed, not held back

        second = session.run("What do you remember?")
        assert "CODEWORD-one" in second.text
        answered = [c for c in models.calls if c.api != "count_tokens"]
        assert {c.api for c in answered} <= ({"chat", "responses"} if "openai" in model else {"anthropic"})
        for run in (first, second):
            calls = [e for e in run.events if isinstance(e, ModelCall)]
            assert all(c.status == "ok" for c in calls)
        assert session.usage.calls == len(answered)
        assert session.usage.input_tokens == 150 * len(answered)  # as the scripted server tells it in its wire
        assert session.usage.output_tokens == 40 * len(answered)
        assert session.cost is not None
        assert session.cost > 0
        for failing, code in FAILURES.items():
            result = session.run(f"x @@{failing}@@")
            assert (result.stop_reason, result.error and result.error.code) == ("error", code), result
            assert KEY not in repr(result)
        assert all(KEY in str(c.headers) for c in answered)
    assert files_with(KEY, state_dir) == []
    assert KEY not in repr((first, second))
