"""An app asks whether its tool may run, is killed, and somebody else answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sessions.programs import ALL, FAKE_PROGRAM, Program, ids
from tests.sessions.test_approvals import cli, question_in
from tests.sessions.test_restart import of_turn
from tests.toolserver.app import pay, who
from tests.toolserver.test_tools import APP, calling

import hostler
from hostler.harness import Answered, Approval, Done, State, ToolResult
from hostler.testing.model_server import ModelServer

pytestmark = pytest.mark.usefixtures("nothing_left")


def asked_and_killed(program: Program, models: ModelServer, ledger: Path) -> State:
    job = {
        "harness": program.name,
        "options": {**program.options(models), "permissions": "ask"},
        "prompt": calling(program, ("pay", {"ledger": str(ledger)})),
    }
    done = subprocess.run(
        [sys.executable, str(APP), json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "DIE_AT": "Approval"},
    )
    assert done.returncode == -9, done.stderr
    return State.loads(done.stdout.strip())


@pytest.mark.parametrize("allow", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.parametrize("program", ALL, ids=ids)
def test_another_process_answers_and_the_turn_goes_on(
    program: Program, allow: bool, models: ModelServer, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    state = asked_and_killed(program, models, ledger)
    id = question_in(cli("approvals"), state.session)
    cli("answer", state.session, id, *(["--allow"] if allow else ["--deny", "--reason", "not this month"]))
    with hostler.agent_resume(state, tools=[who, pay], **program.options(models)) as session:
        result = session.run("[]" if program.fake else "And now?")
        assert session.resumed == "attached"
        records = []
        for record in session.follow(0):
            records.append(record)
            if isinstance(record.event, Done) and record.turn == result.turn_id:
                break
    events = of_turn(records, 0)
    assert [event.id for event in events if isinstance(event, Approval)] == [id]  # asked once
    assert [(event.id, event.allow) for event in events if isinstance(event, Answered)] == [(id, allow)]
    ((output, bad),) = [(event.output, event.is_error) for event in events if isinstance(event, ToolResult)]
    assert events[-1].result.stop_reason == "done"
    if allow:
        assert (output, bad) == ("paid", False)
        assert ledger.read_text() == f"paid by {os.getpid()}\n"  # once, and here
    else:
        assert "not this month" in output
        assert not ledger.exists()


def test_it_is_answered_while_the_next_app_has_the_turn(models: ModelServer, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    state = asked_and_killed(FAKE_PROGRAM, models, ledger)
    with hostler.agent_resume(state, tools=[who, pay], **FAKE_PROGRAM.options(models)) as session:
        stream = session.stream("[]")
        (approval,) = session.approvals()
        assert (approval.tool, approval.input) == ("pay", {"ledger": str(ledger)})
        assert question_in(cli("approvals"), state.session) == approval.id
        cli("answer", state.session, approval.id, "--allow")
        assert stream.wait().stop_reason == "done"
        assert session.approvals() == []
    assert ledger.read_text() == f"paid by {os.getpid()}\n"
