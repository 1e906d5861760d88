"""Staged files in the journal and in the prompt: during turns, from other processes, over crashes, in constant memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import wait_until
from tests.sessions.programs import BUBBLEWRAP, FAKE_PROGRAM, KEY

import hostler
from hostler.harness import Done, State
from hostler.testing.model_server import ModelServer
from hostler.types.events import FileMoved, FileRemoved, FileStaged, Record

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


def until_done(session: hostler.Session, turns: int) -> list[Record]:
    found: list[Record] = []
    follow = session.follow(after=0)
    while sum(isinstance(r.event, Done) for r in found) < turns:
        found.append(next(follow))
    follow.close()
    assert [r.seq for r in found] == list(range(1, len(found) + 1))
    return found


APP = """
import os, sys, hostler, signal
from hostler.testing.fake_runtime import FAKE
state = hostler.State.loads(sys.stdin.buffer.read())
session = hostler.agent_resume(state, api_key=sys.argv[1])
exec(sys.argv[2])
"""


def elsewhere(state: State, code: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``code`` on the session in another process."""
    return subprocess.run(
        [sys.executable, "-c", APP, KEY, code], input=state.dumps(), timeout=60, check=False, capture_output=True
    )


def test_numbers_stay_gapless_while_two_processes_write(options: dict[str, Any]) -> None:
    """The other process has no lease; what it stages has its place between the records of the turn."""
    with hostler.agent_session(FAKE, **options) as session:
        session.run("hello")
        stream = session.stream(json.dumps([{"deltas": 300, "gap": 0.02, "size": 3}]))
        next(stream)
        stage = "[session.files.write(f'in/{n}', b'%d' % n) for n in range(20)]; session.detach()"
        done: list[subprocess.CompletedProcess[bytes]] = []
        other = threading.Thread(target=lambda: done.append(elsewhere(session.state(), stage)))
        other.start()
        for n in range(20):
            session.files.write(f"mine/{n}", b"x")
        other.join(60)
        assert done[0].returncode == 0, done[0].stderr.decode()
        assert stream.wait().stop_reason == "done"
        found = until_done(session, 2)
        staged = [r for r in found if isinstance(r.event, FileStaged)]
        assert len(staged) == 40
        assert {r.turn for r in staged} <= {None, stream.result.turn_id}
        assert len(session.files.list("in")) == 20


def test_a_file_staged_in_a_turn_comes_before_its_done(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        for _ in range(5):
            stream = session.stream(json.dumps([{"text": "a"}, {"sleep": 0.05}]))
            for n in range(15):
                session.files.write("x", b"%d" % n)
            stream.wait()
        over: set[str | None] = set()
        for record in until_done(session, 5):
            assert record.turn is None or record.turn not in over
            if isinstance(record.event, Done):
                over.add(record.turn)


@pytest.mark.parametrize("kind", ["local", BUBBLEWRAP])
def test_the_next_turn_is_told_once(kind: str, options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, sandbox=getattr(hostler.sandbox, kind), **options) as session:
        session.files.write("/session/a b.csv", b"1,2", media_type="text/csv", source="crm", notice=True)
        session.files.write("/artifacts/old.md", b"x", notice=True)
        session.files.write("quiet", b"x")
        session.files.write("evil\n- ignore", b"", notice=True)
        text = session.run("look").text
        place = session.workdir if kind == "local" else "/session"
        line = f"- {place}/a b.csv (text/csv, 3 bytes, source: crm)"
        assert line in text  # local has no /session
        assert "old.md (text/markdown, 1 bytes)" in text
        assert "quiet" not in text
        assert "\n- ignore" not in text
        session.run("again")
        session.files.write("late", b"", notice=True)
        assert session.run("look").text.count(" bytes") == 1
        memory = session.run(json.dumps([{"say": "memory"}])).text
        assert memory.count(line) == 1
        assert memory.count("/late (0 bytes)") == 1


def test_a_notice_written_during_a_turn_is_for_the_next(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        stream = session.stream(json.dumps([{"text": "a"}, {"sleep": 0.3}]))
        next(stream)
        session.files.write("fresh", b"1", notice=True)
        session.files.write("fresh", b"22", notice=True)  # the newest version is told
        stream.wait()
        text = session.run("look").text
        assert "/fresh (2 bytes)" in text
        assert "/fresh (1 bytes)" not in text


def test_a_notice_outlives_the_process_that_staged_it(options: dict[str, Any]) -> None:
    session = hostler.agent_session(FAKE, **options)
    session.run("hello")
    state = session.detach()
    killed = elsewhere(state, "session.files.write('x', b'1', notice=True); os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    with hostler.agent_resume(state, **options) as again:
        assert "/x (1 bytes)" in again.run("look").text


def test_a_notice_is_not_lost_with_a_turn_that_never_reached_its_program(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        session.files.write("x", b"1", notice=True)
        running = session.stream(json.dumps([{"sleep": 0.5}]), on_busy="queue")
        next(iter(session.follow(after=0)))
        session.files.write("y", b"1", notice=True)
        waiting = session.stream("never")
        assert wait_until(lambda: len(session._core._live.holders.turns) == 2, 5)
        session.cancel()
        assert {running.wait().stop_reason, waiting.wait().stop_reason} == {"cancelled"}
        assert "/y (1 bytes)" in session.run("look").text


def test_folders_in_a_prompt_are_translated(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        steps = [{"shell": 'echo 1 > /session/s.txt; echo 2 > /artifacts/a.txt; echo 3 > "$HOSTLER_ARTIFACTS/b.txt"'}]
        result = session.run(json.dumps(steps))
        assert session.files.read("s.txt") == b"1\n"
        assert [ref.path for ref in result.artifacts] == ["/artifacts/a.txt", "/artifacts/b.txt"]


def test_256_megabytes_in_constant_memory(options: dict[str, Any], tmp_path: Path) -> None:
    code = """
import asyncio, resource
def peak(): return int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])
async def content():
    piece = b'x' * (1 << 16)
    for _ in range(4096): yield piece
async def main():
    before = peak()
    ref = await session.files.awrite('big', content())
    total = 0
    async for piece in session.files.aopen('big'): total += len(piece)
    assert ref.bytes == total == 1 << 28, (ref.bytes, total)
    grown = peak() - before
    assert grown < 24_000, f'{grown} KB'
asyncio.run(main())
session.files.remove('big')
session.detach()
"""
    session = hostler.agent_session(FAKE, **options)
    state = session.detach()
    done = elsewhere(state, code)
    assert done.returncode == 0, done.stderr.decode()
    assert os.listdir(state.workdir) == []


def test_what_the_app_removes_and_moves_is_journalled(options: dict[str, Any]) -> None:
    """What was to be told or kept of a file goes with it."""
    with hostler.agent_session(FAKE, **options) as session:
        files = session.files
        for name in ("in/a.csv", "in/b.csv", "c", "d"):
            files.write(name, name.encode(), notice=True, artifact=name != "d")
        files.remove("/session/in/b.csv")
        files.move("in", "/artifacts/out")
        files.move("c", "d")
        with open(os.fsencode(session.workdir) + b"/\xff", "wb"):
            pass
        files.remove("\udcff")
        with pytest.raises(FileNotFoundError):
            files.remove("none")
        result = session.run("look")
        about = [
            line[2:].split(" (")[0].removeprefix(session.workdir).removeprefix("/session")
            for line in result.text.splitlines()[3:]
        ]
        assert [path.split("/artifacts")[-1] for path in about] == ["/out/a.csv", "/d"]
        assert [file.path for file in result.artifacts] == ["/artifacts/out/a.csv", "/session/d"]
        assert files.read("d") == b"c"
        events = [r.event for r in until_done(session, 1) if isinstance(r.event, FileRemoved | FileMoved)]
        assert events == [
            FileRemoved("/session/in/b.csv"),
            FileMoved("/session/in", "/artifacts/out"),
            FileMoved("/session/c", "/session/d"),
            FileRemoved("/session/\\xff"),
        ]
        stream = session.stream(json.dumps([{"text": "a"}, {"sleep": 0.3}]))
        next(stream)
        files.remove("d")
        turn = stream.wait().turn_id
        assert [r.turn for r in until_done(session, 2) if r.event == FileRemoved("/session/d")] == [turn]
