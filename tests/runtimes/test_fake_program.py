"""The fake agent program does what it is told; tests of hosts lean on it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.runtimes.stdio_driver import Driver, text_of
from tests.runtimes.tool_server import TOKEN, tool_server

from hostler.testing import fake_program
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer
from hostler.types.events import Approval, Compaction, Notice, Reasoning, Retract, Text, ToolCall, ToolResult
from hostler.types.runtime import (
    Answer,
    CodecEvent,
    Ended,
    Frame,
    Identified,
    In,
    Interrupt,
    LaunchContext,
    Prompt,
    Steer,
    StepStarted,
    Unfit,
)


class Fakes:
    """Starts fake agents of one private home."""

    def __init__(self, root: Path, model_url: str) -> None:
        self.root, self.model_url = root, model_url
        for name in ("home", "tmp", "work", "files"):
            (root / name).mkdir()
        self.started: list[Driver] = []

    def start(self, **rules: Any) -> Driver:
        place = {name: str(self.root / name) for name in ("home", "tmp")}
        given = {"workdir": str(self.root / "work"), "files_dir": str(self.root / "files"), "token": "token"}
        model = {"model": "scripted", "model_url": self.model_url, "new_id": None if "resume" in rules else "s-1"}
        ctx = LaunchContext(program=FAKE.find({}, None), **{**place, **given, **model, **rules})
        self.started.append(Driver(FAKE, ctx))
        return self.started[-1]


@pytest.fixture
def fakes(tmp_path: Path, model_server: ModelServer) -> Iterator[Fakes]:
    it = Fakes(tmp_path, model_server.url)
    yield it
    for driver in it.started:
        driver.close()


def prompt(turn: str, *steps: dict[str, Any]) -> Prompt:
    return Prompt(turn, "A note of the host.\n" + json.dumps(list(steps)))


def ended(events: list[CodecEvent]) -> Ended:
    assert isinstance(events[-1], Ended)
    return events[-1]


def test_what_it_says(fakes: Fakes) -> None:
    d = fakes.start(instructions="be kind")
    assert ended(d.run(Prompt("t0", "hello"))) == Ended("done", "You said: hello")
    assert Identified("s-1") in d.events
    events = d.run(
        prompt(
            "t1",
            {"text": "a"},
            {"deltas": 3},
            {"reasoning": "hm"},
            {"tool": "Read", "input": {"path": "x"}, "output": "content"},
            {"compaction": [9, None]},
            {"subagent": [{"text": "inner"}], "id": "agent-1"},
            {"output": {"n": 1}},
            {"raw": "noise\u2028"},
        )
    )
    assert text_of(events) == "a0 1 2 "
    assert Reasoning("t1.3", "hm") in events
    assert ToolCall("t1.4", "read", "Read", {"path": "x"}) in events
    assert ToolResult("t1.4", "content") in events
    assert Compaction(9, None) in events
    assert In("agent-1", Text("t1.7", "inner")) in events
    assert Notice("noise", "noise\u2028".strip()) in events
    assert ended(events) == Ended("done", "a0 1 2 ", {"n": 1})
    (fakes.root / "work" / "f").write_text("old")
    events = d.run(prompt("t2", {"read": "f"}, {"write": "g", "content": "new"}, {"delete": "f"}, {"say": "cwd"}))
    assert ended(events).text == "old" + str(fakes.root / "work")
    assert [p.name for p in (fakes.root / "work").iterdir()] == ["g"]
    assert json.loads(str(ended(d.run(prompt("t3", {"say": "rules"}))).text))["instructions"] == "be kind"
    error = ended(d.run(prompt("t4", {"error": "boom", "retryable": True}))).error
    assert error is not None
    assert (error.code, error.retryable) == ("boom", True)


def test_it_remembers_resumes_and_knows_when_it_cannot(fakes: Fakes) -> None:
    d = fakes.start()
    d.run(Prompt("t1", "one"))
    d.kill()
    d = fakes.start(resume="s-1")
    assert ended(d.run(prompt("t2", {"say": "memory"}))).text == "one"
    files = {".fake/s-1.jsonl": (fakes.root / "home" / ".fake" / "s-1.jsonl").read_bytes()}
    assert [m["role"] for m in FAKE.history(files, "s-1")] == ["user", "assistant"] * 2
    [*_, unfit] = fakes.start(resume="s-2").until(None, lambda e: isinstance(e, Unfit))
    assert "s-2" in str(unfit)


def test_it_forks(fakes: Fakes) -> None:
    d = fakes.start()
    end = ended(d.run(Prompt("t1", "one")))
    d.run(Prompt("t2", "two"))
    d.kill()
    assert end.at == "2"
    d = fakes.start(resume="s-1", fork_at=end.at, new_id="s-3")
    forked = ended(d.run(prompt("t3", {"say": "memory"})))
    assert (forked.text, forked.at) == ("one", "4")
    [*_, unfit] = fakes.start(resume="s-1", fork_at="9", new_id="s-4").until(None, lambda e: isinstance(e, Unfit))
    assert "s-1" in str(unfit)


def test_it_hears_commands_during_its_steps(fakes: Fakes) -> None:
    d = fakes.start()
    answers = iter([True, False])
    on = lambda e: Answer(e.id, next(answers), "no") if isinstance(e, Approval) else None  # noqa: E731
    events = d.run(prompt("t1", {"approve": "Bash"}, {"approve": "Bash"}), on=on)
    assert ended(events).text == "alloweddenied: no"
    d.say(prompt("t2", {"steered": True}))
    assert ended(d.until(Steer("s", "listen"), lambda e: isinstance(e, Ended))).text == "listen"
    for number, step in enumerate(
        [{"hang": True}, {"shell": "sleep 30"}, {"sleep": 30}, {"approve": "Bash"}, {"model": '@@{"hang": 30}@@'}]
    ):
        d.say(prompt(f"i{number}", {"text": "begun"}, step))
        d.until(None, lambda e: isinstance(e, Text))
        began = time.monotonic()
        assert ended(d.until(Interrupt(), lambda e: isinstance(e, Ended))).stop_reason == "interrupted"
        assert time.monotonic() - began < 5
    d.say(Prompt("last", "x"))
    assert ended(d.until(Interrupt(), lambda e: isinstance(e, Ended))).stop_reason in ("interrupted", "done")
    assert ended(d.run(Prompt("t3", "x"))).stop_reason == "done"


def test_it_calls_the_model(fakes: Fakes) -> None:
    d = fakes.start()
    events = d.run(prompt("t1", {"model": "CODEWORD-a"}, {"model": "CODEWORD-b", "stream": False}))
    assert ended(events).text == "ANSWER users=1 memo=CODEWORD-aANSWER users=1 memo=CODEWORD-b"
    assert sum(isinstance(e, StepStarted) for e in events) == 2
    cut = {"model": '@@{"text": "one two", "chunks": 2, "chunk_delay": 0.05, "drop": true}@@'}
    events = d.run(prompt("t2", {"text": "before "}, cut))
    error = ended(events).error
    assert error is not None
    assert error.code == "model_unavailable"
    assert sum(isinstance(e, Retract) for e in events) == 3
    assert ended(events).text == text_of(events) == "before "
    error = ended(d.run(prompt("t3", {"model": '@@{"error": 401}@@'}))).error
    assert error is not None
    assert error.code == "model_auth"


def test_it_calls_the_callers_tools(fakes: Fakes) -> None:
    with tool_server() as url:
        d = fakes.start(tool_url=url, tool_token=TOKEN)
        events = d.run(
            prompt("t1", {"mcp": "add", "arguments": {"a": 3, "b": 5}}, {"mcp": "add", "arguments": {"a": 4, "b": 5}})
        )
        assert [e.output for e in events if isinstance(e, ToolResult)] == ["sum=8", "sum=9"]
        assert {e.builtin for e in events if isinstance(e, ToolCall)} == {False}
        d = fakes.start(tool_url=url, tool_token="wrong")
        assert next(e for e in d.run(prompt("t1", {"mcp": "add"})) if isinstance(e, ToolResult)).is_error


def test_its_shell_is_real_and_dies_with_the_turn(fakes: Fakes) -> None:
    d = fakes.start()
    assert ended(d.run(prompt("t1", {"shell": "echo $((1 + 1))"}))).text == "2\n"
    marker = str(fakes.root / "marker")
    d.say(prompt("t2", {"shell": f"echo $$ > {marker}; sleep 30"}))
    d.until(None, lambda e: isinstance(e, ToolCall))
    deadline = time.monotonic() + 5
    while not (os.path.exists(marker) and Path(marker).read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended(d.until(Interrupt(), lambda e: isinstance(e, Ended))).stop_reason == "interrupted"
    gone = time.monotonic() + 5
    pid = int(Path(marker).read_text())
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" and time.monotonic() < gone:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


def test_how_it_ends(fakes: Fakes) -> None:
    d = fakes.start()
    d.say(prompt("t1", {"text": "last words"}, {"exit": 7}))
    assert d.process.wait(5) == 7
    folded = FAKE.codec.fold(d.state, Frame(99, "exit", b"7"))
    assert isinstance(folded.events[0], Ended)
    assert folded.state["turn"] is None
    d = fakes.start()
    d.say(prompt("t1", {"kill": int(signal.SIGKILL)}))
    assert d.process.wait(5) == -signal.SIGKILL
    d = fakes.start()
    assert d.close() == 0
    d = fakes.start()
    d.run(prompt("t1", {"deaf": True}, {"text": "x"}))
    d.process.stdin.close()  # type: ignore[union-attr]
    with pytest.raises(subprocess.TimeoutExpired):
        d.process.wait(0.3)
    d.kill()


def run(script: list[dict[str, Any]], tmp_path: Path, *, by_env: bool = False) -> subprocess.CompletedProcess[bytes]:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    argv = [sys.executable, "-I", "-S", "-E", fake_program.__file__]
    env = {**os.environ, "FAKE_PROGRAM_SCRIPT": json.dumps(script)}
    return subprocess.run(argv if by_env else [*argv, str(path)], env=env, stdin=-3, capture_output=True, timeout=10)


def test_scripts_write_any_bytes_at_any_pace(tmp_path: Path) -> None:
    odd = base64.b64encode(b"\xff\x00").decode()
    script = [
        {"raw": '{"a": 1}'},
        {"raw": "slow", "slow": 0.001},
        {"base64": odd, "newline": False},
        {"stderr": 100_000},
        {"stderr": "words"},
        {"close": "stdout"},
        {"exit": 3},
    ]
    for by_env in (False, True):
        done = run(script, tmp_path, by_env=by_env)
        assert done.stdout == b'{"a": 1}\nslow\n\xff\x00'
        assert done.stderr == b"e" * 100_000 + b"words"
        assert done.returncode == 3


def test_a_child_that_outlives_it(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    run([{"spawn": "setsid", "pidfile": str(pidfile), "seconds": 30, "stubborn": True}], tmp_path)
    child = psutil.Process(int(pidfile.read_text()))
    try:
        assert os.getsid(child.pid) == child.pid
    finally:
        child.kill()
