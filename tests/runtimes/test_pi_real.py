"""The real Pi under its Runtime, with a scripted model."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.runtimes.place import PIXEL, Place, of, script
from tests.runtimes.record_claude import on_first
from tests.runtimes.stdio_driver import Driver, text_of
from tests.runtimes.tool_server import TOKEN, tool_server

from hostler.runtimes.pi import RUNTIME
from hostler.testing.model_server import ModelServer
from hostler.types.errors import HarnessInstallFailed
from hostler.types.events import Approval, Reasoning, Retract, Text, ToolCall, ToolResult
from hostler.types.runtime import Answer, Ended, Identified, Interrupt, Prompt, Steer, StepStarted
from hostler.workspace import native

try:
    PROGRAM = RUNTIME.find({}, shutil.which)
except HarnessInstallFailed:
    PROGRAM = ()

pytestmark = [pytest.mark.real, pytest.mark.skipif(not PROGRAM, reason="Pi is not installed")]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ModelServer() as server:
        yield Place(RUNTIME, PROGRAM, tmp_path, server)


def id_of(program: Driver) -> str:
    return str(of(program.events, Identified)[0].native_id)


def test_a_turn_and_what_the_model_is_told(place: Place) -> None:
    (place.work / "AGENTS.md").write_text("INSTRUCTIONS-OF-THE-PROJECT")
    extension = place.work / ".pi" / "extensions" / "evil.js"
    extension.parent.mkdir(parents=True)
    extension.write_text('import fs from "node:fs"; export default () => fs.writeFileSync("evil", "");')
    (place.work / ".pi" / "settings.json").write_text('{"sessionDir": "sessions-of-the-project"}')
    (place.work / ".pi" / "APPEND_SYSTEM.md").write_text("CONFIGURATION-OF-THE-PROJECT")
    left = place.home / ".pi" / "agent"
    with place.program(instructions="INSTRUCTIONS-OF-THE-APP", effort="high") as program:
        events = program.run(
            Prompt("t1", script({"think": "hmm", "shell": "echo hi > a.txt; cat a.txt"}, {"text": "Done."}))
        )
        again = program.run(Prompt("t2", "remember CODEWORD-one", images=(("image/png", PIXEL),)))
    assert (place.work / "a.txt").read_text() == "hi\n"
    assert of(events, Reasoning)[0].delta == "hmm"
    assert of(events, ToolResult)[0].output == "hi\n"
    assert len(of(events, StepStarted)) == 2
    assert (events[-1], text_of(events)) == (Ended("done"), "Done.")
    assert "CODEWORD-one" in text_of(again)
    told = place.asked()
    assert "INSTRUCTIONS-OF-THE-APP" in told
    assert "INSTRUCTIONS-OF-THE-PROJECT" in told
    assert "CONFIGURATION-OF-THE-PROJECT" not in told
    assert f"data:image/png;base64,{PIXEL}" in told
    assert json.loads(told)["reasoning_effort"] == "high"
    assert not (place.work / "evil").exists()
    assert not (place.work / "sessions-of-the-project").exists()
    assert {request.api for request in place.server.requests} == {"chat"}  # it asks nobody for anything else
    # No cache of code lies where an agent could write one for the next start.
    assert not [path for path in (place.root / "tmp").rglob("*") if path.suffix in (".js", ".mjs", ".cjs")]
    assert left.is_dir()


def test_a_new_process_in_a_new_home_and_another_folder_goes_on_from_the_one_file(place: Place, tmp_path: Path) -> None:
    with place.program(instructions="FIRST-RULES") as program:
        program.run(Prompt("t1", "remember CODEWORD-one"))
        program.run(Prompt("t2", script({"shell": "echo TOOL-OUTPUT"})))
        conversation = id_of(program)
    other = Place(RUNTIME, PROGRAM, tmp_path / "other", place.server)
    (file,) = [path for path in place.native() if path.endswith(f"_{conversation}.jsonl")]
    (other.home / file).parent.mkdir(parents=True)
    shutil.copy(place.home / file, other.home / file)
    native.relocate(str(other.home), RUNTIME.native_files, conversation, str(other.work))
    with other.program(resume=conversation, instructions="SECOND-RULES") as program:
        events = program.run(Prompt("t3", script({"shell": "pwd"}, {"text": "there"})))
        assert id_of(program) == conversation
    assert of(events, ToolResult)[0].output.strip() == str(other.work)
    told = other.asked()
    assert "CODEWORD-one" in told
    assert "TOOL-OUTPUT" in told
    assert "SECOND-RULES" in told
    assert "FIRST-RULES" not in told
    said = [m["content"] for m in RUNTIME.history(other.native(), conversation) if m["role"] == "user"]
    assert said[0] == "remember CODEWORD-one"
    assert len(said) == 3


def test_a_conversation_that_is_not_there_is_not_begun_anew(place: Place) -> None:
    with place.program(resume="00000000-0000-4000-8000-000000000001") as program:
        with pytest.raises((AssertionError, OSError)):  # it ends, and says why
            program.run(Prompt("t", "hello"))
        program.process.wait(20)
    assert b"No session found" in b"".join(program.stderr)
    assert not place.server.requests


def test_edit_stays_in_its_folders_whatever_links_there_are(place: Place) -> None:
    outside = place.root / "outside"
    outside.mkdir()
    (outside / "kept.txt").write_text("kept")
    (place.work / "link").symlink_to(outside)
    (place.work / "nowhere").symlink_to(outside / "new.txt")
    (place.work / "odd\u00a0name").mkdir()
    good = ["in.txt", "new/deep.txt"]
    bad = ["link/x.txt", "nowhere", "../outside/x.txt", "~/x.txt", f"@{outside}/x.txt", "odd\u00a0name/x"]
    tried = [{"tool": "write", "args": {"path": way, "content": "written"}} for way in (*good, *bad)]
    change = {"path": str(outside / "kept.txt"), "edits": [{"oldText": "kept", "newText": "changed"}]}
    tried += [{"tool": "edit", "args": change}, {"tool": "bash", "args": {"command": "touch shell"}}]
    with place.program(permissions="edit") as program:
        events = program.run(Prompt("t1", script(*tried, {"text": "tried"})))
    assert [not r.is_error for r in of(events, ToolResult)] == [True, True, *[False] * 8]
    assert (place.work / "in.txt").read_text() == (place.work / "new" / "deep.txt").read_text() == "written"
    assert sorted(os.listdir(outside)) == ["kept.txt"]
    assert (outside / "kept.txt").read_text() == "kept"
    assert not list(place.home.glob("x.txt"))


def test_rules_and_questions(place: Place) -> None:
    rules: dict[str, Any] = {"allow": ("bash:echo *",), "deny": ("bash:rm *", "write"), "permissions": "ask"}
    tried = ["echo ok", "echo ok; touch by-echo", "touch asked; rm x", "touch asked"]
    answers = {"echo ok; touch by-echo": False, "touch asked": True}
    asked: list[str] = []

    def answer(event: Any) -> Any:
        if isinstance(event, Approval):
            asked.append(event.input["command"])
            return Answer(event.id, answers[asked[-1]], "REASON-of-the-user")
        return None

    with place.program(approvals=True, **rules) as program:
        events = program.run(Prompt("t1", script(*({"shell": c} for c in tried), {"text": "x"})), on=answer)
    assert asked == ["echo ok; touch by-echo", "touch asked"]
    assert [r.is_error for r in of(events, ToolResult)] == [False, True, True, False]
    assert of(events, ToolResult)[1].output == "REASON-of-the-user"
    assert os.listdir(place.work) == ["asked"]
    offered = [tool["function"]["name"] for tool in json.loads(place.asked())["tools"]]
    assert sorted(offered) == ["bash", "edit", "read"]


def test_an_interrupt_ends_the_tool_and_what_it_left_behind(place: Place) -> None:
    (place.work / "child.sh").write_text("sleep 311 & setsid sleep 312 & echo started > started; wait")
    with place.program() as program:
        program.say(Prompt("t1", script({"shell": "sh child.sh"})))
        program.until(None, lambda event: isinstance(event, ToolCall))
        end = time.monotonic() + 20
        while not (place.work / "started").exists() and time.monotonic() < end:
            time.sleep(0.02)
        events = program.until(Interrupt(), lambda event: isinstance(event, Ended))
        assert events[-1] == Ended("interrupted")
        after = program.run(Prompt("t2", "remember CODEWORD-after @@{}@@"))
        assert "CODEWORD-after" in text_of(after)
        running = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "311"]]
        assert not running
    for left in psutil.process_iter(["cmdline"]):  # what left the tree is the keeper's to sweep
        if left.info["cmdline"] == ["sleep", "312"]:
            left.kill()


def test_a_cut_stream_a_steer_and_a_call_that_takes_long(place: Place) -> None:
    with tool_server(wait=1.0) as url, place.program(tool_url=url, tool_token=TOKEN) as program:
        place.server.script([{"text": "one two", "chunks": 2, "chunk_delay": 0.1, "drop": True}, {"text": "fine"}])
        cut = program.run(Prompt("t1", "go"))
        assert (text_of(cut), len(of(cut, Retract)), len(of(cut, StepStarted))) == ("fine", 1, 1)
        adding = {"tool": "mcp__host__add", "args": {"a": 1, "b": 2}}
        steered = program.run(
            Prompt("t2", script(adding, {"text": "end"})), on=on_first(ToolCall, Steer("s1", "CODEWORD-steer"))
        )
        (call,) = of(steered, ToolCall)
        assert (call.name, call.builtin, of(steered, ToolResult)[0].output) == ("add", False, "sum=3")
        assert "CODEWORD-steer" in text_of(steered)
        assert len(of(steered, Text)) > 0
