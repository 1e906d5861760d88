"""Rules about the app's tools hold at the tool server, whoever calls: the program, or the agent's shell by hand."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.programs import ALL, CODEX, FAKE_PROGRAM, GEMINI, Program, ids
from tests.toolserver.test_tools import calling, told

import hostler
from hostler.harness import Answered, Approval, CapabilityUnsupported, Done, Result, ToolCall
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer
from hostler.types.rules import choose, is_about

THIEF = Path(__file__).with_name("thief.py")
pytestmark = pytest.mark.usefixtures("nothing_left")
# Gemini CLI is told of the tool server with the session: its shell finds the token in no file and no environment.
BY_HAND = [p for p in ALL if getattr(p, "values", (p,))[0] is not GEMINI]


def by_hand(program: Program, jobs: list[dict[str, Any]] | None) -> str:
    """A prompt that has the agent's shell call tools by itself."""
    words = [sys.executable, "thief.py", *([json.dumps(jobs)] if jobs is not None else [])]
    return program.shell(" ".join(map(shlex.quote, words)))


def gave(result: Result) -> Any:
    assert (result.stop_reason, result.error) == ("done", None)
    (output,) = [output for output, _ in told(result)]
    return json.loads(output.strip().splitlines()[-1])


@pytest.mark.parametrize("program", BY_HAND, ids=ids)
def test_denied_is_denied_and_ask_asks_also_by_hand(program: Program, models: ModelServer, workspace: Path) -> None:
    shutil.copy(THIEF, workspace)
    ran: list[str] = []
    asked: list[tuple[str, Any]] = []

    def erase(what: str) -> str:
        ran.append(f"erase {what}")
        return "erased"

    def look(what: str) -> str:
        ran.append(f"look {what}")
        return "seen"

    def pay(amount: str) -> str:
        ran.append(f"pay {amount}")
        return "paid"

    def answer(approval: Approval) -> bool:
        asked.append((approval.tool, approval.input))
        return approval.tool != "pay" or approval.input == {"amount": "12"}

    options = {
        **program.options(models),
        "permissions": "ask",
        "allow": ["look", "pay(small*)"],
        "deny": ["erase", "look:secret*"],
        "on_approval": answer,
    }
    box = hostler.sandbox.local(workspace)
    jobs = [
        {"name": "erase", "arguments": {"what": "all"}},
        {"name": "look", "arguments": {"what": "barn"}},
        {"name": "look", "arguments": {"what": "secret barn"}},
        {"name": "pay", "arguments": {"amount": "small 3"}},
        {"name": "pay", "arguments": {"amount": "99"}},
        {"name": "pay", "arguments": {"amount": "12"}},
        {"name": "look", "arguments": {"what": "barn"}, "token": "wrong"},
    ]
    with hostler.agent_session(program.harness, tools=[erase, look, pay], sandbox=box, **options) as session:
        results = gave(session.run(by_hand(program, jobs)))
        assert [(status, bad) for status, _, bad in results] == [
            (200, True),
            (200, False),
            (200, True),
            (200, False),
            (200, True),
            (200, False),
            (401, True),
        ]
        assert "Not allowed" in results[0][1]
        assert "The application said no" in results[4][1]
        assert ran == ["look barn", "pay small 3", "pay 12"]
        assert [a for a in asked if a[0] == "pay"] == [("pay", {"amount": "99"}), ("pay", {"amount": "12"})]
        assert {tool for tool, _ in asked} <= {"pay", "bash"}
        # The same by the program itself, with one question each.
        asked.clear(), ran.clear()
        result = session.run(
            calling(program, ("pay", {"amount": "99"}), ("pay", {"amount": "12"}), ("look", {"what": "x"}))
        )
        assert [bad for _, bad in told(result)] == [True, False, False]
        assert asked == [("pay", {"amount": "99"}), ("pay", {"amount": "12"})]
        assert ran == ["pay 12", "look x"]
        if not program.fake:
            assert "erase" not in json.dumps(models.calls[-1].body["tools"])  # it is not even told of it
        events = []
        for record in session.follow(0):
            events.append(record.event)
            if isinstance(record.event, Done) and record.turn == result.turn_id:
                break
        answers = [(e.id, e.allow) for e in events if isinstance(e, Answered)]
        questions = [e.id for e in events if isinstance(e, Approval)]
        assert [id for id, _ in answers] == questions  # all in the journal


@pytest.mark.parametrize("program", BY_HAND, ids=ids)
def test_a_token_is_worth_nothing_at_another_sessions_address(
    program: Program, models: ModelServer, workspace: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(THIEF, workspace), shutil.copy(THIEF, other)
    ran: list[str] = []

    def look(what: str) -> str:
        ran.append(what)
        return "seen"

    options = program.options(models)
    box = hostler.sandbox.local(workspace)
    with (
        hostler.agent_session(program.harness, tools=[look], sandbox=box, **options) as first,
        hostler.agent_session(
            FAKE, tools=[look], sandbox=hostler.sandbox.local(other), **FAKE_PROGRAM.options(models)
        ) as second,
    ):
        url, token = gave(first.run(by_hand(program, None)))
        job = {"name": "look", "arguments": {"what": "a"}}
        script = [
            sys.executable,
            "thief.py",
            json.dumps([{**job, "token": token}, {**job, "url": url}]),
        ]
        stolen = second.run(json.dumps([{"shell": " ".join(map(shlex.quote, script))}, {"text": "done"}]))
        # The other's token here, and its own there. (And no turn runs there: nothing would be done in any case.)
        assert [status for status, _, _ in gave(stolen)] == [401, 401]
        own = [{**job, "token": token, "url": url}]
        script[-1] = json.dumps(own)
        between = second.run(json.dumps([{"shell": " ".join(map(shlex.quote, script))}, {"text": "done"}]))
        ((status, text, bad),) = gave(between)
        assert (status, bad) == (200, True)
        assert "No turn is running" in text
    assert ran == []


def test_an_unanswered_question_is_answered_by_hand_in_the_session(models: ModelServer) -> None:
    def pay(amount: int) -> str:
        return "paid"

    options = {**FAKE_PROGRAM.options(models), "permissions": "ask"}
    with hostler.agent_session(FAKE, tools=[pay], **options) as session:
        for allow, word in ((True, "paid"), (False, "Not allowed: not today")):
            stream = session.stream(calling(FAKE_PROGRAM, ("pay", {"amount": 1})))
            for event in stream:
                if isinstance(event, Approval):
                    (open_one,) = session.approvals()
                    assert (open_one.id, open_one.tool, open_one.input) == (event.id, "pay", {"amount": 1})
                    session.answer(event.id, allow, "not today")
            assert [output for output, _ in told(stream.result)] == [word]
            assert session.approvals() == []


def test_a_question_that_nobody_answers_ends_with_the_turn(models: ModelServer) -> None:
    ran: list[int] = []

    def pay(amount: int) -> None:
        ran.append(amount)

    options = {**FAKE_PROGRAM.options(models), "permissions": "ask"}
    with hostler.agent_session(FAKE, tools=[pay], **options) as session:
        stream = session.stream(calling(FAKE_PROGRAM, ("pay", {"amount": 1})))
        for event in stream:
            if isinstance(event, Approval):
                stream.cancel()
        assert stream.result.stop_reason == "cancelled"
        again = session.run(calling(FAKE_PROGRAM))
        assert again.stop_reason == "done"
    assert ran == []


def test_rules_about_own_tools_hold_on_a_program_that_has_none(models: ModelServer) -> None:
    """Codex has no rules of its own: those about tools of the app can be held all the same, others not."""

    def look(what: str) -> str:
        return "seen"

    options = {"model": "m", "api_base": "http://127.0.0.1:9", "api_key": "k-1"}
    hostler.agent_session(CODEX.harness, tools=[look], deny=["look", "mcp__host__look"], **options).close()
    for rule in ("bash", "*", "lo*", "look2"):
        with pytest.raises(CapabilityUnsupported, match="deny"):
            hostler.agent_session(CODEX.harness, tools=[look], deny=[rule], **options)


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_tool_that_is_switched_off_is_not_offered(program: Program, models: ModelServer) -> None:
    def look(what: str) -> str:
        return "seen"

    def pay(amount: int) -> str:
        return "paid"

    options = {**program.options(models), "disable_tools": ["pay"]}
    with hostler.agent_session(program.harness, tools=[look, pay], **options) as session:
        result = session.run(calling(program, ("look", {"what": "a"})))
        assert told(result) == [("seen", False)]
        if not program.fake:
            assert [e.name for e in result.events if isinstance(e, ToolCall)] == ["look"]
            offered = json.dumps(models.calls[-1].body["tools"])
            assert "look" in offered
            assert '"pay"' not in offered
            assert "__pay" not in offered


def rules(permissions: str = "full", **given: list[str]) -> dict[str, Any]:
    return {"permissions": permissions, "allow": [], "deny": [], "disable_tools": [], **given}


@pytest.mark.parametrize(
    ("rule", "about", "fits"),
    [
        ("pay", "x", True),
        ("pay", None, True),
        ("pay2", "x", False),
        ("pa", "x", False),
        ("PAY", "x", False),
        ("p*", "x", True),
        ("*", "x", True),
        ("mcp__host", "x", True),
        ("mcp__host__pay", "x", True),
        ("mcp__host__*", "x", True),
        ("mcp__other__pay", "x", False),
        ("host_pay", "x", True),
        ("pay(*)", None, True),
        ("pay()", None, True),
        ("pay(a*)", "abc", True),
        ("pay:a*", "abc", True),
        ("pay(a*)", "b a", False),
        ("pay(*c)", "a\nbc", True),
        ("pay(a.c)", "abc", False),
        ("pay(a*)", None, False),
        ("pay(", "x", False),
        ("", "x", False),
    ],
)
def test_how_rules_are_read(rule: str, about: str | None, fits: bool) -> None:
    assert (choose(rules(deny=[rule]), "pay", about) == "deny") == fits
    assert (choose(rules("ask", allow=[rule]), "pay", about) == "allow") == fits


def test_deny_wins_and_only_the_mode_ask_asks() -> None:
    assert choose(rules("ask"), "pay") == "ask"
    for mode in ("full", "edit", "read-only"):
        assert choose(rules(mode), "pay") == "allow"
        assert choose(rules(mode, deny=["pay"], allow=["pay"]), "pay") == "deny"
        assert choose(rules(mode, disable_tools=["pay"]), "pay") == "deny"
    assert is_about("pay(x*)", ["look", "pay"])
    assert not is_about("p*", ["look", "pay"])
