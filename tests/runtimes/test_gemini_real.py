"""The real Gemini CLI under its Runtime, with a scripted model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runtimes.place import PIXEL, Place, of, script
from tests.runtimes.stdio_driver import text_of

from hostler.runtimes.gemini_cli import RUNTIME
from hostler.testing.model_server import ModelServer
from hostler.types.errors import HarnessInstallFailed
from hostler.types.events import Approval, ToolResult
from hostler.types.runtime import Answer, Ended, Identified, Prompt, StepStarted, Unfit

try:
    PROGRAM = RUNTIME.find({}, shutil.which)
except HarnessInstallFailed:
    PROGRAM = ()

pytestmark = [pytest.mark.real, pytest.mark.skipif(not PROGRAM, reason="Gemini CLI is not installed")]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ModelServer() as server:
        yield Place(RUNTIME, PROGRAM, tmp_path, server)


def test_turns_and_what_the_model_is_told_here_and_in_a_new_home_and_another_folder(
    place: Place, tmp_path: Path
) -> None:
    """All in the minute in which the session was made, when its own way to load it would destroy it."""
    with place.program(instructions="FIRST-RULES", model="coder") as program:
        events = program.run(Prompt("t1", script({"shell": "echo hi > a.txt; cat a.txt"}, {"text": "Done."})))
        again = program.run(Prompt("t2", "/help CODEWORD-one", images=(("image/png", PIXEL),)))
        session = of(program.events, Identified)[0].native_id
    assert (place.work / "a.txt").read_text() == "hi\n"
    assert of(events, ToolResult)[0].output == "hi"
    assert len(of(events, StepStarted)) == 2
    assert (events[-1], text_of(events)) == (Ended("done"), "Done.")
    assert "CODEWORD-one" in text_of(again)
    assert "FIRST-RULES" in place.asked()
    assert PIXEL in place.asked()
    # It asks nobody for anything else; with a picture it has the tokens counted.
    methods = {request.path.partition("?")[0] for request in place.server.requests}
    assert methods == {f"/v1beta/models/coder:{method}" for method in ("streamGenerateContent", "countTokens")}
    other = Place(RUNTIME, PROGRAM, tmp_path / "other", place.server)
    (file,) = [path for path in place.native() if path.endswith(f"-{session[:8]}.jsonl")]
    (other.home / file).parent.mkdir(parents=True)
    shutil.copy(place.home / file, other.home / file)
    for number in (3, 4):  # and once more
        with other.program(resume=session, instructions="SECOND-RULES", model="coder") as program:
            events = program.run(Prompt(f"t{number}", script({"shell": "pwd"}, {"text": "there"})))
            assert of(program.events, Identified)[0].native_id == session
        assert of(events, ToolResult)[0].output == str(other.work)
        told = other.asked()
        assert "CODEWORD-one" in told
        assert ("SECOND-RULES" in told, "FIRST-RULES" in told) == (True, False)
    said = [m["content"] for m in RUNTIME.history(other.native(), session) if m["role"] == "user"]
    assert len(said) == 4
    assert said[1][0] == {"type": "text", "text": "/help CODEWORD-one"}


def test_a_session_that_is_not_there_is_not_begun_anew(place: Place) -> None:
    with place.program(resume="0b0e1a5e-0000-4000-8000-000000000001") as program:
        events = program.run(Prompt("t", "hello"))
    assert of(events, Unfit)
    assert not place.server.requests


def test_edit_rules_and_questions(place: Place) -> None:
    outside = place.root / "outside"
    outside.mkdir()
    (place.work / "link").symlink_to(outside)
    (place.work / ".gemini" / "policies").mkdir(parents=True)
    (place.work / ".gemini" / "policies" / "mine.toml").write_text(
        '[[rule]]\ntoolName = "*"\ndecision = "allow"\npriority = 999\n'
    )
    ways = ["in.txt", "link/x.txt", f"{outside}/x.txt", "../outside/x.txt"]
    tried = [{"tool": "write_file", "args": {"file_path": way, "content": "written"}} for way in ways]
    shell = {"tool": "run_shell_command", "args": {"command": "touch shell"}}
    with place.program(permissions="edit") as program:
        program.run(Prompt("t1", script(*tried, shell, {"text": "tried"})))
        assert text_of(program.events) == "tried"
    assert (place.work / "in.txt").read_text() == "written"
    assert os.listdir(outside) == []
    assert not (place.work / "shell").exists()
    asked: list[str] = []

    def answer(event: Any) -> Any:
        if isinstance(event, Approval):
            asked.append(event.input["input"]["command"])
            return Answer(event.id, asked[-1] == "touch asked")
        return None

    rules: dict[str, Any] = {"allow": ("bash:git *",), "deny": ("bash:rm *", "write"), "permissions": "ask"}
    commands = ["git --version", "touch asked", "touch denied", "rm asked"]
    with place.program(approvals=True, **rules) as program:
        events = program.run(Prompt("t2", script(*({"shell": c} for c in commands), {"text": "x"})), on=answer)
    assert asked == ["touch asked", "touch denied"]
    assert [r.is_error for r in of(events, ToolResult)][:3] == [False, False, True]
    assert (place.work / "asked").exists()
    assert not (place.work / "denied").exists()
    offered = [tool["name"] for tool in json.loads(place.asked())["tools"][0]["functionDeclarations"]]
    assert "write_file" not in offered
    assert "replace" in offered
