"""Transcripts that are edited in every way, on each program, by what the model was told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.messages.support import Chat, Message, assistant, heard, marks, user
from tests.sessions.programs import CLAUDE, CODEX, FAKE_PROGRAM, IN_SOAK, OPENCODE, Program, ids, seen_as
from tests.sessions.programs import REAL as PROGRAMS

import hostler
from hostler.harness import Text
from hostler.testing.model_server import ModelServer

REAL = [*(pytest.param(p, marks=pytest.mark.real) for p in (CLAUDE, CODEX, OPENCODE)), *IN_SOAK]
FORKING = [p for p in REAL if hostler.agent_capabilities(p.values[0].harness).fork]
ALL = [FAKE_PROGRAM, *REAL]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def forked(program: Program) -> str:
    return "forked" if hostler.agent_capabilities(program.harness).fork else "seeded"


def copied(messages: list[Message]) -> list[Message]:
    return json.loads(json.dumps(messages))  # type: ignore[no-any-return]


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_the_program_follows_the_transcript(program: Program, models: ModelServer, tmp_path: Path) -> None:
    chat = Chat(program, models, tmp_path / "data")
    t = chat.say([chat.new()], "appended")
    for _ in range(2):
        t = chat.say([*t, chat.new()], "appended")

    edited = chat.say([*t[:4], chat.new()], forked(program))  # the last user message is another one
    edited = chat.say([*edited, chat.new()], "appended")
    again = chat.say(edited[:-1], forked(program))  # regenerate: the last answer is dropped
    assert again == edited
    gap = chat.say([*again[:2], *again[4:], chat.new()], forked(program))  # the middle is deleted
    swapped = [*gap[4:6], *gap[2:4], *gap[:2], *gap[6:]]  # another order: another beginning
    swapped = chat.say([*swapped, chat.new()], "seeded")

    twice = chat.say([*swapped, swapped[0]], "appended")  # a text that was said before, on purpose
    twice = chat.say([*twice, swapped[0], chat.new()], "appended")  # two new messages at once

    # Back in a client's own form: other white space, parts, tools, ids.
    parts: list[dict[str, Any]] = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Hm."},
        {"type": "tool-bash", "toolCallId": "c9", "state": "output-available", "input": {"command": "ls"}, "output": "x"},
        {"type": "text", "text": f"\n  {twice[-1]['content']} \n"},
    ]  # fmt: skip
    ui = {"id": "any", "role": "assistant", "parts": parts}
    shown = chat.say([*twice[:-1], ui, chat.new()], "appended")
    other = chat.say([chat.new(), assistant("An900q"), chat.new()], "seeded")  # the whole transcript is another
    other = chat.say([*other, chat.new()], "appended")
    t = chat.say([*shown, chat.new()], "seeded")  # and another client with the old one
    t = chat.say([*t, chat.new()], "appended")

    stopped = [
        *t,
        user("Un950q\n" + json.dumps([{"text": "An950q"}, {"hang": True}]) if program.fake else "Say Un950q."),
    ]
    models.clear()
    models.script([{"text": "An950q, at length.", "chunks": 2, "hang": 30}])
    stream = hostler.stream_harness(harness=chat.harness, messages=stopped, session=chat.key)
    assert any(isinstance(event, Text) for event in stream)
    stream.cancel()
    assert stream.wait().stop_reason == "cancelled"
    chat.say([*stopped, assistant("An950q"), chat.new()], forked(program))
    assert len(chat.harness.sessions.list()) == 1
    chat.close()


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_conversation_may_come_from_elsewhere_and_be_long(
    program: Program, models: ModelServer, tmp_path: Path
) -> None:
    chat = Chat(program, models, tmp_path / "data")
    long = [user(f"Un{n}q") if n % 2 else assistant(f"An{n}q") for n in range(1001, 1501)]
    call = {"id": "c1", "type": "function", "function": {"name": "bales", "arguments": '{"feed": "Un2000q"}'}}
    tools = [assistant(None, tool_calls=[call]), {"role": "tool", "tool_call_id": "c1", "content": "An2001q"}]
    t = chat.say([*long, user("Un1999q"), *tools, chat.new()], "seeded")
    t = chat.say([*t, chat.new()], "appended")
    chat.say([*t, chat.new()], "seeded", context="replay")
    before = chat.held()
    result = chat.send([user("Un5000q"), chat.new()], context="native")
    assert result.context == "native"
    assert chat.held()[: len(before)] == before  # the program's own conversation goes on
    assert "Un5000q" not in chat.held()
    chat.close()


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)  # three starts: too slow for OpenCode each time
def test_system_messages_are_the_instructions_of_the_call(
    program: Program, models: ModelServer, tmp_path: Path
) -> None:
    chat = Chat(program, models, tmp_path / "data", instructions="House rule Un7000q.")

    def told(*messages: Message) -> list[Message]:
        models.clear()
        models.script([{"text": "fine"}])
        result = hostler.generate_harness(harness=chat.harness, messages=list(messages), session="chat")
        assert result.context == "appended"
        return [*messages, assistant(result.text)]

    def asked() -> str:
        return json.dumps(models.calls[-1].body)

    t = told({"role": "system", "content": "Speak Un7001q."}, chat.new())
    assert "Un7000q" in asked()
    assert "Un7001q" in asked()
    t = told({"role": "system", "content": "Speak Un7002q."}, *t[1:], chat.new())
    if program is CODEX:  # it keeps in its history what it was told before, and is told the new after that
        assert asked().rindex("Un7001q") < asked().rindex("Un7002q")
    else:
        assert "Un7001q" not in asked()
    told(*t[1:], chat.new())
    assert asked().count("Un7002q") == (program is CODEX)
    assert asked().rindex("Un7000q") > asked().rfind("Un7002q")
    chat.close()


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_pictures_reach_the_model_and_other_files_their_path(
    program: Program, models: ModelServer, tmp_path: Path
) -> None:
    chat = Chat(program, models, tmp_path / "data")
    picture = {
        "type": "file",
        "mediaType": "image/png",
        "filename": "a pixel.png",
        "url": f"data:image/png;base64,{PIXEL}",
    }
    table = {"type": "file", "mediaType": "text/csv", "filename": "../t.csv", "data": b"secret,Un4000q"}
    chat.send([{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "See Un1q."}, picture, table]}])
    said = json.dumps(models.calls[-1].body)
    assert PIXEL in said
    assert "Un4000q" not in said
    folder = Path(chat.harness.sessions.get("chat").workdir) / "user-input" / "m1"
    assert f"{seen_as(folder)}/a_pixel.png" in said
    assert (folder / "t.csv").read_bytes() == b"secret,Un4000q"
    assert f"{seen_as(folder)}/t.csv (text/csv, 14 bytes)" in said
    chat.close()


@pytest.mark.parametrize("program", FORKING, ids=ids)
def test_a_fork_is_resumed_without_its_home(program: Program, models: ModelServer, tmp_path: Path) -> None:
    """Its files are saved with the session, those of the conversation that it came from included where it needs them."""
    import shutil

    chat = Chat(program, models, tmp_path / "data")
    t = chat.say([chat.new()])
    t = chat.say([*t, chat.new()])
    t = chat.say([*t[:2], chat.new()], "forked")
    t = chat.say([*t[:2], chat.new()], "forked")  # a fork of a fork
    session = chat.harness.sessions.get("chat")
    session.stop()
    (home,) = (tmp_path / "data" / "sessions").glob("*/home")
    shutil.rmtree(home)
    chat.say([*t, chat.new()], "appended")
    chat.close()


@pytest.mark.parametrize("program", FORKING, ids=ids)
def test_a_program_that_cannot_fork_there_is_told_all(program: Program, models: ModelServer, tmp_path: Path) -> None:
    import sqlite3

    chat = Chat(program, models, tmp_path / "data")
    t = chat.say([chat.new()])
    t = chat.say([*t, chat.new()])
    with sqlite3.connect(tmp_path / "data" / "store.db") as store:  # a place that its history does not have, or no more
        store.execute("update spoken set at = '0f0f0f0f-0000-4000-8000-000000000000'")
    store.close()
    messages = [*t[:2], chat.new()]
    result = chat.send(messages)
    assert (result.stop_reason, result.context) == ("done", "seeded")
    assert any("fork" in warning for warning in result.warnings)
    (call,) = models.calls
    assert heard(call) == chat.wanted(messages)
    chat.say([*messages, assistant(result.text), chat.new()], "appended")
    assert marks(t)  # the old branch was something
    chat.close()
