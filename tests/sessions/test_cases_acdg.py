"""Public fault cases on resume (A), ends (C), program I/O (D) and cost (G) that no other test covers."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import ModelCall, State, ToolCall
from hostler.runtimes.lines import decode_line
from hostler.testing import fake_program
from hostler.testing.fake_runtime import FakeCodec, FakeRuntime
from hostler.testing.model_server import ModelServer
from hostler.types.runtime import CodecEvent, CodecState, Folded, Frame, Identified
from hostler.types.runtime import ModelCall as SeenCall
from tests.conftest import SOAK, keepers_of, processes_of, wait_until
from tests.sessions.programs import CLAUDE, CODEX, FAKE_PROGRAM, IN_SOAK, OPENCODE, Program, ids
from tests.sessions.test_resume import job_for, last, run_child

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness
REAL = [*(pytest.param(p, marks=pytest.mark.real) for p in (CLAUDE, CODEX, OPENCODE)), *IN_SOAK]


def steps(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


# ---- A: resume ------------------------------------------------------------------------------------------------------


def objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(part)


def calls_and_results(body: Any) -> tuple[list[str], list[str]]:
    """The ids of the tool calls and of the tool results in a model request, of any wire."""
    calls, results = [], []
    for item in objects(body):
        kind = item.get("type")
        if kind in ("tool_use", "function_call", "local_shell_call", "custom_tool_call"):
            calls.append(item.get("call_id") or item["id"])
        elif kind in ("tool_result", "function_call_output", "custom_tool_call_output"):
            results.append(item.get("tool_use_id") or item["call_id"])
        elif item.get("role") == "tool":
            results.append(item["tool_call_id"])
        elif kind == "function" and "id" in item:
            calls.append(item["id"])
        for name, found in (("functionCall", calls), ("functionResponse", results)):
            if isinstance(item.get(name), dict):
                found.append(item[name].get("id"))
    return calls, results


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_tool_calls_and_their_results_survive_resume_and_death(
    program: Program, models: ModelServer, state_dir: Path
) -> None:
    """Cases A02 and A11: one tool ends, another is killed with its program; the next request has both calls, and for
    each of them a result."""
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        session.run(program.shell("echo CODEWORD-printed", "CODEWORD-one"))
        stream = session.stream(program.shell("tail -f /dev/null", "CODEWORD-two"))
        for event in stream:
            if isinstance(event, ToolCall):
                break
        (keeper,) = keepers_of(state_dir)
        keeper.kill()
        assert stream.wait().stop_reason == "error"
        before = len(models.calls)
        result = session.run("And now? @@{}@@")
        assert (result.stop_reason, result.error) == ("done", None)
        assert "CODEWORD-printed" in result.text
        calls, results = calls_and_results(models.calls[before].body)
        assert calls
        assert sorted(calls) == sorted(results)


def test_every_turn_is_started_as_the_first_one_was(
    options: dict[str, Any], workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases A04, A05: rules, arguments, environment and working directory, also after a resume from another directory
    and with nothing said again."""
    rules = {
        "instructions": "Be brief.",
        "permissions": "edit",
        "disable_tools": ["web_search"],
        "allow": ["Bash(ls)"],
        "deny": ["Bash(rm)"],
        "effort": "low",
        "max_turns": 7,
        "mcp_servers": {"docs": {"command": "/bin/true"}},
    }
    ask = steps(*({"say": what} for what in ("cwd", "env", "argv", "rules")), {"text": "."})

    def started(result: Any) -> list[str]:
        said = [e.delta for e in result.events if hasattr(e, "delta")][:4]
        words = said[2].split()  # the arguments; the conversation is given by another one, the model at another port
        changes = {"--session", "--resume", "--model-url"}
        said[2] = " ".join(w for w, before in zip(words, ["", *words], strict=False) if not {w, before} & changes)
        return said

    box = hostler.sandbox.local(workspace)
    with hostler.agent_session(FAKE, sandbox=box, **rules, **options) as session:
        first, second = started(session.run(ask)), started(session.run(ask))
        state = session.stop()
    monkeypatch.chdir(tmp_path)
    with hostler.agent_resume(state, api_key=options["api_key"]) as session:
        third = started(session.run(ask))
        found: list[list[str]] = []
        thread = threading.Thread(target=lambda: found.append(started(session.run(ask))))
        thread.start()
        thread.join(30)
    assert first == second == third == found[0]
    assert first[0] == str(workspace)
    assert json.loads(first[3])["instructions"] == "Be brief."


PROGRAM_WITH_IDS = """
import json, os, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
how, folder = os.environ["HOW"], options["--home"] + "/.fake"
os.makedirs(folder, exist_ok=True)
old = options.get("--resume")
said = json.load(open(f"{folder}/{old}.jsonl"))["said"] if old else []
with open(os.environ["LOG"], "a") as log:
    print(old, file=log)
changes = old and how in ("changed", "late")
new = f"conversation-{len(said)}" if changes else old or options["--session"]
def say(**message):
    print(json.dumps(message), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["op"] == "hello":
        say(ev="ready", session=None if how == "missing" else old or new if how == "late" else new)
    elif message["op"] == "prompt":
        said.append(message["text"])
        json.dump({"said": said}, open(f"{folder}/{new}.jsonl", "w"))
        open(f"{folder}/{new}.jsonl", "a").write("\\n")
        if how == "late":
            say(ev="named", session=new)
        say(ev="end", turn=message["turn"], stop="done", text=" ".join(said), output=None, error=None)
"""


class IdCodec(FakeCodec):
    """Takes the id that the program says, whenever it does."""

    def fold(self, state: CodecState, item: Frame | SeenCall) -> Folded:
        if isinstance(item, Frame) and item.kind == "out":
            events: list[CodecEvent] = []
            for message in decode_line(item.data).objects:
                if message.get("ev") in ("ready", "named"):
                    if message["session"]:
                        events.append(Identified(message["session"]))
                    return Folded({**state, "id": message["session"] or state["id"]}, tuple(events))
        return super().fold(state, item)


class IdRuntime(FakeRuntime):
    """A program that changes, keeps, or does not say the id of its conversation."""

    name = "fake"
    codec = IdCodec()


@pytest.mark.parametrize("how", ["kept", "changed", "missing", "late"])
def test_the_native_id_is_what_the_program_says(
    how: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases A07, A08: the session's key stays; the id that is resumed is the last one said; nothing else is assumed."""
    monkeypatch.setattr("hostler.runtimes.RUNTIMES", {}, raising=False)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM_WITH_IDS)
    log = tmp_path / "log"
    box = hostler.sandbox.local(env={"HOW": how, "LOG": str(log)})
    given = {**options, "options": {"program": [sys.executable, str(script)]}, "sandbox": box}
    session = hostler.agent_session(IdRuntime(), **given)
    key, native = session.key, []
    for turn in range(4):
        assert session.run(f"word-{turn}").text == " ".join(f"word-{n}" for n in range(turn + 1))
        state = session.stop()
        assert session.key == state.session == key
        native.append(state.native_id)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hostler.opening.runtime_for", lambda _: IdRuntime())
            session = hostler.agent_resume(state, **given)
    session.close()
    resumed = log.read_text().split()
    assert resumed[0] == "None"
    assert len(resumed) == 4  # case A17: one start for each turn
    known = [id for id in native if id]
    if how in ("changed", "late"):
        assert resumed[1:] == native[:3]
        assert len(set(native)) == 4
    else:
        assert len(set(resumed[1:])) == 1
        assert set(known) <= set(resumed)


def test_a_large_state_resumes_in_bounded_time(options: dict[str, Any]) -> None:
    """Case A13: 25 MB of history and 10 000 events."""
    with hostler.agent_session(FAKE, **options) as session:
        session.run("CODEWORD-one")
        session.run(steps({"deltas": 10_000}))
        session.run("p" * 12_500_000)  # it comes back in the answer
        state = session.stop()
    start = time.monotonic()
    with hostler.agent_resume(state, **options) as session:
        assert session.resumed == "native"
        result = session.run(steps({"model": "go"}, {"text": "here"}))
        assert "here" in result.text
        took = time.monotonic() - start
    assert took < 10


@pytest.mark.parametrize("program", [FAKE_PROGRAM, pytest.param(CLAUDE, marks=pytest.mark.real)], ids=ids)
def test_workspaces_whose_names_look_alike_do_not_mix(program: Program, models: ModelServer, tmp_path: Path) -> None:
    """Case A22."""
    names = ["a_b", "a-b", "a.b", "a/b", "日本", "中国", "x" * 200] if program.fake else ["a-b", "a/b"]
    states: dict[str, State] = {}
    for number, name in enumerate(names):
        (tmp_path / name).mkdir(parents=True)
        box = hostler.sandbox.local(tmp_path / name)
        with hostler.agent_session(program.harness, sandbox=box, **program.options(models)) as session:
            session.run(program.say(f"CODEWORD-{number}"))
            states[name] = session.stop()
    assert len({state.native_id for state in states.values()}) == len(names)
    for number, name in enumerate(names):
        box = hostler.sandbox.local(tmp_path / name)
        with hostler.agent_resume(states[name], sandbox=box, **program.options(models)) as session:
            text = session.run(program.recall()).text
        assert [n for n in range(len(names)) if f"CODEWORD-{n}" in text] == [number]
    with pytest.raises(hostler.StateIncompatible):
        hostler.agent_resume(states[names[0]], sandbox=box, **program.options(models))


def test_a_workspace_that_came_back_without_the_directory_is_said(options: dict[str, Any], workspace: Path) -> None:
    """Cases A16, A23: what is gone is an error that names it; what is not is kept."""
    with hostler.agent_session(FAKE, sandbox=hostler.sandbox.local(workspace), **options) as session:
        session.run("CODEWORD-one")
        state = session.stop()
    workspace.rmdir()
    with pytest.raises(hostler.SandboxError, match=str(workspace)):
        hostler.agent_resume(state, **options)
    workspace.mkdir()
    with hostler.agent_resume(state, **options) as session:
        assert "CODEWORD-one" in session.run(steps({"say": "memory"})).text


# ---- C: ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deaf", [False, True], ids=["hears", "deaf"])
def test_no_model_call_comes_after_a_cancel(options: dict[str, Any], models: ModelServer, deaf: bool) -> None:
    """Case C08."""
    with hostler.agent_session(FAKE, **options) as session:
        first = [{"deaf": True}] if deaf else []
        stream = session.stream(steps(*first, *[{"model": "go"}, {"sleep": 0.02}] * 500))
        assert wait_until(lambda: len(models.calls) > 5)
        session.cancel()
        assert stream.wait().stop_reason == "cancelled"
        count = len(models.calls)
        time.sleep(1.0)
        assert len(models.calls) == count


def test_a_turn_can_be_cancelled_while_its_program_starts(
    options: dict[str, Any], tmp_path: Path, state_dir: Path
) -> None:
    """Case C10: before the program has said anything."""
    slow = tmp_path / "slow.py"
    code = f"import os, sys, time\ntime.sleep(2)\nos.execv(sys.executable, [sys.executable, {fake_program.__file__!r}, *sys.argv[1:]])"
    slow.write_text(code)
    given = {**options, "options": {"program": [sys.executable, str(slow)]}}
    with hostler.agent_session(FAKE, sandbox=hostler.sandbox.local, **given) as session:
        stream = session.stream(steps({"text": "a"}, {"hang": True}))
        assert wait_until(lambda: bool(keepers_of(state_dir)))
        start = time.monotonic()
        session.cancel()
        assert stream.wait().stop_reason == "cancelled"
        assert time.monotonic() - start < 6
        assert session.run("next").text == "You said: next"


@pytest.mark.parametrize("wait", [0.0, 0.4])
@pytest.mark.parametrize("program", REAL, ids=ids)
def test_a_first_turn_that_was_cancelled_at_once_leaves_a_session(
    program: Program, wait: float, models: ModelServer
) -> None:
    """Case C10: no history is no loss when there was nothing to remember."""
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        stream = session.stream(program.say("CODEWORD-one"))
        time.sleep(wait)
        session.cancel()
        stopped = stream.wait().stop_reason
        assert stopped in ("cancelled", "done")
        result = session.run(program.say("CODEWORD-two"))
        assert (result.stop_reason, result.error) == ("done", None)
        result = session.run(program.recall())
        assert "CODEWORD-two" in result.text


@pytest.mark.parametrize("after", ["works", "is silent"])
def test_the_turn_after_an_interrupt_works_or_ends(options: dict[str, Any], after: str) -> None:
    """Case C11."""
    with hostler.agent_session(FAKE, **options) as session:
        stream = session.stream(steps({"text": "a"}, {"hang": True}))
        next(stream)
        session.cancel()
        assert stream.wait().stop_reason == "cancelled"
        if after == "is silent":
            session.run(steps({"deaf": True}, {"text": "hears no more"}))
            start = time.monotonic()
            assert session.run("x", timeout=1.0).stop_reason == "timeout"
            assert time.monotonic() - start < 8
        assert session.run("next").text == "You said: next"


INTERRUPTED = """
import sys, hostler
from hostler.testing.fake_runtime import FAKE
options = dict(model="claude-sonnet-4-5", api_base=sys.argv[1], api_key="planted-gateway-key-7f3a")
from hostler import agent_session  # cut off in the middle of an import, Python itself shows more than one traceback
print("begin", flush=True)
with agent_session(FAKE, **options) as s:
    print(s.run('[{"text": "a"}, {"spawn": "setsid", "seconds": 60}, {"sleep": 60}]').stop_reason, flush=True)
"""


@pytest.mark.longer
@pytest.mark.parametrize("seed", range(50 if SOAK else 4))
def test_ctrl_c_comes_out_once(seed: int, models: ModelServer, state_dir: Path) -> None:
    """Case C13: one traceback at most, and nothing is left."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, models.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOSTLER_STATE_DIR": str(state_dir)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begin\n"
    time.sleep(random.Random(seed).random() * 1.5)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode in (1, 130, -signal.SIGINT)
    assert stderr.count("Traceback") <= 1, stderr
    assert "KeyboardInterrupt" in stderr
    assert "Event loop is closed" not in stderr
    assert "never awaited" not in stderr
    assert wait_until(lambda: not processes_of(state_dir), 8)


class LateBox:
    """A sandbox that takes its time; remembers whether it was closed."""

    def __init__(self, workspace: Any) -> None:
        self.closed = threading.Event()
        self._local = hostler.sandbox.local(workspace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def close(self) -> None:
        self.closed.set()


def test_a_sandbox_that_takes_too_long_is_closed_when_it_comes(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C14: meanwhile no other session waits."""
    monkeypatch.setenv("HOSTLER_START_TIMEOUT", "0.5")
    made: list[LateBox] = []

    def slow(workspace: Any) -> LateBox:
        time.sleep(1.5)
        made.append(LateBox(workspace))
        return made[0]

    failed: list[BaseException] = []

    def open_slow() -> None:
        try:
            hostler.agent_session(FAKE, sandbox=slow, **options)
        except hostler.SandboxError as error:
            failed.append(error)

    thread = threading.Thread(target=open_slow)
    thread.start()
    with hostler.agent_session(FAKE, **options) as session:
        assert session.run("meanwhile").stop_reason == "done"
    thread.join(5)
    assert "within 0.5 s" in str(failed[0])
    assert wait_until(lambda: bool(made) and made[0].closed.is_set(), 5)


@pytest.mark.parametrize("what", ["approval", "tool"])
def test_close_is_bounded_while_a_callback_blocks(options: dict[str, Any], what: str) -> None:
    """Case C16."""
    entered, release = threading.Event(), threading.Event()

    def block(*_: Any) -> Any:
        entered.set()
        release.wait(60)
        return True

    def tool() -> str:
        """Blocks."""
        return str(block())

    given = {"on_approval": block} if what == "approval" else {"tools": [tool]}
    step = {"approve": "Shell"} if what == "approval" else {"mcp": "tool"}
    session = hostler.agent_session(FAKE, **given, **options)
    try:
        stream = session.stream(steps({"text": "a"}, step))
        assert entered.wait(15)
        start = time.monotonic()
        session.close()
        assert time.monotonic() - start < 10
        assert stream.wait().stop_reason == "cancelled"
    finally:
        release.set()


# ---- D: program I/O -------------------------------------------------------------------------------------------------


def test_why_a_program_does_not_start(options: dict[str, Any], tmp_path: Path) -> None:
    """Case D11: the reason is the system's, not a guess."""
    plain = tmp_path / "plain.txt"
    plain.write_text("hello")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x7fELF\0garbage")
    garbage.chmod(stat.S_IRWXU)
    said = {}
    for name, program in (("missing", tmp_path / "none"), ("plain", plain), ("garbage", garbage), ("folder", tmp_path)):
        with (
            hostler.agent_session(FAKE, **{**options, "options": {"program": [str(program)]}}) as session,
            pytest.raises(hostler.HarnessInstallFailed) as raised,
        ):
            session.run("x")
        said[name] = str(raised.value)
    box = hostler.sandbox.local(env={"BIG": "x" * 3_000_000})
    with (
        hostler.agent_session(FAKE, sandbox=box, **options) as session,
        pytest.raises(hostler.HarnessError) as raised,
    ):
        session.run("x")
    said["too long"] = str(raised.value)
    expected = {
        "missing": "No such file",
        "plain": "Permission denied",
        "garbage": "Exec format error",
        "folder": "Permission denied",
        "too long": "Argument list too long",
    }
    assert {name: reason for name, reason in expected.items() if reason not in said[name]} == {}, said


def test_bytes_of_another_code_page_in_a_host_without_utf8(models: ModelServer) -> None:
    """Case D13."""
    import base64

    noise = base64.b64encode("编码错误".encode("cp936")).decode()
    prompt = steps({"base64": noise}, {"stderr": "编码"}, {"text": "é漢😀"})
    env = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    lines = run_child(job_for(FAKE_PROGRAM, models, prompts=[prompt, "CODEWORD-漢"]), env=env)
    results = [json.loads(text) for kind, text in lines if kind == "result"]
    assert results == [{"text": "é漢😀", "stop": "done"}, {"text": "You said: CODEWORD-漢", "stop": "done"}]


# ---- G: usage and cost ----------------------------------------------------------------------------------------------


def test_usage_holds_the_sub_agents_calls(options: dict[str, Any]) -> None:
    """Case G04: the turn's usage is that of the whole tree; by model it is in the journal."""
    with hostler.agent_session(FAKE, **options) as session:
        result = session.run(steps({"model": "go"}, {"subagent": [{"model": "inner"}, {"model": "inner"}]}))
        assert result.usage.calls == 3
        assert result.usage.output_tokens == 120
        last_turn = session.run("last").turn_id
        calls = []
        for record in session.follow(0):
            calls += [record.event] if isinstance(record.event, ModelCall) else []
            if record.turn == last_turn and type(record.event).__name__ == "Done":
                break
    assert [(call.model, call.usage.output_tokens) for call in calls] == [("claude-sonnet-4-5", 40)] * 3


@pytest.mark.parametrize("usage", [{}, None, {"input_tokens": "many"}, {"output_tokens": -4}, {"input_tokens": None}])
def test_odd_usage_is_partial(usage: Any, options: dict[str, Any], models: ModelServer) -> None:
    """Case G05: not 0, and no exception."""
    with hostler.agent_session(FAKE, **options) as session:
        models.script([{"text": "hi", "usage": usage}])
        odd = session.run(steps({"model": "go"}))
        assert odd.stop_reason == "done"
        assert odd.usage.calls == 1
        if usage is not None:
            assert odd.usage.partial
            assert odd.cost is None
        assert odd.usage.output_tokens >= 0
        fine = session.run(steps({"model": "go"}))
        assert not fine.usage.partial
        assert session.usage.partial == odd.usage.partial


def test_usage_of_a_turn_whose_host_was_killed(models: ModelServer) -> None:
    """Case G07: what it used until then is read back on resume."""
    prompt = steps({"model": "go"}, {"model": "go"}, {"text": "."}, {"tool": "Read"}, {"sleep": 1.0})
    first = run_child(job_for(FAKE_PROGRAM, models, prompts=[prompt], die_at="ToolCall"))
    with hostler.agent_resume(State.loads(last(first, "state")), **FAKE_PROGRAM.options(models)) as session:
        session.run("next")
        assert session.usage.calls == 2
        assert session.usage.output_tokens == 80
        assert session.cost


def test_a_price_of_zero_is_zero(options: dict[str, Any]) -> None:
    """Case G08: not unknown."""
    free = {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0}
    with ModelServer(prices={"free-group": free}) as models:
        given = {**options, "model": "litellm_proxy/free-group", "api_base": models.url}
        with hostler.agent_session(FAKE, **given) as session:
            result = session.run(steps({"model": "go"}))
            assert result.usage.calls == 1
            assert result.cost == 0.0
            assert session.cost == 0.0


def test_costs_after_a_restart_are_of_the_turn(options: dict[str, Any]) -> None:
    """Cases G01, G02: a counter of the program that begins again, or goes on, changes nothing."""
    with hostler.agent_session(FAKE, **options) as session:
        costs = []
        for calls in (1, 2, 3):
            costs.append(session.run(steps(*[{"model": "go"}] * calls)).cost)
            state = session.stop() if calls < 3 else session.state()
            session = hostler.agent_resume(state, **options) if calls < 3 else session
        assert costs == pytest.approx([costs[0], 2 * costs[0], 3 * costs[0]])
        assert session.cost == pytest.approx(6 * costs[0])
        session.close()
    assert dataclasses.replace(state, native_id=None).session == state.session
