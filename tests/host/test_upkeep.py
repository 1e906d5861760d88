"""The programs of a store from outside: the list, the end of one, the bound of the parked, and what nobody owns."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import keepers_of, processes_of, wait_until
from tests.sessions.programs import FAKE_PROGRAM
from tests.sessions.test_kill import App, journal

import hostler
from hostler import portal
from hostler.harness import Done, SessionLost, State
from hostler.host import Host
from hostler.host.gc import unowned
from hostler.host.upkeep import KeptProgram, kill, programs
from hostler.testing.model_server import ModelServer

FAKE = FAKE_PROGRAM.harness
ENDLESS = '[{"text": "a"}, {"spawn": "setsid", "seconds": 60}, {"hang": true}]'
# `hostler gc` finds what nobody owns on the whole machine: not two of these at once.
pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.xdist_group("gc")]


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


@pytest.fixture
def host(state_dir: Path) -> Iterator[Host]:
    """Another host on the state dir, as a command of the shell makes one."""
    opened = portal.run(Host.open(str(state_dir)))
    yield opened
    portal.run(opened.close())


def parked(options: dict[str, Any], word: str = "CODEWORD-one") -> State:
    with hostler.agent_session(FAKE, **options) as session:
        session.run(FAKE_PROGRAM.say(word))
        return session.detach()


def orphaned(options: dict[str, Any], **env: str) -> State:
    """A session whose app was killed in the middle of an endless turn."""
    app = App({"harness": "fake", "options": options, "prompts": [FAKE_PROGRAM.say("CODEWORD-one"), ENDLESS]}, **env)
    app.until("result")
    app.until("event Text", 1)
    app.kill()
    return State.loads(next(line[6:] for line in reversed(app.lines) if line.startswith("state ")))


def is_over(pid: int) -> bool:
    """Ended; whether it was reaped is its parent's affair."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def listed(host: Host) -> dict[str, KeptProgram]:
    return {program.session: program for program in portal.run(programs(host.store))}


# ---- max_parked -----------------------------------------------------------------------------------------------------


def test_beyond_the_bound_the_oldest_parked_program_is_ended(
    options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    monkeypatch.setenv("HOSTLER_MAX_PARKED", "2")
    own = {**options, "state_dir": str(state_dir / "..") + "/other"}  # its host reads the bound when it opens
    with hostler.agent_session(FAKE, **own) as idle:
        idle.run("hi")  # attached: it is not parked and does not count
        busy = idle.stream(json.dumps([{"text": "a"}, {"sleep": 1}, {"text": "b"}]))
        states = [parked(own, f"CODEWORD-{n}") for n in range(3)]
        assert busy.wait().stop_reason == "done"
        resumed = []
        for n, state in enumerate(states):
            with hostler.agent_resume(state, **own) as session:
                assert f"CODEWORD-{n}" in session.run(FAKE_PROGRAM.recall()).text
                resumed.append(session.resumed)
        assert resumed == ["native", "attached", "attached"]
        assert idle.run("still there").stop_reason == "done"


def test_an_orphaned_turn_is_not_a_parked_program(
    options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTLER_MAX_PARKED", "1")
    state = orphaned(options)
    parked(options)
    parked(options)
    assert len(keepers_of(state_dir)) == 2  # the turn's, and the one parked last
    with hostler.agent_resume(state, **options) as session:
        session.cancel()
        assert session.resumed == "attached"
    end_all(state_dir)


def end_all(state_dir: Path) -> None:
    """Ends the programs that a test leaves parked."""

    async def work() -> None:
        host = await Host.open(str(state_dir))
        for program in await programs(host.store):
            await kill(host, program.session)
        await host.close()

    portal.run(work())


# ---- ps and kill ----------------------------------------------------------------------------------------------------


def test_the_list_says_who_has_each_program(options: dict[str, Any], host: Host) -> None:
    lost = orphaned(options)
    left = parked(options)
    with hostler.agent_session(FAKE, **options) as idle, hostler.agent_session(FAKE, **options) as running:
        idle.run("hi")
        next(running.stream(json.dumps([{"text": "a"}, {"hang": True}])))
        found = listed(host)
        states = {key: program.state for key, program in found.items()}
        assert states == {lost.session: "orphaned", left.session: "parked", idle.key: "idle", running.key: "running"}
        for program in found.values():
            assert program.program == "fake"
            assert 5 << 20 < program.memory < 1 << 30
            assert 0 < program.age < 60
            assert psutil.Process(program.pid).is_running()
        assert idle.run("nobody was disturbed").stop_reason == "done"
        running.cancel()
    for state in (lost, left):
        assert portal.run(kill(host, state.session))
    assert listed(host) == {}


def test_a_parked_program_that_is_killed_resumes_natively(options: dict[str, Any], host: Host) -> None:
    state = parked(options)
    (pid,) = [program.pid for program in listed(host).values()]
    assert portal.run(kill(host, state.session))
    assert is_over(pid)
    assert not portal.run(kill(host, state.session))  # nothing is left to be ended
    with hostler.agent_resume(state, **options) as session:
        assert session.resumed == "native"
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text
    with pytest.raises(SessionLost, match="not in the store"):
        portal.run(kill(host, "nobody"))


def test_an_orphaned_turn_that_is_killed_gets_its_one_done(
    options: dict[str, Any], state_dir: Path, host: Host
) -> None:
    state = orphaned(options)
    assert portal.run(kill(host, state.session))
    assert processes_of(state_dir) == []
    with hostler.agent_resume(state, **options) as session:
        result = session.run(FAKE_PROGRAM.recall())
        records = journal(session, result.turn_id)
    assert "CODEWORD-one" in result.text
    dones = [record.event.result for record in records if isinstance(record.event, Done)]
    assert [done.stop_reason for done in dones] == ["done", "cancelled", "done"]
    assert dones[1].error is None
    assert dones[1].text == "a"


def test_a_running_turn_that_is_killed_ends_in_its_app(options: dict[str, Any], host: Host) -> None:
    app = App({"harness": "fake", "options": options, "prompts": [FAKE_PROGRAM.say("CODEWORD-one"), ENDLESS, "after"]})
    app.until("result")
    app.until("event Text")
    ((key, program),) = listed(host).items()
    assert portal.run(kill(host, key))
    assert is_over(program.pid)
    assert json.loads(app.until("result"))["stop"] == "cancelled"
    assert json.loads(app.until("result"))["text"] == "You said: after"  # the app goes on with a new program
    app.until("state", 4)
    assert app.process.wait(20) == 0
    app.kill()


@pytest.mark.soak
def test_kill_waits_for_a_paused_app_to_be_given_up(options: dict[str, Any], host: Host) -> None:
    app = App({"harness": "fake", "options": options, "prompts": [ENDLESS]})
    app.until("event Text")
    (key,) = listed(host)
    os.kill(app.process.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        assert portal.run(kill(host, key))
        assert time.monotonic() - start < 20
        assert listed(host) == {}
    finally:
        os.kill(app.process.pid, signal.SIGCONT)
        app.kill()


# ---- gc -------------------------------------------------------------------------------------------------------------


def collect(state_dir: Path, host: Host, *, remove: bool = True) -> list[str]:
    """What gc finds of this state dir, and removes."""

    async def work() -> list[str]:
        said = []
        for leftover in await unowned(str(state_dir), host.store):
            said.append(leftover.what)
            if remove:
                await leftover.remove()
        return said

    return portal.run(work())


def make_old(*paths: Path | str) -> None:
    for path in paths:
        os.utime(path, (time.time() - 3600,) * 2)


def forget_session(state_dir: Path, key: str) -> None:
    database = sqlite3.connect(state_dir / "store.db", timeout=10)
    with database:
        (id,) = database.execute("select id from sessions where key = ?", (key,)).fetchone()
        for table, column in (("records", "session"), ("turns", "session"), ("sessions", "id")):
            database.execute(f"delete from {table} where {column} = ?", (id,))
    database.close()


def test_what_is_owned_is_left_alone(options: dict[str, Any], state_dir: Path, host: Host) -> None:
    lost, left = orphaned(options), parked(options)
    with hostler.agent_session(FAKE, **options) as session:
        session.run("hi")
        make_old(*state_dir.glob("sessions/*"), *state_dir.glob("hosts/*"))
        said = collect(state_dir, host)
        # Other data dirs of this machine may have been deleted under their programs: those are not ours to count.
        ours = [s for s in said if str(state_dir) in s or ("program under" in s and "folder" not in s) or "entry" in s]
        mine = [s.split(":")[0] for s in ours]
        assert sorted(mine) == ["entry of a dead app", "lock file of a dead app"]  # of the app that was killed
        assert session.run("still").stop_reason == "done"
    for state in (lost, left):
        assert state.session in listed(host)
        with hostler.agent_resume(state, **options) as session:
            session.cancel()
            assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text
            assert session.resumed == "attached"


def test_the_program_and_the_folder_of_a_deleted_session_go(
    options: dict[str, Any], state_dir: Path, host: Host
) -> None:
    state = parked(options)
    forget_session(state_dir, state.session)
    (folder,) = state_dir.glob("sessions/*")
    assert not [s for s in collect(state_dir, host) if str(folder) in s]  # it may be in the making
    make_old(folder)
    dry = collect(state_dir, host, remove=False)
    assert processes_of(state_dir)
    said = collect(state_dir, host)
    assert said == dry
    assert any("its session was deleted" in s for s in said)
    assert processes_of(state_dir) == []
    assert not folder.exists()
    assert collect(state_dir, host) == []


def test_a_program_whose_store_was_deleted_goes(options: dict[str, Any], tmp_path: Path) -> None:
    other = tmp_path / "other"
    app = App(
        {"harness": "fake", "options": {**options, "state_dir": str(other)}, "prompts": ["hi"], "leave": "detach"}
    )
    app.until("state", 3)
    assert app.process.wait(20) == 0
    app.kill()
    (keeper,) = keepers_of(other)
    shutil.rmtree(other)

    async def work() -> list[str]:
        said = []
        for leftover in await unowned(str(other), None):
            if str(other) in leftover.what:
                said.append(leftover.what)
                await leftover.remove()
        return said

    (what,) = portal.run(work())
    assert "was deleted" in what
    assert is_over(keeper.pid)
    assert wait_until(lambda: not processes_of(other), 5)


def test_what_the_dead_leave_goes(options: dict[str, Any], state_dir: Path, host: Host) -> None:
    """A killed app's row, lock and endpoint; a killed keeper's socket, log and marked processes."""
    with tempfile.TemporaryDirectory(prefix="h", dir="/tmp") as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", place)
        os.mkdir(f"{place}/run", 0o700)
        patch.setenv("XDG_RUNTIME_DIR", f"{place}/run")
        patch.setenv("TMPDIR", place)
        state = orphaned(options)
        (keeper,) = keepers_of(state_dir)
        database = sqlite3.connect(state_dir / "store.db")
        ((program,),) = database.execute("select program from sessions where program != 'null'").fetchall()
        database.close()
        address = json.loads(program)["address"]
        keeper.kill()
        assert wait_until(lambda: not processes_of(state_dir), 5)
        stray = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"], env={"HOSTLER_RUN": address["mark"]}
        )
        (endpoint,) = Path(place).glob("hostler-*")
        make_old(address["socket"], endpoint, *state_dir.glob("hosts/*"))
        said = collect(state_dir, host)
        assert [s.split(":")[0] for s in said] == [
            "socket of a dead keeper",
            "endpoint folder of a dead app",
            f"1 process of session {state.session}",
            "entry of a dead app",
            "lock file of a dead app",
        ]
        assert stray.wait(5) == -9
        assert not os.path.exists(address["socket"])
        assert not endpoint.exists()
        assert collect(state_dir, host) == []
        with hostler.agent_resume(state, **options) as session:  # its log was spared: the turn is still to be ended
            result = session.run(FAKE_PROGRAM.recall())
            dones = [r.event.result for r in journal(session, result.turn_id) if isinstance(r.event, Done)]
        assert [done.stop_reason for done in dones] == ["done", "error", "done"]
        assert dones[1].text == "a"


def test_logs_of_former_programs_do_not_pile_up(options: dict[str, Any], state_dir: Path) -> None:
    state = parked(options)
    for _ in range(3):
        with hostler.agent_resume(state, **options) as session:
            session.run("hi")
            state = session.stop()
    assert len(list(state_dir.glob("sessions/*/private/keeper/*"))) == 1
