"""What the journal holds: large contents by reference, nothing under secret keys, and less with ``trace=False``."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import Accepted, Done, FileChange, Text, ToolCall, ToolResult
from hostler.testing.model_server import ModelServer
from hostler.types.events import FileStaged, Record
from tests.sessions.programs import ALL, FAKE_PROGRAM, KEY, Program, ids

FAKE = FAKE_PROGRAM.harness
pytestmark = pytest.mark.usefixtures("nothing_left")


def journal(session: hostler.Session, turns: int = 1) -> list[Record]:
    found: list[Record] = []
    follow = session.follow(after=0)
    while sum(isinstance(r.event, Done) for r in found) < turns:
        found.append(next(follow))
    follow.close()
    return found


def in_the_store(state_dir: Path) -> str:
    """All that the tables hold."""
    database = sqlite3.connect(state_dir / "store.db")
    try:
        return "\n".join(database.iterdump())
    finally:
        database.close()


def test_large_contents_lie_beside_the_journal(models: ModelServer, state_dir: Path) -> None:
    output, argument = "o" * 300_000, "i" * 300_000
    steps = [{"tool": "Fetch", "input": {"text": argument}, "output": output}, {"text": "done"}]
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session:
        result = session.run("go\n" + json.dumps(steps))
        live = [e for e in result.events if isinstance(e, (ToolCall, ToolResult))]
        read = [r.event for r in journal(session) if isinstance(r.event, (ToolCall, ToolResult))]
        assert read == live
        assert (live[0].input, live[1].output) == ({"text": argument}, output)  # type: ignore[union-attr]
        database = sqlite3.connect(state_dir / "store.db")
        rows = [text for (text,) in database.execute("select event from records")]
        database.close()
        assert max(len(row) for row in rows) < 10_000
        blobs = list(state_dir.glob("sessions/*/private/blobs/*"))
        assert len(blobs) == 2
        # Changed or gone: what is left is the beginning, never something else.
        blobs[0].unlink()
        blobs[1].chmod(0o600)
        blobs[1].write_bytes(b'"forged"')
        short = [r.event for r in journal(session) if isinstance(r.event, (ToolCall, ToolResult))]
        assert short[0].input == {"beginning": json.dumps({"text": argument})[:1000]}  # type: ignore[union-attr]
        assert short[1].output == "o" * 1000  # type: ignore[union-attr]


def test_secret_keys_are_masked_in_the_trace_and_nowhere_else(models: ModelServer, state_dir: Path) -> None:
    seen: list[Any] = []

    def login(user: str, password: str) -> str:
        """Logs in."""
        seen.append((user, password))
        return "in"

    options = FAKE_PROGRAM.options(models)
    host = hostler.local_host(data_dir=state_dir)
    harness = hostler.create_harness(host=host, runtime=FAKE, tools=[login], **options)
    steps = json.dumps([{"mcp": "login", "arguments": {"user": "u", "password": "from-the-model"}}])
    extra = {"customer": {"id": 7, "api_key": "from-the-app"}}
    hostler.generate_harness(harness=harness, prompt="go", session="k", extra_body=extra, run_id="r")
    hostler.generate_harness(harness=harness, prompt="go", session="k", extra_body=extra, run_id="r")  # known again
    session = harness.sessions.get("k")
    session.files.write("x", b"", metadata={"token": "from-the-upload"})
    result = session.run(f"go\n{steps}")
    (call,) = [e for e in result.events if isinstance(e, ToolCall)]
    assert seen == [("u", "from-the-model")]
    assert call.input == {"user": "u", "password": "[masked]"}
    records = journal(session, 2)
    (accepted, _) = [r.event for r in records if isinstance(r.event, Accepted)]
    assert accepted.extra_body == {"customer": {"id": 7, "api_key": "[masked]"}}
    (staged,) = [r.event for r in records if isinstance(r.event, FileStaged)]
    assert staged.metadata == {"token": "[masked]"}
    stored = in_the_store(state_dir)
    assert "from-the-app" not in stored
    assert "from-the-upload" not in stored
    with pytest.raises(hostler.OptionsMismatch):
        hostler.generate_harness(harness=harness, prompt="go", session="k", extra_body={}, run_id="r")
    harness.sessions.delete("k")


def test_a_key_in_a_prompt_is_masked_in_the_journal(models: ModelServer) -> None:
    """The program gets the prompt as it is: that is what its caller says."""
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session:
        session.run(f"{'.' * 190} {KEY} is the key")
        (accepted,) = [r.event for r in journal(session) if isinstance(r.event, Accepted)]
    assert accepted.preview == f"{'.' * 190} [masked] "


def test_the_app_says_which_keys(models: ModelServer) -> None:
    options = FAKE_PROGRAM.options(models)
    steps = "go\n" + json.dumps([{"tool": "T", "input": {"password": "p", "iban": "i"}}, {"text": "x"}])
    for redact, shown in ((["iban"], {"password": "p", "iban": "[masked]"}), ([], {"password": "p", "iban": "i"})):
        with hostler.agent_session(FAKE, redact=redact, **options) as session:
            (call,) = [e for e in session.run(steps).events if isinstance(e, ToolCall)]
            assert call.input == shown
    for wrong in ("password", [7], [""]):
        with pytest.raises(TypeError, match="redact takes a list"):
            hostler.agent_session(FAKE, redact=wrong, **options)
    with pytest.raises(TypeError, match="trace must be"):
        hostler.agent_session(FAKE, trace="no", **options)


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_without_a_trace_the_outcome_stays(program: Program, models: ModelServer, state_dir: Path) -> None:
    word = "untraced-word"
    with hostler.agent_session(program.harness, trace=False, **program.options(models)) as session:
        result = session.run(program.shell(f"echo {word}-output; echo {word}-file > f"))
        assert any(word in e.output for e in result.events if isinstance(e, ToolResult))  # whoever listens hears it
        assert [f.path for f in result.files] == ["f"]
        stored = in_the_store(state_dir)
        assert program.fake or f"{word}-output" not in stored  # the fake one answers with what its shell said
        assert f"{word}-file" not in stored
        records = journal(session)
        assert [r.seq for r in records] == list(range(1, len(records) + 1))
        kinds = {type(r.event) for r in records}
        assert {Accepted, Text, ToolCall, ToolResult, FileChange, Done} <= kinds
        assert all(not e.delta for r in records if isinstance(e := r.event, Text))
        assert all(not e.output for r in records if isinstance(e := r.event, ToolResult))
        done = records[-1].event
        assert isinstance(done, Done)
        assert done.result.text == result.text
        assert session.run(program.say("more")).stop_reason == "done"


def test_without_a_trace_large_contents_are_not_put_aside(models: ModelServer, state_dir: Path) -> None:
    steps = "go\n" + json.dumps([{"tool": "Fetch", "input": {}, "output": "o" * 300_000}, {"text": "done"}])
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session:
        result = session.run(steps, trace=False)
        assert [len(e.output) for e in result.events if isinstance(e, ToolResult)] == [300_000]
        assert not list(state_dir.glob("sessions/*/private/blobs/*"))
        assert "ooooo" not in in_the_store(state_dir)
        session.run(steps)  # the rule was of one call
        assert len(list(state_dir.glob("sessions/*/private/blobs/*"))) == 1
