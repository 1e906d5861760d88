"""Resume: from other processes, after kills and losses; and what is refused before any model request."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import hostler
from hostler.harness import Done, SessionLost, State, StateIncompatible
from hostler.testing.fake_runtime import FakeRuntime
from hostler.testing.model_server import ModelServer
from tests.conftest import keepers_of, processes_of, wait_until
from tests.sessions.programs import ALL, CLAUDE, FAKE_PROGRAM, KEY, Program, ids

CHILD = Path(__file__).with_name("child.py")
pytestmark = pytest.mark.usefixtures("nothing_left")


def run_child(
    job: dict[str, Any], *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> list[tuple[str, str]]:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(CHILD), json.dumps(job)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(root), **(env or {})},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return [tuple(line.split(" ", 1)) for line in done.stdout.splitlines()]  # type: ignore[misc]


def last(lines: list[tuple[str, str]], kind: str) -> str:
    return [text for k, text in lines if k == kind][-1]


def job_for(program: Program, models: ModelServer, **more: Any) -> dict[str, Any]:
    return {"harness": program.name, "options": program.options(models), **more}


@pytest.mark.parametrize("own_workspace", [True, False], ids=["owned", "callers"])
def test_a_new_process_with_another_cwd_goes_on(
    own_workspace: bool, models: ModelServer, workspace: Path, tmp_path: Path
) -> None:
    """The real programs: the conformance rows `new-process` and `other-cwd`."""
    program = FAKE_PROGRAM
    place = {} if own_workspace else {"workspace": str(workspace)}
    first = run_child(
        job_for(
            program,
            models,
            prompts=[program.say("CODEWORD-one"), program.shell("echo kept > kept.txt")],
            leave="stop",
            **place,
        )
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    second = run_child(
        job_for(
            program,
            models,
            resume=last(first, "state"),
            prompts=[program.shell("pwd; cat kept.txt", "CODEWORD-two"), program.recall()],
            **place,
        ),
        cwd=elsewhere,
    )
    assert last(second, "resumed") == "native"
    assert "CODEWORD-one" in last(second, "result")
    assert "CODEWORD-two" in last(second, "result")
    state = State.loads(last(first, "state"))
    if not own_workspace:
        assert state.workdir == str(workspace)
        assert (workspace / "kept.txt").read_text() == "kept\n"
    assert not any(elsewhere.iterdir())


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_after_detach_another_process_attaches(program: Program, models: ModelServer) -> None:
    first = run_child(job_for(program, models, prompts=[program.say("CODEWORD-one")], leave="detach"))
    second = run_child(job_for(program, models, resume=last(first, "state"), prompts=[program.recall()]))
    assert last(second, "resumed") == "attached"
    assert "CODEWORD-one" in last(second, "result")


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_turn_whose_host_was_killed_is_followed_to_its_one_done(program: Program, models: ModelServer) -> None:
    """Case C04/A10/K05: the host is killed while a tool runs."""
    slow = program.shell(
        "for i in 0 1 2 3 4 5 6 7; do echo $i; read -t 0.1 x < /dev/zero || perl -e 'select(undef,undef,undef,0.1)'; done; echo kept > kept.txt",
        "CODEWORD-two",
    )
    first = run_child(job_for(program, models, prompts=[program.say("CODEWORD-one"), slow], die_at="ToolCall"))
    assert first[-1] == ("event", "ToolCall")
    state = State.loads(last(first, "state"))
    with hostler.agent_resume(state, **program.options(models)) as session:
        result = session.run(program.recall())
        assert session.resumed == "attached"
        assert "CODEWORD-one" in result.text
        assert "CODEWORD-two" in result.text
        records = []
        for record in session.follow(0):
            records.append(record)
            if isinstance(record.event, Done) and record.turn == result.turn_id:
                break
        assert (Path(session.workdir) / "kept.txt").exists()
    assert [r.seq for r in records] == list(range(1, len(records) + 1))
    turns = list(dict.fromkeys(r.turn for r in records))
    for turn in turns:
        mine = [r for r in records if r.turn == turn]
        assert [type(r.event).__name__ for r in mine].count("Done") == 1
        assert isinstance(mine[-1].event, Done)
        assert mine[-1].event.result.stop_reason == "done"


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_when_host_and_keeper_were_killed_the_turn_is_an_error_and_the_next_goes_on(
    program: Program, models: ModelServer, state_dir: Path
) -> None:
    first = run_child(
        job_for(
            program,
            models,
            prompts=[program.say("CODEWORD-one"), program.shell("tail -f /dev/null", "CODEWORD-two")],
            die_at="ToolCall",
        )
    )
    (keeper,) = keepers_of(state_dir)
    keeper.kill()
    assert wait_until(lambda: not processes_of(state_dir), 5)  # and with the keeper all that it held
    state = State.loads(last(first, "state"))
    with hostler.agent_resume(state, **program.options(models)) as session:
        result = session.run(program.recall())
        assert session.resumed == "native"
        assert "CODEWORD-one" in result.text
        outcomes = []
        for record in session.follow(0):
            if isinstance(record.event, Done):
                outcomes.append(record.event.result)
                if record.turn == result.turn_id:
                    break
    assert [(o.stop_reason, o.error.code if o.error else None) for o in outcomes] == [
        ("done", None),
        ("error", "program_lost"),
        ("done", None),
    ]


def test_a_lost_home_is_put_back(models: ModelServer, state_dir: Path) -> None:
    """Case A17: the program's home is part of what is kept. The real programs: the conformance row `lost-home`."""
    program = FAKE_PROGRAM
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        session.run(program.say("CODEWORD-one"))
        state = session.stop()
    (folder,) = (state_dir / "sessions").iterdir()
    shutil.rmtree(folder / "home")
    with hostler.agent_resume(state, **program.options(models)) as session:
        assert session.resumed == "native"
        assert "CODEWORD-one" in session.run(program.recall()).text
        assert any("CODEWORD-one" in str(m["content"]) for m in session.history())


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_history_that_is_gone_is_an_error_before_any_model_request(
    program: Program, models: ModelServer, state_dir: Path
) -> None:
    """Case A01: never fresh under an old id."""
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        session.run(program.say("CODEWORD-one"))
        state = session.stop()
    (folder,) = (state_dir / "sessions").iterdir()
    shutil.rmtree(folder / "home")
    shutil.rmtree(folder / "native")
    asked = len(models.requests)
    with pytest.raises(SessionLost, match="never starts fresh"):
        hostler.agent_resume(state, **program.options(models))
    assert len(models.requests) == asked


def test_states_that_do_not_fit_are_refused_before_any_model_request(
    models: ModelServer, state_dir: Path, workspace: Path, tmp_path: Path
) -> None:
    options = FAKE_PROGRAM.options(models)
    box = hostler.sandbox.local(workspace)
    with hostler.agent_session(FAKE_PROGRAM.harness, sandbox=box, **options) as session:
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        state = session.stop()
    asked = len(models.requests)
    other = tmp_path / "other"
    other.mkdir()
    wrong: list[tuple[State, dict[str, Any], type[Exception]]] = [
        (dataclasses.replace(state, session="nobody"), {}, SessionLost),
        (dataclasses.replace(state, session="../../etc"), {}, SessionLost),
        (dataclasses.replace(state, harness="claude_code"), {}, StateIncompatible),
        (dataclasses.replace(state, native_id="0b0e1a5e-0000-4000-8000-000000000000"), {}, StateIncompatible),
        (dataclasses.replace(state, native_id="../x"), {}, StateIncompatible),
        (dataclasses.replace(state, workdir=str(other)), {}, StateIncompatible),
        (state, {"sandbox": hostler.sandbox.local(other)}, StateIncompatible),
        (state, {"state_dir": str(tmp_path / "another-store")}, SessionLost),
    ]
    for bad, more, error in wrong:
        with pytest.raises(error):
            hostler.agent_resume(bad, **{**options, **more})
    assert len(models.requests) == asked
    with hostler.agent_resume(state, **options) as session:
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text


def test_a_conversation_whose_name_is_none_of_the_programs_is_not_resumed(models: ModelServer, state_dir: Path) -> None:
    """What a program called its conversation goes into the next one's command line."""
    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE_PROGRAM.harness, **options) as session:
        session.run("hello")
        state = session.stop()
    store = sqlite3.connect(state_dir / "store.db")
    with store:
        store.execute("UPDATE sessions SET native_id = '--model-url=http://elsewhere'")
    store.close()
    with pytest.raises(StateIncompatible, match="named its conversation '--model-url"):
        hostler.agent_resume(state, **options)


def test_a_working_directory_that_is_gone_is_a_clear_error(models: ModelServer, workspace: Path) -> None:
    """Case A04."""
    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE_PROGRAM.harness, sandbox=hostler.sandbox.local(workspace), **options) as session:
        session.run("hello")
        state = session.stop()
    workspace.rmdir()
    with pytest.raises(hostler.SandboxError, match="gone"):
        hostler.agent_resume(state, **options)


def test_the_key_is_asked_for_again_by_name(models: ModelServer) -> None:
    """Cases A19, A20: a state holds no credential."""
    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE_PROGRAM.harness, **options) as session:
        session.run("hello")
        state = session.stop()
    assert KEY.encode() not in state.dumps()
    with pytest.raises(hostler.OptionsMismatch, match="ANTHROPIC_API_KEY"):
        hostler.agent_resume(state)
    with hostler.agent_resume(state, api_key=KEY) as session:
        assert session.run("again").stop_reason == "done"


def test_an_app_that_lives_on_keeps_a_closed_session_resumable(models: ModelServer) -> None:
    """An exception in the block does not brick a chat."""
    options = FAKE_PROGRAM.options(models)
    try:
        with hostler.agent_session(FAKE_PROGRAM.harness, **options) as session:
            session.run(FAKE_PROGRAM.say("CODEWORD-one"))
            state = session.state()
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    with pytest.raises(hostler.SessionClosed):
        session.run("x")
    with hostler.agent_resume(state, **options) as session:
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text


@pytest.mark.real
@pytest.mark.parametrize("cut", ["torn", "no newline"])
def test_a_torn_native_file_loads(models: ModelServer, state_dir: Path, cut: str) -> None:
    """Case A14, with the real program; every offset is tried in the workspace tests."""
    with hostler.agent_session(CLAUDE.harness, **CLAUDE.options(models)) as session:
        session.run(CLAUDE.say("CODEWORD-one"))
        session.run(CLAUDE.say("CODEWORD-two"))
        state = session.stop()
    (file,) = state_dir.glob("sessions/*/home/.claude/projects/*/*.jsonl")
    whole = file.read_bytes()
    file.write_bytes(whole[: -len(whole.splitlines()[-1]) // 2] if cut == "torn" else whole.rstrip(b"\n"))
    with hostler.agent_resume(state, **CLAUDE.options(models)) as session:
        text = session.run(CLAUDE.recall()).text
    assert "CODEWORD-one" in text
    assert "CODEWORD-two" in text


def test_a_parked_program_that_died_is_no_reason_to_lose_the_session(models: ModelServer, state_dir: Path) -> None:
    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE_PROGRAM.harness, **options) as session:
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        state = session.detach()
    victims = keepers_of(state_dir)
    assert victims
    for process in victims:
        process.kill()
    psutil.wait_procs(victims, 5)
    with hostler.agent_resume(state, **options) as session:
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text
        assert session.resumed == "native"


class Unfiled(FakeRuntime):
    """A program of the caller's own of which nobody knows where it keeps its history."""

    name = "unfiled"
    native_files = ()


def test_a_history_that_hostler_does_not_know_is_there_or_the_session_is_lost(
    models: ModelServer, state_dir: Path
) -> None:
    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(Unfiled(), **options) as session:  # type: ignore[arg-type]
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        state = session.stop()
    with hostler.agent_resume(state, **options) as session:
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text
        assert session.resumed == "native"
        session.stop()
    (home,) = state_dir.glob("sessions/*/home")
    shutil.rmtree(home)
    with hostler.agent_resume(state, **options) as session, pytest.raises(StateIncompatible, match="does not know"):
        session.run(FAKE_PROGRAM.recall())
