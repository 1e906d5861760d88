"""``effort`` and ``max_turns`` hold on every program, on every turn, after a resume as well."""

from __future__ import annotations

from typing import Any

import pytest

import hostler
from hostler.harness import CapabilityUnsupported, ToolResult
from hostler.testing.model_server import ModelServer
from tests.sessions.programs import CLAUDE, CODEX, FAKE_PROGRAM, REAL, Program, ids

pytestmark = [pytest.mark.usefixtures("nothing_left")]


def effort(program: Program, models: ModelServer) -> Any:
    body = models.calls[-1].body
    if program is CLAUDE:
        return (body.get("output_config") or {}).get("effort")
    return body["reasoning"]["effort"] if program is CODEX else body["reasoning_effort"]


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_they_hold_on_every_turn(program: Program, models: ModelServer) -> None:
    options = program.options(models)
    if program is CLAUDE:
        options["model"] = "claude-opus-4-6"  # older ones have no effort, and Claude Code knows that
    with hostler.agent_session(program.harness, effort="low", max_turns=2, **options) as session:
        session.run("Hello.")
        assert effort(program, models) == "low"
        state = session.stop()
    with hostler.agent_resume(state, **options) as session:
        before = len(models.calls)
        models.script([{"shell": f"echo {n}"} for n in range(6)])
        result = session.run("Count.")
        assert (result.stop_reason, result.error) == ("max_turns", None)
        # Where hostler counts, one more call may be under way before its stop gets there.
        assert len(models.calls) - before <= 3
        assert len([e for e in result.events if isinstance(e, ToolResult) and not e.is_error]) <= 3
        assert effort(program, models) == "low"
        models.clear()
        models.script([{"shell": "echo 1"}, {"shell": "echo 2"}, {"shell": "echo 3"}, {"text": "done"}])
        assert session.run("Count.", max_turns=4, effort="high").stop_reason == "done"
        assert effort(program, models) == "high"
        session.run("And again.")
        assert effort(program, models) == "low"


@pytest.mark.real
def test_an_effort_that_claude_code_does_not_know_is_refused(models: ModelServer) -> None:
    with (
        hostler.agent_session(CLAUDE.harness, effort="enormous", **CLAUDE.options(models)) as session,
        pytest.raises(CapabilityUnsupported, match="low, medium, high"),
    ):
        session.run("Hello.")
    assert models.calls == []


def test_a_program_whose_calls_nobody_can_count_is_refused(models: ModelServer) -> None:
    agent: Any = hostler.acp_agent(command=["agent"])
    for rule in ({"max_turns": 3}, {"effort": "low"}):
        with pytest.raises(CapabilityUnsupported, match=next(iter(rule))):
            hostler.agent_session(agent, **FAKE_PROGRAM.options(models), **rule)
    assert models.calls == []
