"""Turns: order, ends, limits, streams, and callers of every kind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import hostler
from hostler import portal
from hostler.harness import Done, ModelCall, Notice, Retract, Text, ToolCall, ToolResult
from hostler.running import Stop
from hostler.testing.fake_runtime import FakeRuntime
from hostler.testing.model_server import ModelServer
from hostler.types.runtime import Answer, Interrupt, Launch, LaunchContext
from hostler.workspace import Watch
from tests.conftest import processes_of, wait_until
from tests.sessions.programs import ALL, CLAUDE, CODEX, FAKE_PROGRAM, IN_SOAK, KINDS, OPENCODE, Program, ids

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness


def steps(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


def test_callers_of_one_session_are_served_in_order_and_one_at_a_time(options: dict[str, Any]) -> None:
    """Invariants 1 and 2. The program takes a lock in each turn and fails when it is held."""
    prompt = steps({"shell": "mkdir lock || exit 7; sleep 0.05; rmdir lock"}, {"text": "done"})
    finished: list[int] = []
    with hostler.agent_session(FAKE, **options) as session:
        streams = [session.stream(prompt) for _ in range(8)]

        def wait(n: int) -> None:
            result = streams[n].wait()
            finished.append(n)
            assert [e.is_error for e in result.events if isinstance(e, ToolResult)] == [False], result

        threads = [threading.Thread(target=wait, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert finished == sorted(finished)
    assert len(finished) == 8


def test_on_busy(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        slow = session.stream(steps({"text": "a"}, {"sleep": 20}))
        assert isinstance(next(slow), Text)
        with pytest.raises(hostler.SessionBusy, match="runs a turn already"):
            session.run("x", on_busy="reject")
        result = session.run("after", on_busy="interrupt")
        assert result.stop_reason == "done"
        assert slow.wait().stop_reason == "interrupted"
        waiting = session.stream(steps({"text": "a"}, {"steered": True}, {"text": "b"}))
        next(waiting)
        joined = session.run("CODEWORD", on_busy="steer")
        assert joined.turn_id == waiting.wait().turn_id


@pytest.mark.parametrize("ephemeral", [False, True])
def test_a_wait_for_the_next_event_may_be_given_up_and_begun_again(options: dict[str, Any], ephemeral: bool) -> None:
    """As a server does that sends a sign of life now and then."""
    prompt = steps({"text": "one"}, {"sleep": 0.3}, {"text": "two"})

    async def follow(stream: Any) -> list[Any]:
        events, given_up = [], 0
        while True:
            try:
                events.append(await asyncio.wait_for(anext(stream), 0.01))
            except TimeoutError:
                given_up += 1
            except StopAsyncIteration:
                assert given_up > 5
                assert stream.result.text == "onetwo"
                return events

    async def main() -> list[Any]:
        if ephemeral:
            return await follow(hostler.agent_stream(FAKE, prompt, **options))
        async with await hostler.aagent_session(FAKE, **options) as session:
            return await follow(session.astream(prompt))

    events = asyncio.run(main())
    assert [event.delta for event in events if isinstance(event, Text) and event.delta] == ["one", "two"]
    assert isinstance(events[-1], Done)


def test_what_was_meant_for_a_turn_and_came_behind_its_end_is_not_the_next_ones(options: dict[str, Any]) -> None:
    async def late(session: Any) -> None:
        session._core._live.hold.program.put_back([Stop("cancelled"), Interrupt(), Answer("gone", True)])

    with hostler.agent_session(FAKE, **options) as session:
        session.run("one")
        portal.run(late(session))
        result = session.run(steps({"text": "two"}))
        assert (result.stop_reason, result.text) == ("done", "two")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", ALL, ids=ids)
def test_cancel_leaves_no_process_of_the_turn(
    program: Program, kind: str, models: ModelServer, state_dir: Path, workspace: Path
) -> None:
    """Invariant 5: within 5 s, grandchildren with a session of their own included (case C05)."""
    command = "setsid sh -c 'echo $$ >> pids; exec tail -f /dev/null' & sh -c 'echo $$ >> pids; exec tail -f /dev/null'"
    box = getattr(hostler.sandbox, kind)(workspace)
    with hostler.agent_session(program.harness, sandbox=box, **program.options(models)) as session:
        assert session.run(program.say("CODEWORD-one")).stop_reason == "done"
        stream = session.stream(program.shell(command))
        pids = workspace / "pids"
        assert wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 15)
        tails = [p for p in processes_of(state_dir) if p.name() == "tail"]
        assert len(tails) == 2
        start = time.monotonic()
        session.cancel()
        assert stream.wait().stop_reason == "cancelled"
        left = 5 - (time.monotonic() - start)
        assert wait_until(lambda: not [p for p in tails if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], left)
        assert "CODEWORD-one" in session.run(program.recall()).text


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_timeout(program: Program, models: ModelServer) -> None:
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        assert session.run(program.say("CODEWORD-one")).stop_reason == "done"
        start = time.monotonic()
        result = session.run(program.shell("tail -f /dev/null"), timeout=1.0)
        assert result.stop_reason == "timeout"
        assert result.usage.calls == 1  # case G07: what was used until then is counted
        assert time.monotonic() - start < 8
        assert "CODEWORD-one" in session.run(program.recall()).text


def test_a_program_that_ignores_the_interrupt_is_ended(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        session.run("CODEWORD-one")
        start = time.monotonic()
        result = session.run(steps({"deaf": True}, {"hang": True}), timeout=0.3)
        assert result.stop_reason == "timeout"
        assert time.monotonic() - start < 6
        assert "CODEWORD-one" in session.run(steps({"say": "memory"})).text


def test_max_cost_ends_the_turn_and_needs_a_price(models: ModelServer, options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, max_cost=0.0005, **options) as session:
        result = session.run(steps(*[{"model": "go"}] * 10))
        assert result.stop_reason == "max_cost"
        assert result.cost is not None
        assert result.cost < 0.003
    with (
        hostler.agent_session(FAKE, max_cost=1.0, **{**options, "model": "litellm_proxy/nobody-knows-me"}) as session,
        pytest.raises(hostler.CapabilityUnsupported, match="price"),
    ):
        session.run("x")


@pytest.mark.parametrize("odd", [{"drop": True}, {"usage": {"said": "nothing"}}])
def test_max_cost_holds_also_where_the_cost_of_a_call_is_unknown(
    odd: dict[str, Any], models: ModelServer, options: dict[str, Any]
) -> None:
    models.script([{"text": "one"}, {"text": "two", **odd}, *[{"text": "more"}] * 10])
    with hostler.agent_session(FAKE, max_cost=0.002, **options) as session:
        result = session.run(steps(*[{"model": "go"}] * 12))
    assert (result.stop_reason, result.cost) == ("max_cost", None)
    assert len(models.calls) < 8
    assert bool(result.warnings) == ("usage" in odd)


@pytest.mark.real
def test_max_turns_counts_model_calls(models: ModelServer) -> None:
    with hostler.agent_session(CLAUDE.harness, max_turns=2, **CLAUDE.options(models)) as session:
        for _ in range(2):  # it is a limit of the turn, not of the process
            before = len(models.requests)
            result = session.run("@@" + json.dumps([{"shell": "true"}] * 6) + "@@")
            assert result.stop_reason == "max_turns"
            assert len(models.requests) - before == 2


def test_a_turn_ends_in_one_done_whatever_the_program_does(options: dict[str, Any]) -> None:
    """Invariant 3; cases B02, J05, K10: the error says what was seen."""
    with hostler.agent_session(FAKE, **options) as session:
        for script, code in (
            ([{"stderr": "last words"}, {"exit": 3}], "program_exited"),
            ([{"exit": 0}], "program_exited"),
            ([{"kill": 9}], "program_exited"),
            ([{"error": "boom", "message": "it failed"}], "boom"),
        ):
            stream = session.stream(steps(*script))
            events = list(stream)
            assert [type(e) for e in events].count(Done) == 1
            assert isinstance(events[-1], Done)
            assert stream.result.stop_reason == "error"
            assert stream.result.error is not None
            assert stream.result.error.code == code
            if script[0].get("stderr"):
                assert "last words" in stream.result.error.message
        assert session.run("still here").stop_reason == "done"


def test_dropping_a_stream_is_not_a_cancel(options: dict[str, Any], workspace: Path) -> None:
    with hostler.agent_session(FAKE, sandbox=hostler.sandbox.local(workspace), **options) as session:
        for _ in session.stream(steps({"text": "a"}, {"sleep": 0.5}, {"write": "made.txt", "content": "x"})):
            break
        gc.collect()
        assert session.run("next").stop_reason == "done"
        assert (workspace / "made.txt").exists()


def test_dropping_a_one_shot_stream_cancels(options: dict[str, Any], state_dir: Path) -> None:
    stream = hostler.agent_stream(FAKE, steps({"text": "a"}, {"hang": True}), **options)
    next(stream)
    assert processes_of(state_dir)
    del stream
    gc.collect()
    assert wait_until(lambda: not processes_of(state_dir), 8)


def test_one_shot(options: dict[str, Any], state_dir: Path) -> None:
    result = hostler.agent(FAKE, steps({"model": "go"}, {"text": "hello"}), **options)
    assert "hello" in result.text
    assert asyncio.run(hostler.aagent(FAKE, "hi", **options)).stop_reason == "done"
    stream = hostler.agent(FAKE, "hi", stream=True, **options)
    assert isinstance(list(stream)[-1], Done)
    assert wait_until(lambda: not processes_of(state_dir), 5)


def test_a_follower_misses_nothing_and_gets_nothing_twice(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        session.run(steps({"deltas": 50}))
        seen = []
        for record in session.follow(0):
            seen.append(record.seq)
            if len(seen) == 20:
                break
        more = []
        for record in session.follow(seen[-1]):
            more.append(record.seq)
            if isinstance(record.event, Done):
                break
        assert seen + more == list(range(1, len(seen + more) + 1))
        with pytest.raises(ValueError, match="cannot be followed"):
            next(session.follow(10_000))
        for odd in ("x", 1.5, True):
            with pytest.raises(TypeError, match=r"after must be the number of a record .*, not"):
                next(session.follow(odd))


def test_retracted_text_is_not_in_the_result(options: dict[str, Any]) -> None:
    with hostler.agent_session(CLAUDE.harness, **options) as session:
        result = session.run('@@{"text": "the whole answer", "chunks": 4, "drop": true}@@')
    kinds = [type(e) for e in result.events]
    assert result.text.count("the whole") <= 1
    assert Retract in kinds or result.error is not None


def test_events_reach_callbacks_that_raise_or_block(options: dict[str, Any]) -> None:
    seen: list[str] = []
    release = threading.Event()

    def blocks(record: Any) -> None:
        seen.append(type(record.event).__name__)
        release.wait(20)
        raise RuntimeError("not your business")

    with hostler.agent_session(FAKE, on_event=blocks, **options) as session:
        start = time.monotonic()
        assert session.run("one").stop_reason == "done"
        assert time.monotonic() - start < 10
        release.set()
        assert wait_until(lambda: "Done" in seen, 5)


def test_approvals(options: dict[str, Any]) -> None:
    script = steps({"approve": "Shell", "input": {"command": "ls"}}, {"text": "after"})
    asked: list[Any] = []

    async def allow(approval: Any) -> bool:
        asked.append(approval)
        return True

    with hostler.agent_session(FAKE, on_approval=allow, **options) as session:
        assert "after" in session.run(script).text
        assert asked[0].tool
    with hostler.agent_session(FAKE, permissions="ask", **options) as session:
        for answer in ("allow", "deny"):
            stream = session.stream(script)
            for event in stream:
                if isinstance(event, hostler.harness.Approval):
                    assert [a.id for a in session.approvals()] == [event.id]
                    _ = event.allow() if answer == "allow" else event.deny("no")
                    question = event
            assert stream.result.stop_reason == "done"
            with pytest.raises(hostler.HarnessError, match="no open approval"):
                question.allow()

        async def awaited(wait: bool) -> None:
            stream = session.astream(script)
            async for event in stream:
                if isinstance(event, hostler.harness.Approval):
                    answered = event.allow()
                    if wait:
                        await answered
            assert stream.result.stop_reason == "done"

        asyncio.run(awaited(True))
        asyncio.run(awaited(False))


class Unlaunchable(FakeRuntime):
    """Its options break what makes its command line."""

    def launch(self, ctx: LaunchContext) -> Launch:
        if ctx.options.get("broken"):
            raise KeyError("command")
        return super().launch(ctx)


def test_a_program_that_cannot_be_described_ends_its_turn(options: dict[str, Any]) -> None:
    with hostler.agent_session(Unlaunchable(), **options) as session:
        with pytest.raises(hostler.HarnessInstallFailed, match="KeyError: 'command'"):
            session.run("hi", options={"broken": True})
        assert session.run("hi").stop_reason == "done"


def test_many_threads(options: dict[str, Any], state_dir: Path) -> None:
    """20 threads with sessions of their own, and 20 on one (cases J02, J07)."""
    failed: list[BaseException] = []

    def own(n: int) -> None:
        try:
            with hostler.agent_session(FAKE, **options) as session:
                for turn in range(2):
                    assert f"{n}-{turn}" in session.run(f"{n}-{turn}").text
        except BaseException as error:
            failed.append(error)

    with hostler.agent_session(FAKE, **options) as shared:

        def share(n: int) -> None:
            try:
                assert f"shared-{n}" in shared.run(f"shared-{n}").text
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=own, args=(n,)) for n in range(10)]
        threads += [threading.Thread(target=share, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert failed == []


def test_sync_calls_inside_a_running_loop(options: dict[str, Any]) -> None:
    """A notebook (case J01), and a user who blocks his own loop."""

    async def notebook() -> None:
        with hostler.agent_session(FAKE, **options) as session:
            assert session.run("one").stop_reason == "done"
            turn = asyncio.create_task(session.arun(steps({"sleep": 0.2}, {"text": "two"})))
            await asyncio.sleep(0.05)
            time.sleep(1.0)  # blocks the loop; the engine's is another one
            assert "two" in (await turn).text

    asyncio.run(notebook())


def test_a_session_outlives_the_loop_that_made_it(options: dict[str, Any]) -> None:
    """Case J02."""

    async def make() -> Any:
        session = await hostler.aagent_session(FAKE, **options)
        await session.arun("CODEWORD-one")
        return session

    session = asyncio.run(make())

    async def use() -> str:
        async with session:
            return str((await session.arun(steps({"say": "memory"}))).text)

    assert "CODEWORD-one" in asyncio.run(use())


def test_a_loop_without_subprocesses(options: dict[str, Any]) -> None:
    """Case J04."""

    class Loop(asyncio.SelectorEventLoop):
        async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    loop = Loop()
    try:
        assert loop.run_until_complete(hostler.aagent(FAKE, "hi", **options)).stop_reason == "done"
    finally:
        loop.close()


SCRIPT = """
import asyncio, sys, gc, os, logging
import hostler
logging.getLogger('asyncio').setLevel(logging.ERROR)  # it warns of steps over 0.1 s, which a busy machine makes
from hostler.testing.fake_runtime import FAKE
options = dict(model="claude-sonnet-4-5", api_base=sys.argv[1], api_key="planted-gateway-key-7f3a")
{body}
print("end", flush=True)
"""

BODIES = {
    "no close": "s = hostler.agent_session(FAKE, **options); print(s.run('hi').stop_reason)",
    "no close, turn running": 's = hostler.agent_session(FAKE, **options)\nfor e in s.stream(\'[{"text": "a"}, {"hang": true}]\'): break',
    "async break": """
async def main():
    s = await hostler.aagent_session(FAKE, **options)
    async for e in s.astream('[{"text": "a"}, {"sleep": 0.2}]'):
        break
asyncio.run(main())""",
    "async return": """
async def one(s):
    async for e in s.astream('[{"text": "a"}, {"sleep": 0.2}]'):
        return e
async def main():
    async with hostler.aagent_session(FAKE, **options) as s:
        await one(s)
        gc.collect()
asyncio.run(main())""",
    "async exception": """
async def main():
    async with hostler.aagent_session(FAKE, **options) as s:
        try:
            async for e in s.astream('[{"text": "a"}, {"sleep": 0.2}]'):
                raise ValueError
        except ValueError:
            pass
asyncio.run(main())""",
    "closed from another task": """
async def main():
    async with hostler.aagent_session(FAKE, **options) as s:
        stream = s.astream('[{"text": "a"}, {"sleep": 0.5}]')
        await anext(stream)
        await asyncio.create_task(stream.aclose())
asyncio.run(main())""",
    "cancelled wait": """
async def main():
    async with hostler.aagent_session(FAKE, **options) as s:
        task = asyncio.create_task(s.arun('[{"text": "a"}, {"sleep": 0.5}]'))
        await asyncio.sleep(0.4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        print((await s.arun('next')).stop_reason)
asyncio.run(main())""",
    "fork": """
s = hostler.agent_session(FAKE, **options)
s.run('hi')
import warnings; warnings.simplefilter('ignore', DeprecationWarning)
pid = os.fork()
if pid == 0:
    with hostler.agent_session(FAKE, **options) as t:
        ok = t.run('in the child').stop_reason == 'done'
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print(s.run('in the parent').stop_reason)
s.close()""",
    "never awaited": "o = hostler.aagent_session(FAKE, **options); del o; gc.collect()",
}


@pytest.mark.parametrize("name", BODIES)
def test_scripts_end_without_a_warning_or_a_process(name: str, models: ModelServer, state_dir: Path) -> None:
    """Cases C01, C02."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT.format(body=BODIES[name]), models.url],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HOSTLER_STATE_DIR": str(state_dir)},
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert "end" in done.stdout
    assert wait_until(lambda: not processes_of(state_dir), 5)


def test_an_app_with_very_many_open_files_runs_turns(models: ModelServer, state_dir: Path) -> None:
    """More than select() can bear."""
    body = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
with hostler.agent_session(FAKE, **options) as s:
    print(s.run('hi').stop_reason, s.run('again').stop_reason)
for file in files:
    os.close(file)"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT.format(body=body), models.url],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HOSTLER_STATE_DIR": str(state_dir)},
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert "done done" in done.stdout
    assert wait_until(lambda: not processes_of(state_dir), 5)


def test_the_engine_runs_on_uvloop_which_the_import_does_not_wait_for() -> None:
    look = """
import sys, hostler
from hostler import portal
print("uvloop" in sys.modules)
print(type(portal.engine().loop).__module__)"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "uvloop"]


def test_where_threads_are_made_of_something_else_the_engine_does_not_block_them() -> None:
    """As gevent and eventlet do, under which a loop of uvloop would stop everything."""
    look = """
import _thread
real = _thread.start_new_thread
_thread.start_new_thread = lambda *arguments: real(*arguments)
from hostler import portal
print(type(portal.engine().loop).__module__)"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("asyncio.")


def test_twenty_threads_take_turns(options: dict[str, Any]) -> None:
    def work(n: int) -> list[str]:
        with hostler.agent_session(FAKE, **options) as session:
            return [session.run(json.dumps([{"text": f"{n}.{m}"}])).text for m in range(3)]

    with ThreadPoolExecutor(20) as pool:
        said = list(pool.map(work, range(20)))
    assert said == [[f"{n}.{m}" for m in range(3)] for n in range(20)]


def test_a_sync_call_on_the_engine_thread_raises(options: dict[str, Any]) -> None:
    raised: list[BaseException] = []

    async def on_engine() -> None:
        try:
            hostler.agent(FAKE, "x", **options)
        except RuntimeError as error:
            raised.append(error)

    hostler.agent(FAKE, "warm up", **options)
    from hostler import portal

    portal.run(on_engine())
    assert "async twin" in str(raised[0])


def test_costs_add_up(models: ModelServer, options: dict[str, Any]) -> None:
    """Cases G01, G02, G08."""
    with hostler.agent_session(FAKE, **options) as session:
        assert session.cost == 0.0
        free = session.run(steps({"text": "no model"}))
        assert free.cost == 0.0
        results = [session.run(steps(*[{"model": "go"}] * n)) for n in (1, 2, 3)]
        assert [r.usage.calls for r in results] == [1, 2, 3]
        one = results[0].cost
        assert one is not None
        assert [r.cost for r in results] == pytest.approx([one, 2 * one, 3 * one])
        assert session.cost == pytest.approx(6 * one)
        assert session.usage.calls == 6
        calls = [e for e in _records(session) if isinstance(e, ModelCall)]
        assert len(calls) == 6
        state = session.stop()
    with hostler.agent_resume(state, **options) as session:
        assert session.cost == pytest.approx(6 * one)
        assert session.run(steps({"model": "go"})).cost == pytest.approx(one)


def _records(session: Any) -> list[Any]:
    last = session.run("last").turn_id
    out = []
    for record in session.follow(0):
        out.append(record.event)
        if isinstance(record.event, Done) and record.turn == last:
            return out
    return out


def test_unknown_price_is_none_not_zero(options: dict[str, Any]) -> None:
    """Case G05."""
    with hostler.agent_session(FAKE, **{**options, "model": "litellm_proxy/nobody-knows-me"}) as session:
        result = session.run(steps({"model": "go"}))
        assert result.cost is None
        assert result.usage.output_tokens == 40
        assert session.cost is None


def test_tool_events_are_paired(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        result = session.run(steps({"shell": "echo hi"}, {"text": "x"}))
    (call,) = [e for e in result.events if isinstance(e, ToolCall)]
    assert call.name == "bash"
    assert not [e for e in result.events if isinstance(e, Notice)]


def test_a_program_that_never_says_anything_is_an_error_with_its_last_words(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Case J05: it reads its input and stays silent."""
    monkeypatch.setenv("HOSTLER_START_TIMEOUT", "0.5")
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho no licence >&2\nexec cat > /dev/null\n")
    silent.chmod(0o755)
    with hostler.agent_session(CLAUDE.harness, options={"program": str(silent)}, **options) as session:
        start = time.monotonic()
        result = session.run("hello")
        assert time.monotonic() - start < 10
    assert result.error is not None
    assert result.error.code == "program_silent"
    assert "no licence" in result.error.message


def test_a_failure_that_nobody_foresaw_is_a_done_too(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 3: and the next turn goes on, with a program of its own."""

    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError("nobody foresaw this")

    with hostler.agent_session(FAKE, **options) as session:
        session.run("CODEWORD-one")
        with monkeypatch.context() as patched:
            patched.setattr("hostler.host.run.run_turn", broken)
            result = session.run("two")
        assert result.stop_reason == "error"
        assert result.error is not None
        assert result.error.code == "internal_error"
        assert "nobody foresaw this" in result.error.message
        assert "CODEWORD-one" in session.run(steps({"say": "memory"})).text


@pytest.mark.real
@pytest.mark.parametrize("program", [CLAUDE, CODEX, OPENCODE, *IN_SOAK], ids=ids)
def test_a_look_at_the_workspace_that_takes_long_is_over_before_the_program_acts(
    program: Program, models: ModelServer, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "old.txt").write_text("old")
    begin = Watch.begin

    def slowly(self: Watch, turn: str = "") -> None:
        time.sleep(1.5)
        begin(self, turn)

    monkeypatch.setattr(Watch, "begin", slowly)
    sandbox = hostler.sandbox.local(workspace)
    with hostler.agent_session(program.harness, sandbox=sandbox, **program.options(models)) as session:
        result = session.run(f"@@{json.dumps([{'shell': 'echo new > new.txt; rm old.txt'}, {'text': 'done'}])}@@")
    assert result.stop_reason == "done"
    assert {(c.path, c.kind) for c in result.files} == {("new.txt", "created"), ("old.txt", "deleted")}
