"""What once broke a session: callers who go away in the middle, ends that race, forks, and agents that wreck their folders."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler import portal
from hostler.harness import HarnessError, State, StateIncompatible, Text
from hostler.host.local import implicit_host
from hostler.testing.fake_runtime import FakeCodec, FakeRuntime
from hostler.testing.model_server import ModelServer
from tests.conftest import processes_of, wait_until
from tests.sessions.programs import FAKE_PROGRAM

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness


def steps(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


# ---- callers who go away --------------------------------------------------------------------------------------------


def test_a_caller_who_goes_away_while_his_turn_is_accepted_blocks_nobody(options: dict[str, Any]) -> None:
    """The turn is accepted or not; it is never left in the store with a lease that nobody serves."""

    async def main() -> None:
        async with hostler.aagent_session(FAKE, **options) as session:
            await session.arun("begin")
            for n in range(30):
                going = asyncio.create_task(session.arun("x"))
                await asyncio.sleep(n * 0.0004)
                going.cancel()
                await asyncio.gather(going, return_exceptions=True)
                assert (await asyncio.wait_for(session.arun("y"), 10)).stop_reason == "done"

    asyncio.run(main())


def test_a_caller_who_goes_away_while_his_session_ends_leaves_it_free(options: dict[str, Any]) -> None:
    async def main() -> None:
        for n in range(12):
            session = await hostler.aagent_session(FAKE, **options)
            await session.arun("begin")
            state = await session.astate()
            ending = asyncio.create_task(session.aclose() if n % 2 else session.astop())
            await asyncio.sleep(n * 0.001)
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            async with hostler.aagent_resume(state, **options) as again:
                assert (await asyncio.wait_for(again.arun("y"), 10)).stop_reason == "done"

    asyncio.run(main())


def test_ends_that_race_take_one_handle_each(options: dict[str, Any]) -> None:
    async def main() -> None:
        first = await hostler.aagent_session(FAKE, **options)
        await first.arun("begin")
        second = await hostler.aagent_resume(await first.astate(), **options)
        ends = await asyncio.gather(first.adetach(), first.astop(), first.aclose(), return_exceptions=True)
        assert sum(isinstance(end, State) for end in ends) <= 1
        third = await hostler.aagent_resume(await second.astate(), **options)
        live = [session._core._live for session in (second, third)]
        assert live[0] is live[1]  # two in one process would share an epoch
        assert (await second.arun("x")).stop_reason == "done"
        await second.aclose()
        await third.aclose()

    asyncio.run(main())


def test_a_turn_that_is_being_accepted_does_not_outlive_its_session(options: dict[str, Any], state_dir: Path) -> None:
    for how in ("close", "stop", "close", "stop"):
        session = hostler.agent_session(FAKE, **options)
        stream = session.stream(steps({"hang": True}))
        getattr(session, how)()
        del stream
    assert wait_until(lambda: not processes_of(state_dir), 5)

    async def slots() -> int:
        host = await implicit_host(None)
        return len(host.slots._idle) + len(host.slots._busy)

    assert portal.run(slots()) == 0


def test_a_turn_that_waits_for_a_slot_can_be_cancelled(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTLER_MAX_RUNTIMES", "1")
    with hostler.agent_session(FAKE, **options) as one, hostler.agent_session(FAKE, **options) as other:
        busy = one.stream(steps({"text": "a"}, {"sleep": 30}))
        assert isinstance(next(busy), Text)
        waiting = other.stream("x")
        assert wait_until(lambda: other.status == "running", 5)
        waiting.cancel()

        async def end() -> str:
            return (await asyncio.wait_for(waiting.finished, 5)).stop_reason

        assert asyncio.run(end()) == "cancelled"
        one.cancel()
        assert busy.wait().stop_reason == "cancelled"
        assert other.run("x").stop_reason == "done"


# ---- interpreters ---------------------------------------------------------------------------------------------------


def script(body: str, options: dict[str, Any], seconds: float = 30) -> subprocess.CompletedProcess[str]:
    head = f"""
        import hostler, json, os, sys, threading, time
        from hostler.testing.fake_runtime import FAKE
        options = json.loads({json.dumps(json.dumps(options))})
    """
    code = textwrap.dedent(head) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=seconds, check=False
    )


def test_threads_that_outlive_the_main_thread_finish_their_turns(options: dict[str, Any]) -> None:
    """Python waits for them, and so do the sessions that they work with."""
    ended = script(
        """
        begun = threading.Event()

        def work():
            with hostler.agent_session(FAKE, **options) as session:
                begun.set()
                print(session.run('[{"text": "a"}, {"sleep": 0.5}, {"text": "b"}]').text)
                print(session.run('[{"text": "c"}]').text)

        threading.Thread(target=work).start()
        begun.wait(20)
        """,
        options,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("ab\nc\n", "", 0)


def test_a_forked_child_has_no_part_in_its_parents_sessions(options: dict[str, Any]) -> None:
    ended = script(
        """
        session = hostler.agent_session(FAKE, **options)
        session.run("x")
        pid = os.fork()
        if pid == 0:
            for call in (lambda: session.run("y"), session.stop, session.detach, session.cancel):
                try:
                    call()
                except hostler.HarnessError as error:
                    print(type(error).__name__, "fork" in str(error), flush=True)
            session.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(session.run('[{"text": "parent"}]').text)
        session.close()
        """,
        options,
    )
    child = ["SessionClosed True"] * 3 + ["StoreError True"]
    assert (ended.stdout.split("\n"), ended.stderr) == ([*child, "parent", ""], "")


# ---- agents that wreck their folders --------------------------------------------------------------------------------

WRECKS = {
    "home is a file": 'rm -rf "$HOME"; echo x > "$HOME"',
    "home leads away": 'mv "$HOME" "$HOME.x"; ln -s "$OUTSIDE" "$HOME"',
    "artifacts are a file": 'rm -rf "$HOSTLER_ARTIFACTS"; echo x > "$HOSTLER_ARTIFACTS"',
    "artifacts lead away": 'rm -rf "$HOSTLER_ARTIFACTS"; ln -s "$OUTSIDE" "$HOSTLER_ARTIFACTS"',
    "artifacts are a pipe": 'rm -rf "$HOSTLER_ARTIFACTS"; mkfifo "$HOSTLER_ARTIFACTS"',
}


@pytest.mark.parametrize("wreck", WRECKS)
def test_a_session_outlives_what_its_agent_does_to_its_folders(
    wreck: str, options: dict[str, Any], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    command = f"OUTSIDE={outside}; {WRECKS[wreck]}"
    session = hostler.agent_session(FAKE, **options)
    session.run(FAKE_PROGRAM.say("CODEWORD-one"))
    session.run(steps({"shell": command}, {"text": "did"}))
    assert session.run("x").stop_reason == "done"
    state = session.stop()
    with hostler.agent_resume(state, **options) as again:
        assert "CODEWORD-one" in again.run(FAKE_PROGRAM.recall()).text
    assert os.listdir(outside) == []


def test_a_workspace_that_became_a_file_is_made_again(options: dict[str, Any]) -> None:
    session = hostler.agent_session(FAKE, **options)
    session.run(FAKE_PROGRAM.say("CODEWORD-one"))
    session.run(steps({"shell": 'd="$PWD"; rm -rf "$d"; echo x > "$d"'}, {"text": "did"}))
    state = session.stop()
    with hostler.agent_resume(state, **options) as again:
        assert "CODEWORD-one" in again.run(FAKE_PROGRAM.recall()).text


def test_a_history_full_of_holes_is_not_read_through(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        session.run("x")
        result = session.run(steps({"shell": 'truncate -s 300G "$HOME"/.fake/*.jsonl'}, {"text": "did"}))
        assert result.text == "did"
        state = session.state()
    hostler.agent_resume(state, **options).close()  # at once: nothing is started


# ---- states and bodies that nobody made -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"session": "\ud800"}, {"session": ["a"]}, {"session": None}, {"native_id": "../../etc"}, {"model": "\ud800"}],
    ids=str,
)
def test_states_put_together_by_hand_are_refused(change: dict[str, Any], options: dict[str, Any]) -> None:
    session = hostler.agent_session(FAKE, **options)
    session.run("x")
    state = session.stop()
    with pytest.raises(StateIncompatible):
        hostler.agent_resume(replace(state, **change), **options)
    with pytest.raises(HarnessError):
        State.loads(b'{"version": 1, "harness": "fake", "session": "\\ud800", "workdir": "/x"}')


def test_odd_bodies_and_run_ids_are_type_errors(options: dict[str, Any], state_dir: Path) -> None:
    harness = hostler.create_harness(host=hostler.local_host(data_dir=state_dir), runtime=FAKE, **options)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match="extra_body"):
        hostler.generate_harness(harness=harness, prompt="x", session="k", extra_body=deep)
    with pytest.raises(TypeError, match="run_id"):
        hostler.generate_harness(harness=harness, prompt="x", session="k", run_id=5)  # type: ignore[arg-type]


def test_a_program_that_its_codec_cannot_begin_with_is_never_started(
    options: dict[str, Any], state_dir: Path, tmp_path: Path
) -> None:
    class Speechless(FakeCodec):
        def start(self, ctx: Any) -> Any:
            raise KeyError("words")

    class Mute(FakeRuntime):
        codec = Speechless()

        def find(self, options: Any, which: Any) -> tuple[str, ...]:
            return ("/bin/sh", "-c", f"touch {tmp_path}/started; exec cat")

    with hostler.agent_session(Mute(), **options) as session:  # type: ignore[arg-type]
        with pytest.raises(hostler.HarnessInstallFailed, match="words"):
            session.run("go")
        assert not (tmp_path / "started").exists()
        assert not processes_of(state_dir)
