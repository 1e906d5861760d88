"""Sessions that go elsewhere: with their data dir to another place, over the store to another machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hostler
from hostler.harness import Done
from hostler.host import identity
from hostler.host.identity import is_dead, uptime
from hostler.testing.model_server import ModelServer
from tests.conftest import keepers_of, processes_of, wait_until
from tests.host.test_faults import stored
from tests.host.test_storm import check_alone_and_once, journal
from tests.sessions.programs import ALL, FAKE_PROGRAM, Program, ids, seen_as

APP = """
import json, os, sys
import hostler
from hostler.host import local
from hostler.testing.fake_runtime import FAKE
job = json.loads(sys.argv[1])
if job.get("machine"):
    local.machine_id = lambda: job["machine"]
    local.BEAT_EVERY = 0.2
runtime = FAKE if job["harness"] == "fake" else hostler.Harness(job["harness"])
harness = hostler.create_harness(host=hostler.local_host(job["data_dir"]), runtime=runtime, **job["options"])
for prompt in job["prompts"]:
    stream = hostler.stream_harness(harness=harness, prompt=prompt, session="chat")
    for event in stream:
        print(type(event).__name__, flush=True)
        if job.get("killed") and prompt is job["prompts"][-1]:
            os.kill(os.getpid(), 9)
    assert stream.result.stop_reason == "done", stream.result
print("state", harness.sessions.get("chat").state().dumps().decode())
"""


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert wait_until(lambda: not processes_of(tmp_path), 8), [p.cmdline() for p in processes_of(tmp_path)]


def app(program: Program, models: ModelServer, data_dir: Path, *prompts: str, **more: Any) -> str:
    job = {"harness": program.name, "options": program.options(models), "data_dir": str(data_dir), "prompts": prompts}
    run = [sys.executable, "-c", APP, json.dumps({**job, **more})]
    done = subprocess.run(run, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == (-9 if more.get("killed") else 0), done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)  # each program is started four times
@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_data_dir_that_was_moved_takes_its_workspaces_along(
    program: Program, models: ModelServer, tmp_path: Path
) -> None:
    """By key and by State: the conversation, the files, and the agent works where they are now."""
    here, there = tmp_path / "here", tmp_path / "elsewhere" / "there"
    said = app(
        program, models, here, program.say("CODEWORD-one"), program.shell("echo kept > kept.txt", "CODEWORD-two")
    )
    state = hostler.State.loads(said.splitlines()[-1].removeprefix("state ").encode())
    there.parent.mkdir()
    shutil.move(here, there)
    options = program.options(models)
    harness = hostler.create_harness(host=hostler.local_host(there), runtime=program.harness, **options)
    with harness.sessions.get_or_create("chat") as session:
        assert session.workdir.startswith(f"{there}/")
        assert session.files.read("kept.txt") == b"kept\n"
        before = len(models.calls)
        result = session.run(program.recall())
        assert (result.stop_reason, session.resumed) == ("done", "native")
        if not program.fake:
            asked = json.dumps([call.body for call in models.calls[before:]])
            assert "CODEWORD-one" in asked
            assert "CODEWORD-two" in asked
            assert seen_as(session.workdir) in asked
        else:
            assert "CODEWORD-one" in result.text
        result = session.run(program.shell("pwd > where.txt; cat kept.txt >> where.txt"))
        assert session.files.read("where.txt").decode() == f"{seen_as(session.workdir)}\nkept\n"
        assert [change.path for change in result.files] == ["where.txt"]
    with hostler.agent_resume(state, state_dir=str(there), **options) as again:
        assert again.run(program.recall()).stop_reason == "done"
    assert not here.exists()
    harness.sessions.delete("chat")


def test_a_turn_of_another_machine_is_taken_up_when_its_program_must_be_over(
    models: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder is killed in mid-turn on a machine whose locks and sockets mean nothing here."""
    monkeypatch.setenv("HOSTLER_ORPHAN_TTL", "1.5")
    monkeypatch.setattr(identity, "SILENT_AFTER", 6.0)  # a program takes some seconds to end
    data_dir = tmp_path / "state"
    hang = json.dumps([{"text": "a"}, {"hang": True}])
    app(FAKE_PROGRAM, models, data_dir, "CODEWORD-one", hang, machine="elsewhere", killed=True)
    died = time.monotonic()
    (keeper,) = keepers_of(data_dir)
    harness = hostler.create_harness(
        host=hostler.local_host(data_dir), runtime=FAKE_PROGRAM.harness, **FAKE_PROGRAM.options(models)
    )
    stream = hostler.stream_harness(harness=harness, prompt=FAKE_PROGRAM.recall(), session="chat")
    while keeper.is_running():  # as long as the other machine's program may live, the turn is not touched
        outcomes = [event for _, _, event in stored(data_dir, "chat") if event["type"] == "done"]
        assert len(outcomes) == 1
        time.sleep(0.05)
    assert "CODEWORD-one" in stream.wait().text
    assert 7 < time.monotonic() - died < 20
    records = journal(harness, "chat", 3)
    check_alone_and_once(records)
    outcomes = [r.event.result for r in records if isinstance(r.event, Done)]
    assert [r.stop_reason for r in outcomes] == ["done", "error", "done"]
    assert outcomes[1].text == "a"
    assert outcomes[1].error is not None
    assert outcomes[1].error.code in ("program_exited", "program_lost")
    harness.sessions.delete("chat")


@pytest.mark.parametrize(("silent", "dead"), [(0, False), (614, False), (616, True)])
def test_on_another_machine_only_time_tells(silent: float, dead: bool, tmp_path: Path) -> None:
    """Neither its lock file, which nobody holds here, nor its own clock."""
    row = SimpleNamespace(
        machine="elsewhere", lock=str(tmp_path / "free.lock"), uptime=uptime() - 1e6, heartbeat=time.time() - silent
    )
    assert is_dead(row, "here", 600) is dead


def test_a_session_that_was_left_on_another_machine_goes_on_at_once(models: ModelServer, tmp_path: Path) -> None:
    app(FAKE_PROGRAM, models, tmp_path / "state", "CODEWORD-one", machine="elsewhere")
    harness = hostler.create_harness(
        host=hostler.local_host(tmp_path / "state"), runtime=FAKE_PROGRAM.harness, **FAKE_PROGRAM.options(models)
    )
    start = time.monotonic()
    result = hostler.generate_harness(harness=harness, prompt=FAKE_PROGRAM.recall(), session="chat")
    assert "CODEWORD-one" in result.text
    assert time.monotonic() - start < 5
    harness.sessions.delete("chat")
