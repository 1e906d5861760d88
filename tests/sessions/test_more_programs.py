"""The programs that the other session tests run in soak only, once through what a session is for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import ToolCall, ToolResult
from hostler.testing.model_server import ModelServer
from tests.sessions.programs import GEMINI, PI, Program, ids

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(240)]


@pytest.mark.parametrize("program", [PI, GEMINI], ids=ids)
def test_a_session_of(program: Program, models: ModelServer, state_dir: Path) -> None:
    """In a sandbox where there is one: a tool of the app whose result is JSON and no object, usage and cost, a cancel with a
    running command, a model that refuses, and a new process without its home."""

    def lookup(word: str) -> list[str]:
        """Looks a word up."""
        return [word, word]

    options: dict[str, Any] = {**program.options(models), "tools": [lookup]}
    prefix = "mcp_host_" if program is GEMINI else "mcp__host__"
    with hostler.agent_session(program.harness, **options) as session:
        steps = [{"tool": f"{prefix}lookup", "args": {"word": "ab"}}, {"shell": "echo hi > a.txt"}]
        result = session.run(f"CODEWORD-one @@{json.dumps(steps)}@@")
        assert (result.stop_reason, result.error) == ("done", None)
        assert [(e.name, e.builtin) for e in result.events if isinstance(e, ToolCall)] == [
            ("lookup", False),
            ("bash", True),
        ]
        found, _ = [e for e in result.events if isinstance(e, ToolResult)]
        assert (found.output, found.is_error) == ('["ab","ab"]', False)
        assert session.files.read("a.txt") == b"hi\n"
        assert (result.usage.calls, result.usage.input_tokens) == (3, 450)
        assert result.cost is not None
        assert result.cost > 0
        stream = session.stream(program.shell("sleep 411", "CODEWORD-two"))
        next(event for event in stream if isinstance(event, ToolCall))
        session.cancel()
        assert stream.wait().stop_reason == "cancelled"
        models.script([{"error": 401}])
        failed = session.run("And?")
        assert failed.error is not None
        assert failed.error.code == "model_auth"
        said = [m["content"] for m in session.history() if m["role"] == "user"]
        assert any("CODEWORD-one" in text for text in said)
        state = session.stop()
    (home,) = state_dir.glob("sessions/*/home")
    shutil.rmtree(home)
    with hostler.agent_resume(state, **options) as session:
        after = session.run("What do you remember? @@{}@@")
        assert session.resumed == "native"
    assert "CODEWORD-one" in after.text
