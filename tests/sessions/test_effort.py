"""``effort`` and ``max_turns`` hold on every program, on every turn, after a resume as well."""

from __future__ import annotations

import json
from typing import Any

import pytest

import hostler
from hostler.harness import CapabilityUnsupported, Done, ModelCall, ToolResult
from hostler.testing.model_server import ModelServer
from tests.sessions.programs import CLAUDE, CODEX, FAKE_PROGRAM, GEMINI, OPENCODE, REAL, Program, ids

pytestmark = [pytest.mark.usefixtures("nothing_left")]


def effort(program: Program, models: ModelServer) -> Any:
    body = models.calls[-1].body
    if program is CLAUDE:
        return (body.get("output_config") or {}).get("effort")
    return body["reasoning"]["effort"] if program is CODEX else body["reasoning_effort"]


@pytest.mark.parametrize("program", [each for each in REAL if each.values[0] is not GEMINI], ids=ids)
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
        assert len(models.calls) - before == 2
        assert len([e for e in result.events if isinstance(e, ToolResult) and not e.is_error]) <= 2
        assert effort(program, models) == "low"
        models.clear()
        models.script([{"shell": "echo 1"}, {"shell": "echo 2"}, {"shell": "echo 3"}, {"text": "done"}])
        assert session.run("Count.", max_turns=4, effort="high").stop_reason == "done"
        assert effort(program, models) == "high"
        session.run("And again.")
        assert effort(program, models) == "low"


SPAWN = {
    CODEX: {"tool": "spawn_agent", "namespace": "multi_agent_v1", "args": {"message": "CODEWORD-inner"}},
    OPENCODE: {"tool": "task", "args": {"description": "d", "prompt": "CODEWORD-inner", "subagent_type": "general"}},
}


@pytest.mark.real
@pytest.mark.parametrize("program", [CODEX, pytest.param(OPENCODE, marks=pytest.mark.soak)], ids=ids)
def test_the_calls_of_sub_agents_do_not_count(program: Program, models: ModelServer) -> None:
    prompt = f"CODEWORD-outer @@{json.dumps([SPAWN[program], {'shell': 'sleep 1'}])}@@"
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        result = session.run(prompt, max_turns=3)
        calls = _calls(session, result.turn_id)
        assert (result.stop_reason, result.error) == ("done", None)
        assert [call.sub_agent for call in calls].count(False) == 3
        assert [call.sub_agent for call in calls].count(True) >= 1
        assert len(calls) == len(models.calls)
        result = session.run(prompt.replace("outer", "again"), max_turns=2)
        assert (result.stop_reason, result.error) == ("max_turns", None)
        assert [call.sub_agent for call in _calls(session, result.turn_id)].count(False) == 2
        assert session.run("Go on.").stop_reason == "done"


def _calls(session: Any, turn: str) -> list[ModelCall]:
    found = []
    for record in session.follow(0):
        if record.turn == turn and isinstance(record.event, ModelCall):
            found.append(record.event)
        if record.turn == turn and isinstance(record.event, Done):
            return found
    raise AssertionError("the journal ended")


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
