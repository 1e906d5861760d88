"""ps, kill and gc as a user runs them, with the commands that the README names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import keepers_of, processes_of
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler.testing.model_server import ModelServer

FAKE = FAKE_PROGRAM.harness
README = Path(__file__).resolve().parents[2] / "README.md"
# `hostler gc` finds what nobody owns on the whole machine: not two of these at once.
pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.xdist_group("gc")]


def command(*args: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "hostler.cli", *args],
        env={**os.environ, "COLUMNS": "40"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


def test_without_sessions(state_dir: Path) -> None:
    assert command("ps").stdout == f"no programs run for {state_dir}\n"
    killed = command("kill", "nobody")
    assert killed.returncode == 2
    assert "HOSTLER_STATE_DIR" in killed.stderr
    assert command("gc", "--dry-run").returncode == 0
    assert not state_dir.exists()  # who looks makes nothing


def test_the_commands_of_the_readme(options: dict[str, Any], state_dir: Path) -> None:
    """In the order in which "What happens when your app restarts" has them."""
    section = README.read_text().split("## What happens when your app restarts")[1].split("\n## ")[0]
    written = re.findall(r"^    (hostler [^#\n]*?) *(?:#.*)?$", section, re.MULTILINE)
    assert [line.split()[1] for line in written] == ["ps", "kill", "gc"]
    with hostler.agent_session(FAKE, **options) as session:
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        state = session.detach()
    (keeper,) = keepers_of(state_dir)
    outputs = []
    for line in written:
        arguments = [state.session if a == "SESSION" else a for a in line.split()[1:]]
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    head, row = outputs[0].splitlines()
    assert head.split() == ["session", "program", "pid", "state", "age", "memory"]
    key, program, pid, where, *_ = row.split()
    assert (key, program, int(pid), where) == (state.session, "fake", keeper.pid, "parked")
    assert outputs[1] == f"session {state.session} ended; the session can be resumed\n"
    assert processes_of(state_dir) == []
    assert command("kill", state.session).returncode == 1
    with hostler.agent_resume(state, **options) as session:
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text
        assert session.resumed == "native"


def test_gc_says_what_it_does_and_a_dry_run_does_nothing(options: dict[str, Any], state_dir: Path) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        session.run("hi")
    stray = state_dir / "sessions" / "of-nobody"
    stray.mkdir()
    os.utime(stray, (time.time() - 3600,) * 2)
    assert (
        f"would remove: folder of a session that the store does not know: {stray}" in command("gc", "--dry-run").stdout
    )
    assert stray.exists()
    assert f"\nremoved: folder of a session that the store does not know: {stray}" in "\n" + command("gc").stdout
    assert not stray.exists()
    assert str(stray) not in command("gc").stdout


@pytest.mark.parametrize(
    ("guard", "words"), [("", "by (the kernel|a guardian)"), ("guardian", "by a guardian process")]
)
def test_the_doctor_says_how_process_trees_are_ended(guard: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLER_GUARD", guard)
    assert re.search(f"process trees: ended {words}", command("doctor").stdout)


def test_a_key_that_nobody_has(options: dict[str, Any]) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        session.run("hi")
        done = command("kill", "nobody")
    assert done.returncode == 2
    assert "There is no session 'nobody'" in done.stderr


def test_a_key_may_be_cut_and_a_data_dir_named(
    options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        session.run("hi")
        state = session.detach()
    monkeypatch.setenv("HOSTLER_STATE_DIR", str(tmp_path / "elsewhere"))
    here = ("--data-dir", str(state_dir))
    assert state.session in command("ps", *here).stdout
    killed = command("kill", state.session[:8], *here)
    assert killed.stdout == f"session {state.session} ended; the session can be resumed\n"
    assert command("gc", *here).returncode == 0
    assert command("ps", *here).stdout == f"no programs run for {state_dir}\n"
