"""Snapshots and forks of sessions, with real programs, in each sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import Forked, SandboxError, SessionBusy, SnapshotRestored, SnapshotTaken
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer
from hostler.workspace import snapshots
from tests.conftest import keepers_of, wait_until
from tests.sessions.programs import ALL, BUBBLEWRAP, FAKE_PROGRAM, KINDS, Program, ids

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


def shell(session: Any, command: str) -> str:
    return str(session.run(json.dumps([{"shell": command}])).text)


def events(session: Any) -> list[Any]:
    found = []
    count = session.run("last").turn_id
    for record in session.follow(0):
        found.append(record.event)
        if record.turn == count:
            return found
    raise AssertionError


@pytest.mark.parametrize("kind", ["local", BUBBLEWRAP])
def test_a_workspace_is_put_back_under_the_living_program(kind: str, options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, sandbox=getattr(hostler.sandbox, kind), **options) as session:
        shell(session, "echo 1 > a; mkdir d; ln -s a l; mkfifo pipe; chmod 600 a")
        first = session.snapshot()
        shell(session, "echo 2 > a; rm -r d l; echo new > b; chmod 644 a")
        second = session.snapshot()
        session.restore(first)
        assert shell(session, "cat a; ls -F; stat -c %a a") == "1\na\nd/\nl@\npipe|\n600\n"
        assert session.run("x").files == ()  # what the app has put back, the turn has not changed
        session.restore(second)
        assert shell(session, "cat a b; ls -F") == "2\nnew\na\nb\npipe|\n"
        with pytest.raises(SandboxError, match="no snapshot"):
            session.restore("snap_of_another")
        seen = events(session)
        state = session.stop()
    taken = [event for event in seen if isinstance(event, SnapshotTaken)]
    assert [event.id for event in taken] == [first, second]
    assert taken[0].skipped == ("pipe: neither file, folder nor link",)
    assert [event.id for event in seen if isinstance(event, SnapshotRestored)] == [first, second]
    with hostler.agent_resume(state, **options) as session:  # also in another process, another day
        session.restore(first)
        assert shell(session, "cat a") == "1\n"


def test_a_session_that_is_busy_is_left_alone(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        snapshot = session.snapshot()
        stream = session.stream('[{"text": "a"}, {"sleep": 30}]')
        next(stream)
        for work in (session.snapshot, lambda: session.restore(snapshot), lambda: session.fork("other")):
            with pytest.raises(SessionBusy):
                work()
        session.cancel()
        stream.wait()
        assert session.snapshot() != snapshot


def test_a_prompt_that_comes_during_a_snapshot_waits(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go = threading.Event(), threading.Event()
    take = snapshots.take

    def slow(*given: Any) -> Any:
        inside.set()
        assert go.wait(10)
        return take(*given)

    monkeypatch.setattr(snapshots, "take", slow)
    with hostler.agent_session(FAKE, **options) as session:
        worker = threading.Thread(target=session.snapshot)
        worker.start()
        assert inside.wait(10)
        stream = session.stream("after")
        time.sleep(0.3)
        assert session.status == "idle"
        go.set()
        worker.join(10)
        assert stream.wait().text == "You said: after"


@pytest.mark.parametrize("how", ["aclose", "astop", "adetach"])
@pytest.mark.parametrize(("work", "step"), [("snapshot", "take"), ("restore", "restore"), ("fork", "copy")])
def test_an_end_comes_behind_what_nobody_waits_for_any_more(
    work: str, step: str, how: str, options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, over = threading.Event(), threading.Event()
    works = getattr(snapshots, step)

    def slow(*given: Any) -> Any:
        inside.set()
        time.sleep(0.5)
        done = works(*given)
        over.set()
        return done

    async def main() -> None:
        session = await hostler.aagent_session(FAKE, **options)
        await session.arun("x")
        given = {"snapshot": (), "restore": (await session.asnapshot(),), "fork": ("other",)}[work]
        monkeypatch.setattr(snapshots, step, slow)
        working = asyncio.create_task(getattr(session, f"a{work}")(*given))
        assert await asyncio.to_thread(inside.wait, 10)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await asyncio.wait_for(getattr(session, how)(), 20)
        assert over.is_set()
        assert len(keepers_of(state_dir)) == (how == "adetach")
        if how != "aclose":
            await (await hostler.aagent_resume(await session.astate(), **options)).aclose()

    asyncio.run(main())


@pytest.mark.bubblewrap
def test_a_callers_home_is_refused(options: dict[str, Any], workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(workspace))
    with hostler.agent_session(FAKE, sandbox=hostler.sandbox.bubblewrap(workspace), **options) as session:
        for work in (session.snapshot, lambda: session.fork("other")):
            with pytest.raises(SandboxError, match="home directory"):
                work()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_fork_goes_its_own_way(program: Program, kind: str, models: ModelServer, workspace: Path) -> None:
    """Both remember what was before, neither what the other one did; a caller's own folder is left to the first."""
    box = getattr(hostler.sandbox, kind)(workspace)
    options = program.options(models)
    with hostler.agent_session(program.harness, sandbox=box, **options) as session:
        session.run(program.shell("echo 1 > file; echo r > /artifacts/r; ln -s file link", "CODEWORD-one"))
        with session.fork("fork") as fork:
            assert fork.key == "fork"
            assert fork.resumed == "native"
            assert Path(fork.workdir) != workspace
            assert (Path(fork.workdir) / "link").readlink() == Path("file")
            result = fork.run(program.shell("echo 2 >> file; cat /artifacts/r > copied; pwd > where", "CODEWORD-fork"))
            assert result.error is None, result.error
            assert (Path(fork.workdir) / "where").read_text().strip() == (
                "/session" if kind == "bubblewrap" else fork.workdir
            )
            session.run(program.say("CODEWORD-first"))
            before = len(models.calls)
            fork.run("What do you remember?" if not program.fake else program.recall())
            asked = json.dumps([call.body for call in models.calls[before:]])
            if program.fake:
                asked = fork.run(program.recall()).text
            assert "CODEWORD-one" in asked
            assert "CODEWORD-fork" in asked
            assert "CODEWORD-first" not in asked
            assert (workspace / "file").read_text() == "1\n"
            assert sorted(os.listdir(fork.workdir)) == ["copied", "file", "link", "where"]
            assert fork.cost is not None or session.cost is None
            with pytest.raises(ValueError, match="already"):
                session.fork("fork")
        (forked,) = [r.event for r in _until(session, Forked) if isinstance(r.event, Forked)]
        assert forked.key == "fork"


def _until(session: Any, kind: type[Any]) -> list[Any]:
    found = []
    for record in session.follow(0):
        found.append(record)
        if isinstance(record.event, kind):
            return found
    raise AssertionError


def test_a_fork_is_a_session_like_any_other(options: dict[str, Any], tmp_path: Path) -> None:
    """With the same rules and tools, resumable, deleted by its key; the first one may be gone."""

    def who() -> str:
        """Says who."""
        return "the app"

    host = hostler.local_host(tmp_path / "host")
    harness = hostler.create_harness(host=host, runtime=FAKE, tools=[who], instructions="Be brief.", **options)
    first = harness.sessions.get_or_create("first")
    first.run(json.dumps([{"text": "x"}, {"write": "f", "content": "1"}]))
    fork = first.fork("second")
    rules = json.loads(fork.run(json.dumps([{"say": "rules"}])).text)
    assert rules["instructions"] == "Be brief."
    said = fork.run(json.dumps([{"mcp": "who", "arguments": {}}]))
    assert "the app" in [getattr(event, "output", None) for event in said.events]
    fork.stop()
    harness.sessions.delete("first")
    again = harness.sessions.get("second")
    assert again.files.read("f") == b"1"
    assert '"write": "f"' in again.run(json.dumps([{"say": "memory"}])).text
    assert {info.id for info in harness.sessions.list()} == {"second"}
    for key in ("", "x" * 600):
        with pytest.raises(ValueError, match="1 to 512"):
            again.fork(key)
    harness.sessions.delete("second")
    assert wait_until(lambda: not list((tmp_path / "host" / "sessions").iterdir()), 5)


def test_a_fork_knows_the_callers_transcript(options: dict[str, Any], tmp_path: Path) -> None:
    """What the program was told is known of the fork, too: it gets the new message only."""
    harness = hostler.create_harness(host=hostler.local_host(tmp_path / "host"), runtime=FAKE, **options)
    messages = [{"role": "user", "content": "CODEWORD-one"}]
    first = hostler.generate_harness(harness=harness, messages=messages, session="first")
    harness.sessions.get("first").fork("second")
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "CODEWORD-two"}]
    for key in ("second", "first"):
        result = hostler.generate_harness(harness=harness, messages=messages, session=key)
        assert (result.context, result.text) == ("appended", "You said: CODEWORD-two")
        memory = hostler.generate_harness(harness=harness, prompt='[{"say": "memory"}]', session=key).text
        assert memory.count("CODEWORD-one") == 1
        harness.sessions.delete(key)
