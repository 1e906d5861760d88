"""The real Claude Code against the scripted model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.runtimes.claude_support import PROGRAM, Place
from tests.runtimes.stdio_driver import text_of
from tests.runtimes.tool_server import TOKEN, tool_server

from hostler.runtimes.claude_code import RUNTIME
from hostler.testing.model_server import ModelServer
from hostler.types.events import Answered, Approval, Notice, Retract, Text, ToolCall, ToolResult
from hostler.types.runtime import Answer, CodecEvent, Command, Ended, Identified, In, Interrupt, Prompt, Steer, Unfit

pytestmark = [pytest.mark.real, pytest.mark.skipif(not PROGRAM, reason="Claude Code is not installed")]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
AGENT: dict[str, Any] = {
    "tool": "Agent",
    "args": {"description": "d", "prompt": "p", "subagent_type": "general-purpose"},
}
SLEEP = {"shell": "python3 -c 'import time; time.sleep(30)'"}


@pytest.fixture
def place(tmp_path: Path, model_server: ModelServer) -> Place:
    return Place(tmp_path, model_server)


def ended(events: list[CodecEvent]) -> Ended:
    assert isinstance(events[-1], Ended)
    return events[-1]


def result(events: list[CodecEvent]) -> ToolResult:
    return next(e for e in events if isinstance(e, ToolResult))


def tools(place: Place) -> set[str]:
    return {tool["name"] for tool in place.server.calls[-1].body["tools"]}


def said(place: Place) -> str:
    return json.dumps(place.server.calls[-1].body)


def test_turns_in_one_process_and_resume_in_the_next(place: Place) -> None:
    with place.program() as d:
        assert "CODEWORD-one" in str(ended(d.run(Prompt("t1", "CODEWORD-one"))).text)
        place.server.script([{"shell": "echo hi"}, {"text": "done"}])
        events = d.run(Prompt("t2", "go"))
        assert (result(events).output, ended(events).text) == ("hi", "done")
        id = d.state["id"]
        d.kill()
    with place.program(resume=id) as d:
        events = d.run(Prompt("t3", "and?"))
        assert Identified(id) in events
        assert "CODEWORD-one" in str(ended(events).text)
    history = RUNTIME.history(place.native(), id)
    turn, tool_turn = ["user", "assistant"], ["user", "assistant", "tool", "assistant"]
    assert [m["role"] for m in history] == [*turn, *tool_turn, *turn]
    assert not any(b"session-token-1" in data for data in place.native().values())


def test_its_native_files_are_enough_to_go_on_elsewhere(tmp_path: Path, model_server: ModelServer) -> None:
    """Another home and another working directory, as on another machine."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here, there = Place(tmp_path / "here", model_server), Place(tmp_path / "there", model_server)
    with here.program() as d:
        model_server.script([AGENT, {"text": "inner"}, {"text": "CODEWORD-agent"}])
        d.run(Prompt("t1", "CODEWORD-prompt"))
        id = d.state["id"]
    for native in RUNTIME.native_files:
        for path in here.home.glob(native.pattern.replace("{id}", id)):
            if path.is_file():
                copy = there.home / path.relative_to(here.home)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
    assert len(there.native()) >= 2
    with there.program(resume=id) as d:
        assert "memo=CODEWORD-agent,CODEWORD-prompt" in str(ended(d.run(Prompt("t2", "and?"))).text)
        assert str(there.work) in said(there)


def test_rules_of_the_launch_hold_on_every_turn(place: Place) -> None:
    with place.program(instructions="CODEWORD-old") as d:
        d.run(Prompt("t1", "hi"))
        assert "CODEWORD-old" in said(place)
        id = d.state["id"]
    with place.program(resume=id, instructions="CODEWORD-new", deny=["bash:rm *"], disable_tools=["web_search"]) as d:
        place.server.script([{"shell": "rm -rf x"}, {"text": "done"}])
        events = d.run(Prompt("t2", "go"))
        assert "CODEWORD-new" in said(place)
        assert "CODEWORD-old" not in said(place)
        assert result(events).is_error
        assert "WebSearch" not in tools(place)
        assert "AskUserQuestion" not in tools(place)
        assert tools(place) <= RUNTIME.tool_names  # else a rule for one would be refused
    models = {request.body["model"] for request in place.server.calls}
    assert models == {"scripted"}
    assert {request.api for request in place.server.requests} == {"anthropic"}


def test_instructions_of_the_project_are_read_and_configuration_is_not(place: Place) -> None:
    settings = {
        "hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": f"touch {place.root}/ran"}]}]},
        "permissions": {"allow": ["Bash", "Write"], "defaultMode": "bypassPermissions"},
    }
    (place.work / "CLAUDE.md").write_text("CODEWORD-project")
    servers = {"evil": {"command": "touch", "args": [f"{place.root}/ran"]}}
    for folder in (place.work / ".claude", place.home / ".claude"):
        (folder / "skills" / "evil").mkdir(parents=True)
        (folder / "skills" / "evil" / "SKILL.md").write_text("---\nname: evil\ndescription: CODEWORD-skill\n---\nx")
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "settings.local.json").write_text(json.dumps(settings))
    (place.work / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    trusted = {"allowedTools": ["Bash"], "hasTrustDialogAccepted": True, "mcpServers": servers}
    (place.home / ".claude" / ".claude.json").write_text(
        json.dumps({"projects": {str(place.work): trusted}, "mcpServers": servers})
    )
    asked: list[str] = []

    def deny(event: CodecEvent) -> Command | None:
        if not isinstance(event, Approval):
            return None
        asked.append(event.tool)
        return Answer(event.id, False, "no")

    with place.program(permissions="ask") as d:
        place.server.script([{"shell": "touch made"}, {"text": "done"}])
        d.run(Prompt("t1", "go"), on=deny)
    assert asked == ["bash"]
    assert "CODEWORD-project" in said(place)
    assert "CODEWORD-skill" not in said(place)
    assert not (place.root / "ran").exists()
    assert not (place.work / "made").exists()


def test_questions(place: Place) -> None:
    def answer(allow: bool) -> Any:
        return lambda e: Answer(e.id, allow, "not today") if isinstance(e, Approval) else None

    with place.program(permissions="ask", allow=["bash:mkdir *"]) as d:
        for turn, (command, allow, made) in enumerate([("touch a", True, "a"), ("touch b", False, "")]):
            place.server.script([{"shell": command}, {"text": "done"}])
            events = d.run(Prompt(f"t{turn}", "go"), on=answer(allow))
            assert result(events).is_error is not allow
            assert (place.work / "a").exists()
            assert not (place.work / "b").exists()
            assert bool(made) is allow
        place.server.script([{"shell": "mkdir c"}, {"text": "done"}])
        assert not any(isinstance(e, Approval) for e in d.run(Prompt("t3", "go")))
        place.server.script([{"shell": "touch d"}])
        events = d.run(Prompt("t4", "go"), on=lambda e: Interrupt() if isinstance(e, Approval) else None)
        assert any(isinstance(e, Answered) and not e.allow for e in events)
        assert ended(events).stop_reason == "interrupted"
        assert not (place.work / "d").exists()
        place.server.clear()
        assert ended(d.run(Prompt("t5", "still there?"))).stop_reason == "done"


@pytest.mark.parametrize("permissions", ["read-only", "edit"])
def test_what_may_not_be_changed_is_not(place: Place, permissions: str) -> None:
    outside = place.root / "outside"
    outside.mkdir()
    (place.work / "link").symlink_to(outside)
    (place.work / "file").symlink_to(outside / "file")
    (place.work / "readme").write_text("CODEWORD-readme")
    write = [str(place.work / "in"), str(outside / "out"), str(place.work / "link" / "out"), str(place.work / "file")]
    calls: list[dict[str, Any]] = [{"tool": "Write", "args": {"file_path": path, "content": "x"}} for path in write]
    calls += [{"tool": "Bash", "args": {"command": "touch shell"}}, {"tool": "WebFetch", "args": {"url": "http://x"}}]
    calls += [{"tool": "Read", "args": {"file_path": str(place.work / "readme")}}]
    with place.program(permissions=permissions) as d:
        place.server.script([*calls, {"text": "done"}])
        events = d.run(Prompt("t1", "go"))
    failed = [e.is_error for e in events if isinstance(e, ToolResult)]
    assert failed == [permissions == "read-only", True, True, True, True, True, False]
    assert list(outside.iterdir()) == []
    assert (place.work / "in").exists() is (permissions == "edit")
    assert not (place.work / "shell").exists()


def test_interrupts(place: Place) -> None:
    with place.program() as d:
        place.server.script([SLEEP])
        events = d.run(Prompt("t1", "go"), on=lambda e: Interrupt() if isinstance(e, ToolCall) else None, timeout=15)
        assert ended(events).stop_reason == "interrupted"
        place.server.clear()
        d.say(Prompt("t2", "go"))
        assert ended(d.until(Interrupt(), lambda e: isinstance(e, Ended), timeout=15)).stop_reason in (
            "interrupted",
            "done",
        )
        assert ended(d.run(Prompt("t3", "still there?"))).stop_reason == "done"


def test_steering_early_and_late(place: Place) -> None:
    def once(kind: type[Any], key: str) -> Any:
        left = [Steer(key, f"CODEWORD-{key}")]
        return lambda e: left.pop() if left and isinstance(e, kind) else None

    with place.program() as d:
        place.server.script([{"shell": "sleep 0.5; echo hi"}])
        events = d.run(Prompt("t1", "go"), on=once(ToolCall, "early"))
        assert "CODEWORD-early" in str(ended(events).text)
        place.server.script([{"text": "first", "hang": 0.5}])
        events = d.run(Prompt("t2", "go"), on=once(Text, "late"))
        assert "CODEWORD-late" in str(ended(events).text)
        assert ended(d.run(Prompt("t3", "last"))).text == text_of(d.events[-3:])


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ({"error": 401}, "model_auth"),
        ({"error": 429}, "model_rate_limited"),
        ({"error": 500}, "model_unavailable"),
        ({"error": 400}, "model_refused"),
        ({"text": "one two", "chunks": 2, "chunk_delay": 0.1, "drop": True}, "model_unavailable"),
    ],
)
def test_a_failing_model_ends_the_turn_and_not_the_session(place: Place, step: dict[str, Any], code: str) -> None:
    with place.program() as d:
        place.server.script([step] * 6)
        events = d.run(Prompt("t1", "go"), timeout=15)
        error = ended(events).error
        assert error is not None
        assert error.code == code
        assert text_of(events) == ""
        place.server.clear()
        assert ended(d.run(Prompt("t2", "CODEWORD-again"))).stop_reason == "done"


def test_one_cut_is_repeated(place: Place) -> None:
    with place.program() as d:
        cut = {"text": "one two", "chunks": 2, "chunk_delay": 0.1, "drop": True}
        place.server.script([cut, {"text": "whole"}])
        events = d.run(Prompt("t1", "go"))
    assert any(isinstance(e, Retract) for e in events)
    assert text_of(events) == ended(events).text == "whole"


def test_limits_schema_effort_and_images(place: Place) -> None:
    with place.program(max_turns=2, effort="low") as d:
        place.server.script([{"shell": "echo 1"}, {"shell": "echo 2"}, {"text": "never"}])
        assert ended(d.run(Prompt("t1", "go"))).stop_reason == "max_turns"
        place.server.clear()
        assert ended(d.run(Prompt("t2", "look", (("image/png", PNG),)))).stop_reason == "done"
        assert "low" in said(place)
        assert PNG in said(place)
        id = d.state["id"]
    with place.program(resume=id, output_schema=SCHEMA) as d:
        place.server.script([{"tool": "StructuredOutput", "args": {"n": 3}}])
        assert ended(d.run(Prompt("t3", "count"))).output == {"n": 3}


def test_a_conversation_that_is_gone(place: Place) -> None:
    id = "00000000-0000-4000-8000-00000000dead"
    with place.program(resume=id) as d:
        [unfit] = d.until(None, lambda e: isinstance(e, Unfit))
    assert isinstance(unfit, Unfit)
    assert id in unfit.message
    assert place.server.calls == []


def test_a_prompt_is_not_answered_twice(place: Place) -> None:
    with place.program() as d:
        d.run(Prompt("t1", "go"))
        id = d.state["id"]
    with place.program(resume=id) as d:
        error = ended(d.run(Prompt("t1", "go"), timeout=15)).error
    assert error is not None
    assert error.code == "prompt_repeated"
    assert len(place.server.calls) == 1


def test_commands_and_mentions_in_a_prompt_are_only_text(place: Place) -> None:
    (place.work / "notes").write_text("CODEWORD-notes")
    with place.program() as d:
        for number, prompt in enumerate(("/clear", "see @notes", "-p --help", "!ls", "#memo")):
            assert ended(d.run(Prompt(f"t{number}", prompt))).stop_reason == "done"
            assert json.dumps(prompt) in said(place)
        assert "CODEWORD-notes" not in said(place)


def test_a_sub_agent(place: Place) -> None:
    background = {**AGENT, "args": {**AGENT["args"], "run_in_background": True}}
    with place.program() as d:
        for number, call in enumerate((AGENT, background)):
            place.server.script([call, {"shell": "echo inner"}, {"text": "inner"}, {"text": "outer"}])
            events = d.run(Prompt(f"t{number}", "go"))
            inner = [e.event for e in events if isinstance(e, In)]
            assert [e.output for e in inner if isinstance(e, ToolResult)] == ["inner"]
            assert text_of(events).endswith("outer")
            assert ended(events).text == "outer"


# ---- the caller's tools -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("permissions", ["full", "read-only", "edit", "ask"])
def test_the_callers_tools(place: Place, permissions: str) -> None:
    dead = {"dead": {"command": "/nonexistent"}}
    with (
        tool_server() as url,
        place.program(permissions=permissions, tool_url=url, tool_token=TOKEN, mcp_servers=dead) as d,
    ):
        place.server.script([{"tool": "mcp__host__add", "args": {"a": 3, "b": 5}}, {"text": "done"}])
        events = d.run(Prompt("t1", "go"))
        call = next(e for e in events if isinstance(e, ToolCall))
        assert (call.name, call.builtin, result(events).output) == ("add", False, "sum=8")
        assert [e.code for e in events if isinstance(e, Notice)] == ["mcp_server_failed"]
        arguments = Path(f"/proc/{d.process.pid}/cmdline")
        if arguments.exists():
            assert TOKEN.encode() not in arguments.read_bytes()


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
