"""What lies under a session's names is not what was there: its working directory, its program's home, its workspace."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler import portal
from hostler.harness import Done, Notice, Result, SandboxError, Started, State, StateIncompatible
from hostler.host.gc import unowned
from hostler.host.local import implicit_host
from hostler.testing.fake_runtime import FakeRuntime
from hostler.testing.model_server import ModelServer
from tests.conftest import keepers_of
from tests.sessions.programs import CODEX, FAKE_PROGRAM, KINDS

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


def shell(command: str) -> str:
    return json.dumps([{"shell": command}, {"say": "memory"}])


def rung(session: hostler.Session, result: Result) -> str | None:
    """How the program was reached in a turn."""
    reached = [None]
    for record in session.follow(0):
        if record.turn == result.turn_id and isinstance(record.event, Started):
            reached.append(record.event.resumed)
        if record.turn == result.turn_id and isinstance(record.event, Done):
            break
    return reached[-1]


# ---- the caller's working directory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_does_not_go_on_in_a_directory_that_was_replaced(
    kind: str, options: dict[str, Any], workspace: Path, state_dir: Path
) -> None:
    sandbox = getattr(hostler.sandbox, kind)
    session = hostler.agent_session(FAKE, sandbox=sandbox(workspace), **options)
    session.run(FAKE_PROGRAM.say("CODEWORD-one"))
    for n, parked in enumerate((False, True)):
        session.run(shell("echo kept > kept.txt"))
        before = keepers_of(state_dir)
        session.run(shell("echo more >> kept.txt; mkdir folder"))
        assert keepers_of(state_dir) == before  # a directory that is written to is the same one
        if parked:
            state = session.detach()
        shutil.rmtree(workspace)
        workspace.mkdir()
        if parked:
            session = hostler.agent_resume(state, sandbox=sandbox(workspace), **options)
        result = session.run(shell(f"echo new > new{n}.txt"))
        assert "CODEWORD-one" in result.text
        assert [file.path for file in result.files] == [f"new{n}.txt"]
        assert os.listdir(workspace) == [f"new{n}.txt"]
        assert rung(session, result) == "native"
    session.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("become", ["gone", "a link", "no directory"])
def test_a_working_directory_that_is_gone_between_two_turns_is_a_clear_error(
    become: str, kind: str, options: dict[str, Any], models: ModelServer, workspace: Path, tmp_path: Path
) -> None:
    other, aside = tmp_path / "other", tmp_path / "aside"
    other.mkdir()
    box = getattr(hostler.sandbox, kind)(workspace)
    session = hostler.agent_session(FAKE, sandbox=box, **options)
    session.run(FAKE_PROGRAM.say("CODEWORD-one"))
    workspace.rename(aside)
    if become == "a link":
        workspace.symlink_to(other)
    elif become == "no directory":
        workspace.touch()
    asked = len(models.requests)
    for _ in range(2):
        with pytest.raises(SandboxError, match=f"is {become}.*Put it back"):
            session.run(FAKE_PROGRAM.say("CODEWORD-two"))
    state = session.stop()
    with pytest.raises(SandboxError, match=f"is {become}.*Put it back"):
        hostler.agent_resume(state, **options)
    assert len(models.requests) == asked
    if become != "gone":
        workspace.unlink()
    aside.rename(workspace)
    with hostler.agent_resume(state, **options) as session:
        text = session.run(shell("echo x > x.txt")).text
    assert "CODEWORD-one" in text
    assert "CODEWORD-two" not in text
    assert os.listdir(other) == []
    assert os.listdir(workspace) == ["x.txt"]


# ---- the program's home ---------------------------------------------------------------------------------------------


class Indexed(FakeRuntime):
    """A program with an index beside its history: it refuses each conversation while that is damaged."""

    name = "indexed"
    look = 'grep -q bad "$HOME/index"'

    def find(self, options: Any, which: Any) -> tuple[str, ...]:
        refuse = 'printf \'{"ev": "lost", "session": "x"}\\n\'; sleep 30'
        script = f'if {self.look}; then {refuse}; fi; echo good >> "$HOME/index"; exec "$@"'
        return ("/bin/sh", "-c", script, "sh", *super().find(options, which))


class Stubborn(Indexed):
    """One that refuses whatever is in its home."""

    look = '[ -e "$HOME/../refuse" ]'


def stopped(runtime: FakeRuntime, options: dict[str, Any], state_dir: Path) -> tuple[State, Path]:
    """A session of two turns, and its folder."""
    session = hostler.agent_session(runtime, **options)
    session.run(FAKE_PROGRAM.say("CODEWORD-one"))
    session.run(FAKE_PROGRAM.say("CODEWORD-two"))
    state = session.stop()
    (folder,) = (state_dir / "sessions").iterdir()
    return state, folder


@pytest.fixture
def local(options: dict[str, Any], workspace: Path) -> dict[str, Any]:
    return {**options, "sandbox": hostler.sandbox.local(workspace)}


def resume(state: State, runtime: FakeRuntime, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("hostler.opening.runtime_for", lambda harness: runtime)
    return hostler.agent_resume(state, **options)


def test_a_program_that_refuses_its_home_goes_on_with_the_saved_history_in_a_new_one(
    local: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Indexed()
    state, folder = stopped(runtime, local, state_dir)
    (folder / "home" / "index").write_text("bad")
    with resume(state, runtime, local, monkeypatch) as session:
        result = session.run(FAKE_PROGRAM.recall())
        assert "CODEWORD-one" in result.text
        assert "CODEWORD-two" in result.text
        assert session.resumed == "native"
        (told,) = result.warnings
        (aside,) = folder.glob("home-aside-*")
        assert str(aside) in told
        assert (aside / "index").read_text() == "bad"  # it is not lost
        assert session.run(FAKE_PROGRAM.recall()).warnings == ()
    assert [str(aside) in line for line in _gc(state_dir)] == [True]
    assert not aside.exists()


def test_a_program_that_refuses_a_new_home_too_is_a_typed_error_and_nothing_is_lost(
    local: dict[str, Any], state_dir: Path, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Stubborn()
    state, folder = stopped(runtime, local, state_dir)
    (folder / "home" / "notes" / "deep").mkdir(parents=True)
    (folder / "home" / "notes" / "deep" / "note").write_text("mine")
    (folder / "refuse").touch()
    before, asked = _content(folder / "home"), len(models.requests)
    for _ in range(2):
        session = resume(state, runtime, local, monkeypatch)
        with session, pytest.raises(StateIncompatible, match="does not know conversation"):
            session.run(FAKE_PROGRAM.recall())
        assert _content(folder / "home") == before
        assert list(folder.glob("home-aside-*")) == []
    assert len(models.requests) == asked
    (folder / "refuse").unlink()
    with resume(state, runtime, local, monkeypatch) as session:
        assert "CODEWORD-two" in session.run(FAKE_PROGRAM.recall()).text


def test_history_that_is_newer_than_its_copy_outlives_a_new_home(
    local: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may have gone down in the middle of a turn."""
    runtime = Indexed()
    state, folder = stopped(runtime, local, state_dir)
    (history,) = (folder / "home" / ".fake").iterdir()
    with history.open("a") as file:
        file.write(json.dumps({"role": "user", "content": "CODEWORD-three"}) + "\n")
    (folder / "home" / "index").write_text("bad")
    (folder / "home" / ".fake" / "other").write_text("bad")
    with resume(state, runtime, local, monkeypatch) as session:
        text = session.run(FAKE_PROGRAM.recall()).text
    assert [word in text for word in ("CODEWORD-one", "CODEWORD-two", "CODEWORD-three")] == [True] * 3
    assert os.listdir(history.parent) == [history.name]


def test_without_saved_history_a_home_that_is_refused_stays_as_it_is(
    local: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Indexed()
    state, folder = stopped(runtime, local, state_dir)
    shutil.rmtree(folder / "native")
    (folder / "home" / "index").write_text("bad")
    before = _content(folder / "home")
    with resume(state, runtime, local, monkeypatch) as session, pytest.raises(StateIncompatible):
        session.run(FAKE_PROGRAM.recall())
    assert _content(folder / "home") == before


@pytest.mark.real
def test_codex_goes_on_when_its_index_is_damaged(models: ModelServer, state_dir: Path) -> None:
    options = CODEX.options(models)
    with hostler.agent_session(CODEX.harness, **options) as session:
        session.run(CODEX.say("CODEWORD-one"))
        session.run(CODEX.say("CODEWORD-two"))
        state = session.stop()
    (index,) = state_dir.glob("sessions/*/home/.codex/index-*/thread_history_1.sqlite")
    for log in index.parent.glob(f"{index.name}-*"):
        log.unlink()
    data = bytearray(index.read_bytes())
    data[100::7] = bytes(byte ^ 0xA5 for byte in data[100::7])
    index.write_bytes(data)
    for n in range(2):
        with hostler.agent_resume(state, **options) as session:
            result = session.run(CODEX.recall())
            assert "CODEWORD-one" in result.text
            assert "CODEWORD-two" in result.text
            assert session.resumed == "native"
            assert ["set aside" in told for told in result.warnings].count(True) == (n == 0)


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _gc(data_dir: Path) -> list[str]:
    async def collect() -> list[str]:
        host = await implicit_host(None)
        found = [each for each in await unowned(str(data_dir), host.store) if "set aside" in each.what]
        for each in found:
            await each.remove()
        return [each.what for each in found]

    return portal.run(collect())


# ---- the session's own workspace ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["in hand", "parked", "stopped", "stopped, and resumed by an app that died"])
def test_a_workspace_that_is_lost_is_told_once(how: str, options: dict[str, Any]) -> None:
    session = hostler.agent_session(FAKE, **options)
    session.run(shell("echo kept > kept.txt"))
    snapshot = session.snapshot()
    state = session.state()
    folder = Path(state.workdir)
    if how != "in hand":
        session.detach() if how == "parked" else session.stop()
    shutil.rmtree(folder)
    if how != "in hand":
        session = hostler.agent_resume(state, **options)
    if how.endswith("died"):
        assert os.listdir(folder) == []
        session.stop()
        session = hostler.agent_resume(state, **options)
    with session:
        result = session.run(shell("ls; echo new > new.txt"))
        (told,) = result.warnings
        assert "was gone" in told
        assert f"session.restore({snapshot!r})" in told
        assert [event.code for event in result.events if isinstance(event, Notice)] == ["workspace_lost"]
        assert [file.path for file in result.files] == ["new.txt"]
        assert session.run(shell("ls")).warnings == ()
        session.restore(snapshot)
        assert os.listdir(folder) == ["kept.txt"]
        assert session.run(shell("ls")).warnings == ()


def test_a_workspace_that_is_lost_and_put_back_is_not_told(options: dict[str, Any]) -> None:
    session = hostler.agent_session(FAKE, **options)
    session.run(shell("echo kept > kept.txt"))
    snapshot = session.snapshot()
    state = session.stop()
    shutil.rmtree(state.workdir)
    with hostler.agent_resume(state, **options) as session:
        session.restore(snapshot)
        assert session.run(shell("cat kept.txt")).warnings == ()


def test_a_workspace_in_which_nothing_was_is_not_told(options: dict[str, Any]) -> None:
    session = hostler.agent_session(FAKE, **options)
    state = session.stop()
    shutil.rmtree(state.workdir)  # no turn has been in it
    with hostler.agent_resume(state, **options) as session:
        assert session.run("hello").warnings == ()
        state = session.stop()
    with hostler.agent_resume(state, **options) as session:  # it is there, and empty
        assert session.run("hello").warnings == ()
