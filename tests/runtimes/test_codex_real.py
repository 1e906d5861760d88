"""The real Codex under its Runtime, with a scripted model."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.runtimes.stdio_driver import Driver, driver, text_of
from tests.runtimes.tool_server import TOKEN, tool_server

from hostler.runtimes.codex import RUNTIME
from hostler.testing.model_server import ModelServer
from hostler.types.errors import HarnessInstallFailed
from hostler.types.events import Approval, Notice, Reasoning, Retract, Text, ToolCall, ToolResult
from hostler.types.runtime import (
    Answer,
    CodecEvent,
    Ended,
    Identified,
    Interrupt,
    LaunchContext,
    Prompt,
    Steer,
    StepStarted,
    Unfit,
)

try:
    PROGRAM = RUNTIME.find({"program": os.environ.get("CODEX_BIN")}, shutil.which)  # to try another version
except HarnessInstallFailed:
    PROGRAM = ()

pytestmark = [pytest.mark.real, pytest.mark.skipif(not PROGRAM, reason="Codex is not installed")]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PATCH = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: p.txt\n+hello\n*** End Patch\nEOF\n"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as model:
        yield model


def place(root: Path, server: ModelServer, **rules: Any) -> LaunchContext:
    folders = {name: root / name for name in ("home", "tmp", "session", "files")}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return LaunchContext(
        program=PROGRAM,
        home=str(folders["home"]),
        tmp=str(folders["tmp"]),
        workdir=str(folders["session"]),
        files_dir=str(folders["files"]),
        model="scripted",
        model_url=server.url,
        token="a-token",
        **rules,
    )


def of(events: list[CodecEvent], *kinds: type) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


def script(*steps: dict[str, Any]) -> str:
    return f"Do it. @@{json.dumps(list(steps))}@@"


def requested(server: ModelServer, at: int = -1) -> str:
    return json.dumps([r for r in server.requests if r.api == "responses"][at].body)


def thread_of(program: Driver) -> str:
    return str(of(program.events, Identified)[0].native_id)


def test_a_turn_with_a_tool_and_what_the_model_is_told(tmp_path: Path, server: ModelServer) -> None:
    ctx = place(tmp_path, server, instructions="INSTRUCTIONS-OF-THE-APP", effort="high")
    work = Path(ctx.workdir)
    (work / "AGENTS.md").write_text("INSTRUCTIONS-OF-THE-PROJECT")
    (work / ".codex").mkdir()
    (work / ".codex" / "config.toml").write_text('developer_instructions = "CONFIGURATION-OF-THE-PROJECT"\n')
    with driver(RUNTIME, ctx) as program:
        events = program.run(
            Prompt("t1", script({"think": "hmm", "shell": "echo hi > a.txt; cat a.txt"}, {"text": "Done."}))
        )
        again = program.run(Prompt("t2", "remember CODEWORD-one", images=(("image/png", PIXEL),)))
    assert (work / "a.txt").read_text() == "hi\n"
    assert of(events, Reasoning)[0].delta == "hmm"
    assert [c.name for c in of(events, ToolCall)] == ["bash"]
    assert of(events, ToolResult)[0].output == "hi\n"
    assert len(of(events, StepStarted)) == 2
    assert (events[-1], text_of(events)) == (Ended("done", text="Done."), "Done.")
    assert "CODEWORD-one" in text_of(again)
    told = requested(server)
    assert "INSTRUCTIONS-OF-THE-APP" in told
    assert "INSTRUCTIONS-OF-THE-PROJECT" in told
    assert "CONFIGURATION-OF-THE-PROJECT" not in told
    assert f"data:image/png;base64,{PIXEL}" in told
    assert json.loads(told)["reasoning"]["effort"] == "high"


def test_a_new_process_in_a_new_home_goes_on_from_the_one_file(tmp_path: Path, server: ModelServer) -> None:
    ctx = place(tmp_path / "a", server, instructions="FIRST-RULES")
    with driver(RUNTIME, ctx) as program:
        program.run(Prompt("t1", "remember CODEWORD-one"))
        program.run(Prompt("t2", script({"shell": "echo TOOL-OUTPUT"})))
        thread = thread_of(program)
    pattern = RUNTIME.native_files[0].pattern.replace("{id}", thread)
    (file,) = Path(ctx.home).glob(pattern)
    other = place(tmp_path / "b", server, instructions="SECOND-RULES", resume=thread)
    kept = Path(other.home) / file.relative_to(ctx.home)
    kept.parent.mkdir(parents=True)
    shutil.copy(file, kept)
    other = dataclasses.replace(other, workdir=ctx.workdir)
    with driver(RUNTIME, other) as program:
        events = program.run(Prompt("t3", script({"shell": "ls"}, {"shell": "pwd"}, {"text": "CODEWORD-two"})))
        memory = program.run(Prompt("t4", "what?"))
    assert events[0] == Identified(thread)
    assert of(events, ToolResult)[1].output.strip() == ctx.workdir
    assert len(of(events, StepStarted)) == 3
    assert {"CODEWORD-one", "CODEWORD-two"} <= set(text_of(memory).partition("memo=")[2].split(","))
    told = requested(server)
    assert "TOOL-OUTPUT" in told
    assert "SECOND-RULES" in told
    history = RUNTIME.history({str(kept.relative_to(other.home)): kept.read_bytes()}, thread)
    assert history[0] == {"role": "user", "content": "remember CODEWORD-one"}
    assert [m["role"] for m in history[:5]] == ["user", "assistant", "user", "assistant", "tool"]
    assert "TOOL-OUTPUT" in history[4]["content"]


def test_a_thread_that_is_gone_is_unfit_before_any_model_request(tmp_path: Path, server: ModelServer) -> None:
    ctx = place(tmp_path, server, resume="01a227a0-a46f-7fe3-ba26-0d596376e217")
    with driver(RUNTIME, ctx) as program:
        assert [type(e) for e in program.run(Prompt("t1", "hello"))] == [Unfit]
    assert server.requests == []


def test_an_interrupt_ends_the_command_and_the_next_turn_works(tmp_path: Path, server: ModelServer) -> None:
    ctx = place(tmp_path, server)

    def commands() -> list[str]:
        lines = []
        for child in psutil.Process(program.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                lines.append(" ".join(child.cmdline()))
        return lines

    def interrupt(event: CodecEvent) -> Interrupt | None:
        if not isinstance(event, ToolCall):
            return None
        deadline = time.monotonic() + 10
        while not any("sleep 99" in line for line in commands()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return Interrupt()

    with driver(RUNTIME, ctx) as program:
        events = program.run(Prompt("t1", script({"shell": "sleep 99; echo no"})), on=interrupt)
        program.wait(0.3)
        assert not any("sleep 99" in line for line in commands())
        assert of(events, ToolResult)[0].is_error
        assert events[-1] == Ended("interrupted")
        program.say(Prompt("t2", script({"text": "abc", "hang": 30})))
        assert program.until(Interrupt(), lambda e: isinstance(e, Ended), timeout=10)[-1] == Ended("interrupted")
        assert text_of(program.run(Prompt("t3", "CODEWORD-next"))).endswith("CODEWORD-next")


@pytest.mark.parametrize("resumed", [False, True])
def test_every_change_asks(tmp_path: Path, server: ModelServer, resumed: bool) -> None:
    ctx = place(tmp_path, server, permissions="ask")
    work = Path(ctx.workdir)
    if resumed:
        with driver(RUNTIME, ctx) as program:
            program.run(Prompt("t0", "hello"))
            ctx = dataclasses.replace(ctx, resume=thread_of(program))
    asked: list[Approval] = []

    def answer(event: CodecEvent) -> Answer | None:
        if not isinstance(event, Approval):
            return None
        asked.append(event)
        assert not (work / ["a.txt", "b.txt", "p.txt", "c.txt"][len(asked) - 1]).exists()
        return Answer(event.id, allow=len(asked) != 2)

    with driver(RUNTIME, ctx) as program:
        events = program.run(
            Prompt(
                "t1",
                script(
                    {"shell": "echo 1 >> a.txt"},
                    {"shell": "echo 2 > b.txt"},
                    {"shell": PATCH},
                    {"shell": "touch c.txt"},
                ),
            ),
            on=answer,
        )
    assert [a.tool for a in asked] == ["bash", "bash", "edit", "bash"]
    assert (work / "a.txt").read_text() == "1\n"  # run once
    assert asked[0].input["command"] == "echo 1 >> a.txt"
    assert asked[2].input["changes"][0]["diff"] == "hello\n"
    assert [r.is_error for r in of(events, ToolResult)] == [False, True, False, False]
    assert sorted(p.name for p in work.iterdir()) == ["a.txt", "c.txt", "p.txt"]
    assert events[-1].stop_reason == "done"  # type: ignore[union-attr]


@pytest.mark.parametrize("permissions", ["read-only", "edit"])
@pytest.mark.parametrize("resumed", [False, True])
def test_its_own_sandbox_holds(tmp_path: Path, server: ModelServer, permissions: Any, resumed: bool) -> None:
    ctx = place(tmp_path, server, permissions=permissions)
    outside = tmp_path / "outside.txt"
    port = server.url.rpartition(":")[2]
    if resumed:
        with driver(RUNTIME, ctx) as program:
            program.run(Prompt("t0", "hello"))
            ctx = dataclasses.replace(ctx, resume=thread_of(program))
    with driver(RUNTIME, ctx) as program:
        events = program.run(
            Prompt(
                "t1",
                script(
                    {"shell": "echo hi > inside.txt"},
                    {"shell": PATCH},
                    {"shell": f"echo hi > {outside}"},
                    {"shell": f"echo hi > /tmp/{tmp_path.name}-probe"},
                    {"shell": f"(exec 3<>/dev/tcp/127.0.0.1/{port}) && touch net.txt && echo NETWORK"},
                    {"shell": "cat /etc/hostname; echo SEEN"},
                ),
            )
        )
    made = sorted(p.name for p in Path(ctx.workdir).iterdir())
    assert made == ([] if permissions == "read-only" else ["inside.txt", "p.txt"])
    assert not outside.exists()
    assert not Path(f"/tmp/{tmp_path.name}-probe").exists()
    outputs = "".join(r.output for r in of(events, ToolResult))
    assert "NETWORK" not in outputs
    assert "SEEN" in outputs


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ({"error": 401, "message": "bad key"}, "model_auth"),
        ({"error": 400, "message": "bad request"}, "model_refused"),
        ({"error": 429, "message": "slow down"}, "model_rate_limited"),
        ({"error": 500, "message": "broken"}, "model_unavailable"),
        ({"drop": True, "text": "half of it"}, "model_unavailable"),
    ],
)
def test_a_model_that_fails_ends_the_turn_soon(
    tmp_path: Path, server: ModelServer, step: dict[str, Any], code: str
) -> None:
    with driver(RUNTIME, place(tmp_path, server)) as program:
        began = time.monotonic()
        end = program.run(Prompt("t1", script(step)))[-1]
        assert time.monotonic() - began < 15
        assert isinstance(end, Ended)
        assert (end.stop_reason, end.error and end.error.code) == ("error", code)
        server.script([{"text": "well again"}])
        assert text_of(program.run(Prompt("t2", "and now?"))) == "well again"


def test_a_model_that_is_not_there_ends_the_turn_soon(tmp_path: Path, server: ModelServer) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with driver(RUNTIME, dataclasses.replace(place(tmp_path, server), model_url=url)) as program:
            end = program.run(Prompt("t1", "hello"), timeout=15)[-1]
    assert isinstance(end, Ended)
    assert end.error
    assert end.error.code == "model_unavailable"


def test_a_cut_answer_is_taken_back(tmp_path: Path, server: ModelServer) -> None:
    server.script([{"drop": True, "text": "half of it", "chunks": 3, "chunk_delay": 0.05}, {"text": "all of it"}])
    with driver(RUNTIME, place(tmp_path, server)) as program:
        events = program.run(Prompt("t1", "go"))
    assert of(events, Retract)
    assert text_of(events) == "all of it"
    assert events[-1] == Ended("done", text="all of it")
    assert len(of(events, StepStarted)) == 1


def test_tools_of_the_host_and_servers_that_do_not_start(tmp_path: Path, server: ModelServer) -> None:
    with tool_server() as url:
        ctx = place(
            tmp_path,
            server,
            permissions="read-only",
            tool_url=url,
            tool_token=TOKEN,
            mcp_servers={"dead": {"command": "/nonexistent"}},
        )
        with driver(RUNTIME, ctx) as program:
            call = {"tool": "add", "namespace": "mcp__host", "args": {"a": 2, "b": 3}}
            events = program.run(Prompt("t1", script(call, {"shell": "echo $HOSTLER_MODEL_KEY.$HOSTLER_TOOL_KEY."})))
    assert of(events, ToolCall)[0].name == "add"
    assert not of(events, ToolCall)[0].builtin
    assert [r.output for r in of(events, ToolResult)] == ["sum=5", "..\n"]
    assert "'dead'" in next(n for n in of(events, Notice) if n.code == "mcp_server_failed").message


def test_a_word_during_the_turn_and_structured_output(tmp_path: Path, server: ModelServer) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }

    def steer(event: CodecEvent) -> Steer | None:
        return Steer("s1", "also CODEWORD-steer") if isinstance(event, ToolCall) else None

    with driver(RUNTIME, place(tmp_path, server)) as program:
        events = program.run(Prompt("t1", script({"shell": "sleep 0.5"}, {"text": "late"})), on=steer)
        assert "CODEWORD-steer" in text_of(events)
        assert len(of(events, Ended)) == 1
        assert program.run(Prompt("t2", script({"text": '{"a": 3}'}), schema=schema))[-1] == Ended("done", '{"a": 3}')
        asked = json.loads(requested(server))["text"]["format"]
        assert (asked["schema"], asked["strict"]) == (schema, True)
        program.run(Prompt("t3", "as you like"))
        assert "format" not in (json.loads(requested(server)).get("text") or {})


def test_without_its_shell_it_has_none(tmp_path: Path, server: ModelServer) -> None:
    with driver(
        RUNTIME, place(tmp_path, server, disable_tools=("bash", "task", "web_search", "view_image"))
    ) as program:
        program.run(Prompt("t1", "hello"))
    names = {t.get("name") or t["type"] for t in json.loads(requested(server)).get("tools", [])}
    assert not names & {"exec_command", "shell", "write_stdin", "web_search", "view_image", "multi_agent_v1"}
    assert isinstance(program.events[-1], Ended)
    assert of(program.events, Text)
