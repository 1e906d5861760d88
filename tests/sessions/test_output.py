"""Structured output in sessions: on every program, asked for once more, stored, resumed, cut off by a crash."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

import hostler
from hostler.harness import CapabilityUnsupported, Done, Notice, OutputInvalid, Result, Retract, Text
from hostler.testing.model_server import ModelServer
from tests.conftest import keepers_of
from tests.sessions.programs import ALL, CLAUDE, CODEX, FAKE_PROGRAM, OPENCODE, Program, ids
from tests.sessions.test_kill import App, journal
from tests.sessions.test_restart import of_turn, state_of

pytestmark = pytest.mark.usefixtures("nothing_left")
REAL = [pytest.param(p, marks=pytest.mark.real) for p in (CLAUDE, CODEX)]


class Horse(BaseModel):
    name: str
    age: int = 3

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        if name == "Nobody":
            raise ValueError("no such horse")
        return name


BO, NOBODY = {"name": "Bo", "age": 4}, {"name": "Nobody", "age": 1}
SCHEMA = Horse.model_json_schema()


def answers(program: Program, models: ModelServer, *values: Any) -> str:
    """A prompt that is answered with these, one after the other: JSON values, or words (str)."""
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    if program.fake:
        steps: list[Any] = []
        for text in reversed(texts):
            steps = [{"text": text}, {"next": steps}] if steps else [{"text": text}]
        return "Which horse?\n" + json.dumps(steps)
    for value, text in zip(values, texts, strict=True):
        structured = program is CLAUDE and not isinstance(value, str)
        models.script([{"tool": "StructuredOutput", "args": value} if structured else {"text": text}])
        if program is CLAUDE and not structured:
            models.script([{"text": text}])  # it reminds its model once by itself
    return "Which horse?"


def asked(models: ModelServer) -> str:
    return json.dumps(models.calls[-1].body, ensure_ascii=False)


# ---- on every program -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_output_on_every_program(program: Program, models: ModelServer) -> None:
    options = program.options(models)
    with hostler.agent_session(program.harness, output=Horse, **options) as session:
        result = session.run(answers(program, models, BO))
        assert (result.output, result.stop_reason) == (Horse(name="Bo", age=4), "done")
        if program is CLAUDE:
            tool = next(t for t in models.calls[-1].body["tools"] if t["name"] == "StructuredOutput")
            assert tool["input_schema"]["properties"] == SCHEMA["properties"]
        elif program is CODEX:
            form = models.calls[-1].body["text"]["format"]
            assert (form["type"], form["strict"], form["schema"]["required"]) == ("json_schema", True, ["name", "age"])
        if program is CLAUDE or program is CODEX:
            assert "JSON Schema, and nothing else" not in asked(models)  # it has a way of its own

        # An answer that does not do is asked for once more, in the same turn.
        stream = session.stream(answers(program, models, NOBODY, BO))
        events = list(stream)
        assert stream.result.output == Horse(name="Bo", age=4)
        assert [type(e) for e in events].count(Done) == 1
        (notice,) = [e for e in events if isinstance(e, Notice) and e.code == "output_asked_again"]
        assert "at $.name: Value error, no such horse" in notice.message
        assert notice.message in stream.result.warnings
        if not program.fake:
            assert "no such horse" in asked(models)
            assert stream.result.usage.calls == 2
        # What a reader of the stream holds in the end is the answer.
        shown: dict[str, str] = {}
        for event in events:
            if isinstance(event, Text):
                shown[event.item] = shown.get(event.item, "") + event.delta
            elif isinstance(event, Retract):
                shown.pop(event.item, None)
        assert "Nobody" not in str(shown)

        # Once, not twice.
        with pytest.raises(OutputInvalid, match="no such horse") as raised:
            session.run(answers(program, models, "I know none.", NOBODY))
        result = raised.value.result  # type: ignore[assignment]
        assert isinstance(result, Result)
        assert (result.stop_reason, result.output) == ("error", None)
        assert "Nobody" in raised.value.text == result.text
        if not program.fake:
            assert result.usage.calls == (3 if program is CLAUDE else 2)

        # For one call: nothing, or something else.
        result = session.run(answers(program, models, "plain words"), output=None)
        assert (result.text, result.output) == ("plain words", None)
        wrapped = {"value": ["a", "b"]} if program in (CLAUDE, CODEX) else ["a", "b"]
        assert session.run(answers(program, models, wrapped), output=list[str]).output == ["a", "b"]
        assert session.run(answers(program, models, BO)).output == Horse(name="Bo", age=4)
        state = session.detach()

    with hostler.agent_resume(state, **options) as session:  # without the type: its schema holds, and JSON comes back
        assert session.resumed == "attached"
        assert session.run(answers(program, models, {"name": 3}, NOBODY)).output == NOBODY
        session.detach()
    with hostler.agent_resume(state, output=Horse, **options) as session:
        assert session.resumed == "attached"
        assert session.run(answers(program, models, NOBODY, BO)).output == Horse(name="Bo", age=4)


def test_the_schema_is_told_in_words_where_there_is_no_other_way(models: ModelServer) -> None:
    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE_PROGRAM.harness, output=Horse, **options) as session:
        session.run(answers(FAKE_PROGRAM, models, BO))
        said = session.run(json.dumps([{"say": "memory"}]), output=None).text
        assert json.dumps(SCHEMA) in said
        assert said.startswith("Which horse?")
    for program in (CLAUDE, CODEX):  # and for a schema that the program's own way cannot hold
        assert program.harness in (hostler.Harness.CLAUDE_CODE, hostler.Harness.CODEX)
        able = hostler.agent_capabilities(program.harness)
        assert (able.output, able.skills) == ("schema", "native")
    assert hostler.agent_capabilities(OPENCODE.harness).output == "prompt"


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_a_schema_that_the_program_cannot_hold_is_asked_for_in_words(program: Program, models: ModelServer) -> None:
    pair = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}
    models.script([{"text": 'It is [1, "a"].'}])
    result = hostler.agent(program.harness, "A pair?", output=pair, **program.options(models))
    assert result.output == [1, "a"]
    assert len(models.calls) == 1
    assert "prefixItems" in asked(models)
    assert "StructuredOutput" not in asked(models)
    assert "json_schema" not in asked(models)


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_tools_before_the_answer(program: Program, models: ModelServer) -> None:
    tree = {
        "$defs": {
            "T": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
                "required": ["n", "kids"],
            }
        },
        "$ref": "#/$defs/T",
    }
    value = {"n": 1, "kids": [{"n": 2, "kids": []}]}
    models.script([{"shell": "echo hi"}])
    prompt = answers(program, models, value)
    result = hostler.agent(program.harness, prompt, output=tree, **program.options(models))
    assert result.output == value
    assert result.warnings == tuple(w for w in result.warnings if "output" not in w)
    assert result.usage.calls == 2


# ---- how a turn with output ends ------------------------------------------------------------------------------------


def steps(*given: Any) -> str:
    return json.dumps(list(given))


def fake(models: ModelServer, **more: Any) -> Any:
    return hostler.agent_session(FAKE_PROGRAM.harness, output=Horse, **FAKE_PROGRAM.options(models), **more)


AGAIN = [{"text": "x"}, {"sleep": 30}]


def test_a_turn_that_is_ended_otherwise_has_no_output(models: ModelServer) -> None:
    with fake(models) as session:
        for prompt in (steps({"sleep": 30}), steps({"text": "none"}, {"next": AGAIN})):
            stream = session.stream(prompt)
            time.sleep(0.3)
            session.cancel()
            assert (stream.wait().stop_reason, stream.result.output) == ("cancelled", None)
        result = session.run(steps({"text": "none"}, {"next": AGAIN}), timeout=0.5)
        assert (result.stop_reason, result.output) == ("timeout", None)
        result = session.run(steps({"error": "model_unavailable"}))
        assert (result.stop_reason, result.output) == ("error", None)
        # The one more call is one too many.
        more = [{"model": "one more"}, {"sleep": 30}]
        result = session.run(steps({"model": "one"}, {"next": more}), max_turns=1)
        assert (result.stop_reason, result.output) == ("max_turns", None)
        # What fits is taken, whoever is in a hurry.
        assert session.run(steps({"text": json.dumps(BO)})).output == Horse(name="Bo", age=4)


def test_a_program_that_dies_when_it_is_asked_again(models: ModelServer) -> None:
    with fake(models) as session:
        result = session.run(steps({"text": "none"}, {"next": [{"exit": 3}]}))
        assert result.error is not None
        assert (result.error.code, result.output) == ("program_exited", None)


def test_a_stream_shows_all_and_raises_for_its_result(models: ModelServer) -> None:
    with fake(models) as session:
        stream = session.stream(steps({"text": "none"}, {"next": [{"text": "none again"}]}))
        done = list(stream)[-1]
        assert isinstance(done, Done)
        assert done.result.error is not None
        assert (done.result.error.code, done.result.text) == ("output_invalid", "none again")
        for result in (lambda: stream.result, stream.wait):
            with pytest.raises(OutputInvalid) as raised:
                result()
            assert raised.value.text == "none again"

        async def finished() -> Any:
            return await session.astream(steps({"text": "none"}, {"next": [{"text": json.dumps(NOBODY)}]})).finished

        with pytest.raises(OutputInvalid, match="no such horse"):
            asyncio.run(finished())
    with pytest.raises(OutputInvalid):
        hostler.agent(FAKE_PROGRAM.harness, steps({"text": ""}), output=Horse, **FAKE_PROGRAM.options(models))
    with pytest.raises(OutputInvalid):
        asyncio.run(
            hostler.aagent(FAKE_PROGRAM.harness, steps({"text": ""}), output=Horse, **FAKE_PROGRAM.options(models))
        )


def test_what_the_program_gives_by_its_own_means_is_checked_too(models: ModelServer) -> None:
    """It says that all went well, and the output is missing, null, of the wrong type."""
    with fake(models) as session:
        for bad in (None, {}, {"name": 3}, [BO], "Bo"):
            result = session.run(steps({"text": "done"}, {"output": bad}, {"next": [{"text": "here"}, {"output": BO}]}))
            assert result.output == Horse(name="Bo", age=4)
            assert len(result.warnings) == 1


# ---- stored ---------------------------------------------------------------------------------------------------------


def test_a_recorded_outcome_is_the_same_again(models: ModelServer, tmp_path: Path) -> None:
    host = hostler.local_host(data_dir=tmp_path / "hosted")
    harness = hostler.create_harness(
        host=host, runtime=FAKE_PROGRAM.harness, output=Horse, **FAKE_PROGRAM.options(models)
    )
    good, bad = steps({"text": json.dumps(BO)}), steps({"text": "none"}, {"next": [{"text": "no"}]})

    def call(prompt: str, run: str, **more: Any) -> Any:
        return hostler.generate_harness(harness=harness, prompt=prompt, session="k", run_id=run, **more)

    for _ in range(2):
        assert call(good, "good").output == Horse(name="Bo", age=4)
        with pytest.raises(OutputInvalid) as raised:
            call(bad, "bad")
        assert raised.value.text == "no"
        assert call(steps({"text": "[1, 2]"}), "other", output=list[int]).output == [1, 2]
    assert harness.sessions.status("k").turns == 3
    rows = sqlite3.connect(tmp_path / "hosted" / "store.db").execute("select result from turns order by position")
    stored = [json.loads(result) for (result,) in rows]
    assert [result["output"] for result in stored] == [BO, None, [1, 2]]
    harness.sessions.delete("k")


def test_an_answer_that_was_asked_for_again_is_known_in_the_callers_transcript(
    models: ModelServer, tmp_path: Path
) -> None:
    host = hostler.local_host(data_dir=tmp_path / "hosted")
    harness = hostler.create_harness(
        host=host, runtime=FAKE_PROGRAM.harness, output=Horse, **FAKE_PROGRAM.options(models)
    )
    messages = [{"role": "user", "content": steps({"text": "none"}, {"next": [{"text": json.dumps(BO)}]})}]
    for _ in range(2):
        result = hostler.generate_harness(harness=harness, messages=messages, session="k")
        assert result.output == Horse(name="Bo", age=4)
        messages += [{"role": "assistant", "content": result.text}, {"role": "user", "content": messages[0]["content"]}]
    assert result.context == "appended"
    harness.sessions.delete("k")


def test_what_is_no_type_is_refused_before_anything_is_made(models: ModelServer, state_dir: Path) -> None:
    options = FAKE_PROGRAM.options(models)
    for bad, error in (("Horse", TypeError), ({"type": "hors"}, ValueError), ({"$ref": "http://x/y"}, ValueError)):
        with pytest.raises(error, match="output="):
            hostler.agent_session(FAKE_PROGRAM.harness, output=bad, **options)
        with pytest.raises(error, match="output="):
            hostler.create_harness(
                host=hostler.local_host(state_dir), runtime=FAKE_PROGRAM.harness, output=bad, **options
            )
    assert not (state_dir / "sessions").exists() or not list((state_dir / "sessions").iterdir())
    with fake(models) as session:
        with pytest.raises(TypeError, match="output="):
            session.run("x", output="Horse")
        with pytest.raises(CapabilityUnsupported, match="skills"):
            session.run("x", skills=[])
        assert models.calls == []


# ---- cut off by a crash ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [FAKE_PROGRAM, *REAL], ids=ids)
def test_the_app_is_killed_when_the_answer_is_asked_for_again(
    program: Program, models: ModelServer, workspace: Path
) -> None:
    options = {**program.options(models), "output": SCHEMA}
    if program.fake:
        late: list[Any] = [{"text": "wait"}, {"sleep": 1.5}, {"text": json.dumps(BO)}]
        prompt = "Which horse?\n" + steps({"text": "none"}, {"next": late})
    else:
        prompt = answers(program, models, "none")
        models.script(
            [
                {"delay": 1.5, "tool": "StructuredOutput", "args": BO}
                if program is CLAUDE
                else {"delay": 1.5, "text": json.dumps(BO)}
            ]
        )
    job = {"harness": program.name, "options": options, "prompts": [prompt], "workspace": str(workspace)}
    app = App(job)
    app.until("event Retract")
    app.kill()
    with hostler.agent_resume(
        state_of(app), sandbox=hostler.sandbox.local(workspace), **program.options(models)
    ) as session:
        result = session.run(answers(program, models, {"name": "Ida"}))
        assert result.output == {"name": "Ida"}
        events = of_turn(journal(session, result.turn_id), 0)
    assert [type(e).__name__ for e in events].count("Done") == 1
    assert events[-1].result.output == BO
    assert events[-1].result.stop_reason == "done"
    assert len([e for e in events if isinstance(e, Notice) and e.code == "output_asked_again"]) == 1
    if not program.fake:
        prompts = [c for c in models.calls if "does not fit what was asked for" in json.dumps(c.body)]
        assert json.dumps(prompts[-1].body).count("does not fit what was asked for") == 1


@pytest.mark.parametrize("text", ["none", json.dumps(BO)])
def test_the_keeper_is_killed_behind_the_app(text: str, models: ModelServer, workspace: Path, state_dir: Path) -> None:
    """The end of the turn is in the log that both have left; nobody can be asked again."""
    prompt = "Which horse?\n" + steps({"text": "first "}, {"sleep": 1}, {"text": text})
    options = FAKE_PROGRAM.options(models)
    job = {
        "harness": "fake",
        "options": {**options, "output": SCHEMA},
        "prompts": [prompt],
        "workspace": str(workspace),
    }
    app = App(job)
    app.until("event Text")
    app.kill()
    (keeper,) = keepers_of(state_dir)
    time.sleep(1.5)
    keeper.kill()
    keeper.wait(5)
    with hostler.agent_resume(state_of(app), sandbox=hostler.sandbox.local(workspace), **options) as session:
        result = session.run(steps({"text": json.dumps(BO)}))
        assert result.output == BO
        done = of_turn(journal(session, result.turn_id), 0)[-1].result
    if text == "none":
        assert (done.stop_reason, done.error.code, done.output) == ("error", "output_invalid", None)
    else:
        assert (done.stop_reason, done.output) == ("done", BO)


def test_a_type_that_blocks_blocks_nobody_else(models: ModelServer) -> None:
    gate = threading.Event()

    class Slow(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def wait(cls, n: int) -> int:
            assert gate.wait(20)
            return n

    with fake(models) as slow, fake(models) as quick:
        stream = slow.stream(steps({"text": '{"n": 1}'}), output=Slow)
        start = time.monotonic()
        assert quick.run(steps({"text": json.dumps(BO)})).output == Horse(name="Bo", age=4)
        assert time.monotonic() - start < 10
        gate.set()
        assert stream.wait().output == Slow(n=1)
