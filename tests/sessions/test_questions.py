"""Questions that the agents of real programs put to a person: offered where one can answer, answered from anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import Answered, Approval, Choice, Question, ToolCall, ToolResult
from hostler.testing.model_server import ModelServer
from tests.sessions.programs import ALL, CLAUDE, CODEX, CODEX_ACP, FAKE_PROGRAM, REAL, Program, ids
from tests.sessions.test_approvals import cli, question_in
from tests.sessions.test_kill import App
from tests.sessions.test_restart import job_of, journal, of_turn, state_of
from tests.toolserver.test_tools import PREFIXES

pytestmark = pytest.mark.usefixtures("nothing_left")
OWN = {CLAUDE: "AskUserQuestion", CODEX: "request_user_input", CODEX_ACP: "question"}
OPTIONS = [{"label": "Postgres", "description": "big"}, {"label": "SQLite", "description": "small"}]
CHOICES = (Choice("Postgres", "big"), Choice("SQLite", "small"))


def asking(program: Program, *texts: str) -> str:
    """A prompt whose agent asks these questions, with two choices each."""
    if program.fake:
        shown = [{"id": str(n), "text": text, "header": "DB", "choices": OPTIONS} for n, text in enumerate(texts, 1)]
        return "CODEWORD-two\n" + json.dumps([{"approve": "question", "input": {"questions": shown}}])
    more = {CLAUDE: {"multiSelect": False}}.get(program, {})
    asked = [
        {"question": text, "header": "DB", "options": OPTIONS, **more, **({"id": str(n)} if program is CODEX else {})}
        for n, text in enumerate(texts, 1)
    ]
    within = {"namespace": "mcp__host"} if program is CODEX_ACP else {}
    return f"CODEWORD-two @@{json.dumps([{'tool': tool_of(program), 'args': {'questions': asked}, **within}])}@@"


def tool_of(program: Program) -> str:
    """The name of the tool to ask with: the program's own, or hostler's."""
    return OWN.get(program) or f"{PREFIXES.get(program.name, 'mcp__host__')}question"


def heard(program: Program, result: Any, models: ModelServer) -> str:
    """What the agent was told in answer to its question."""
    if program.fake:
        return str(result.text)
    outputs = [event.output for event in result.events if isinstance(event, ToolResult)]
    assert len(outputs) == 1
    return outputs[0]


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_question_of_a_killed_app_is_answered_from_the_command_line(
    program: Program, models: ModelServer, workspace: Path
) -> None:
    options = program.options(models)
    prompt = asking(program, "Which database?")
    app = App(job_of(program, {**options, "permissions": "ask"}, workspace, prompt))
    app.until("event Approval")
    app.kill()
    state = state_of(app)
    listing = cli("approvals")
    assert "Which database? [Postgres | SQLite]" in listing
    id = question_in(listing, state.session)
    assert "asks '1' (Which database?)" in cli("answer", state.session, id, "--allow", code=2)
    assert "answered" in cli("answer", state.session, id, "--text", "Cassandra, of course")
    with hostler.agent_resume(state, sandbox=hostler.sandbox.local(workspace), **options) as session:
        result = session.run(program.recall())
        assert session.resumed == "attached"
        events = of_turn(journal(session, result.turn_id), 1)
    (approval,) = [event for event in events if isinstance(event, Approval)]
    (answered,) = [event for event in events if isinstance(event, Answered)]
    assert (answered.id, answered.allow, answered.answers) == (approval.id, True, {"1": ["Cassandra, of course"]})
    assert events[-1].result.stop_reason == "done"
    told = events[-1].result.text if program.fake else json.dumps(models.calls[-1].body)
    assert "Cassandra, of course" in told


@pytest.mark.parametrize("permissions", ["full", pytest.param("read-only", marks=pytest.mark.soak)])
@pytest.mark.parametrize("program", ALL, ids=ids)
def test_on_approval_answers_questions(
    program: Program, permissions: Any, models: ModelServer, workspace: Path
) -> None:
    asked: list[Approval] = []
    replies: list[Any] = [
        "SQLite",
        {"1": "Postgres", "2": "both"},
        True,
        False,
        "one for two",
    ]

    def answer(approval: Approval) -> Any:
        asked.append(approval)
        return replies[len(asked) - 1]

    box = hostler.sandbox.local(workspace)
    options = {**program.options(models), "permissions": permissions, "sandbox": box, "on_approval": answer}
    with hostler.agent_session(program.harness, **options) as session:
        result = session.run(asking(program, "Which database?"))
        assert result.stop_reason == "done"
        assert "SQLite" in heard(program, result, models)
        assert asked[0].tool == "question"
        assert asked[0].questions == (Question("1", "Which database?", "DB", CHOICES),)
        if not program.fake:
            (call,) = [event for event in result.events if isinstance(event, ToolCall)]
            assert call.name == "question"
        told = heard(program, session.run(asking(program, "First?", "Second?")), models)
        assert "Postgres" in told
        assert "both" in told
        assert [question.text for question in asked[1].questions] == ["First?", "Second?"]
        assert "has no answer to this" in heard(program, session.run(asking(program, "Yes?")), models)
        assert "said no" in heard(program, session.run(asking(program, "No?")), models)
        assert "on_approval failed" in heard(program, session.run(asking(program, "A?", "B?")), models)
    assert len(asked) == 5


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_where_nobody_can_answer_no_question_is_offered_and_none_waits(program: Program, models: ModelServer) -> None:
    """Case H04."""
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        result = session.run(asking(program, "Which database?"))
    assert result.stop_reason == "done"
    assert not [event for event in result.events if isinstance(event, Approval)]
    offered = json.dumps([tool for call in models.calls for tool in call.body["tools"]])
    assert f'"{tool_of(program)}"' not in offered


@pytest.mark.parametrize("program", [FAKE_PROGRAM, pytest.param(CODEX, marks=pytest.mark.real)], ids=ids)
def test_a_question_has_a_deadline_and_any_process_answers_it_in_time(
    program: Program, models: ModelServer, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**program.options(models), "sandbox": hostler.sandbox.local(workspace), "permissions": "ask"}
    with hostler.agent_session(program.harness, **options) as session:
        stream = session.stream(asking(program, "Which database?"))
        approval = next(event for event in stream if isinstance(event, Approval))
        with hostler.agent_resume(session.state(), **options) as other:
            (same,) = other.approvals()
            assert same.questions == approval.questions
            with pytest.raises(ValueError, match="asks '1'"):
                other.answer(same.id, True)
            with pytest.raises(ValueError, match="no question '2'"):
                other.answer(same.id, True, answers={"2": "x"})
            same.allow(answers="Postgres")
            assert "Postgres" in heard(program, stream.wait(), models)
            other.detach()
        state = session.stop()
    monkeypatch.setenv("HOSTLER_APPROVAL_TTL", "0.5")
    app = App(job_of(program, {**program.options(models), "permissions": "ask"}, workspace, asking(program, "Late?")))
    told = json.loads(app.until("result", 2))
    app.process.wait(20)
    app.kill()
    assert told["stop"] == "done"
    assert "Nobody answered" in (told["text"] if program.fake else json.dumps(models.calls[-1].body))
    assert state.session
