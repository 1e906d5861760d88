"""A model that refuses, cuts its stream or falls silent: the same error, within the same time, on every program."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import hostler
from hostler.harness import ModelCall, Retract, Text
from hostler.testing.model_server import ModelServer
from tests.conftest import SOAK
from tests.sessions.programs import CLAUDE, CODEX, IN_SOAK, OPENCODE, Program, ids

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left")]
PROGRAMS = [
    *(pytest.param(p, marks=pytest.mark.xdist_group(f"faults-{p.name}")) for p in (CLAUDE, CODEX, OPENCODE)),
    *IN_SOAK,
]
LIMIT = 15.0
SILENCE = 3
HALVES = "the first half of it and the second half of it"

# Not tried again, when the provider says so: else each refusal would take the endpoint's 8 seconds.
AT_ONCE = {} if SOAK else {"headers": {"x-should-retry": "false"}}
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "401": ({"error": 401}, "model_auth"),
    "429": ({"error": 429, **AT_ONCE}, "model_rate_limited"),
    "500": ({"error": 500}, "model_unavailable"),
    "529": ({"error": 529, **AT_ONCE}, "model_unavailable"),
    "no answer": ({"drop": "before"}, "model_unavailable"),
    "always cut": ({"text": HALVES, "chunks": 8, "drop": True}, "model_cut"),
    "silent in the middle": ({"text": HALVES, "chunks": 8, "hang": 30}, "model_silent"),
    "silent from the start": ({"text": HALVES, "delay": 30}, "model_silent"),
}


# ``@@{}@@`` ends the script of an earlier prompt: a program may join a prompt that was never answered with the next one.


def ask(session: Any, prompt: str) -> tuple[Any, float]:
    start = time.monotonic()
    result = session.run(prompt, timeout=60)
    return result, time.monotonic() - start


@pytest.mark.longer
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_a_faulty_model_is_the_same_error_on_every_program(
    program: Program, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTLER_MODEL_SILENCE", str(SILENCE))
    seen: dict[str, Any] = {}
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        ask(session, program.say("CODEWORD-start"))
        for name, (step, _) in FAULTS.items():
            result, took = ask(session, f"{name} @@{json.dumps(step)}@@")
            assert took < LIMIT + (SILENCE if "silent" in name else 0), (name, took)
            assert result.stop_reason == "error", (name, result)
            assert result.text.count("the first half") <= 1, (name, result.text)
            assert result.usage.calls >= 1
            assert result.usage.partial
            seen[name] = result.error.code if result.error else None
            after, _ = ask(session, f"And now CODEWORD-{len(seen)}? @@{{}}@@")
            assert (after.stop_reason, after.error) == ("done", None), name
            assert f"CODEWORD-{len(seen)}" in after.text
            assert "CODEWORD-start" in after.text
    assert seen == {name: code for name, (_, code) in FAULTS.items()}


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_a_cut_stream_is_repeated_and_its_text_is_not_doubled(program: Program, models: ModelServer) -> None:
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        ask(session, program.say("CODEWORD-start"))
        before = len(models.calls)
        models.script([{"text": HALVES, "chunks": 8, "chunk_delay": 0.2, "drop": True}])
        result, took = ask(session, f"Go. @@{json.dumps({'text': HALVES, 'chunks': 8})}@@")
        assert took < LIMIT
        assert len(models.calls) - before == 2
        assert (result.stop_reason, result.text) == ("done", HALVES)
        # What was shown of the first attempt was taken back: what is left of the events is the answer, once.
        pieces: dict[str, str] = {}
        for event in result.events:
            if isinstance(event, Text):
                pieces[event.item] = pieces.get(event.item, "") + event.delta
            elif isinstance(event, Retract):
                pieces.pop(event.item)
        assert "".join(pieces.values()) == HALVES
        assert any(isinstance(event, Retract) for event in result.events)
        assert result.cost is None  # the cut call may have been paid
        after, _ = ask(session, "And now CODEWORD-after? @@{}@@")
        assert "CODEWORD-start" in after.text
        calls = []
        for record in session.follow(0):
            calls += [record.event.status] if isinstance(record.event, ModelCall) else []
            if record.turn == after.turn_id and type(record.event).__name__ == "Done":
                break
    assert calls == ["ok", "cut", "ok", "ok"]


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_a_model_that_fails_after_a_tool_leaves_the_tools_work(program: Program, models: ModelServer) -> None:
    """The conversation goes on with the tool's call and result in it, paired (cases A02, A11)."""
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        ask(session, program.say("CODEWORD-start"))
        steps = [{"shell": "echo CODEWORD-tool"}, {"error": 401}]
        result, took = ask(session, f"Go. @@{json.dumps(steps)}@@")
        assert took < LIMIT
        assert (result.stop_reason, result.error.code) == ("error", "model_auth")
        after, _ = ask(session, "And now? @@{}@@")
        assert after.stop_reason == "done"
        assert "CODEWORD-tool" in after.text
