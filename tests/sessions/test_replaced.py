"""What lies under a session's names is not what was there: its working directory, its program's home, its workspace."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import Done, Result, SandboxError, Started
from hostler.testing.model_server import ModelServer
from tests.conftest import keepers_of
from tests.sessions.programs import FAKE_PROGRAM, KINDS

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
