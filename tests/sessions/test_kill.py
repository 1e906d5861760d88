"""kill -9 of the app at random moments, holders that are paused, and keepers that die."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import Done, Record, Started, State, Text
from hostler.testing.model_server import ModelServer
from tests.conftest import SOAK, keepers_of, processes_of, wait_until
from tests.sessions.programs import CLAUDE, CODEX, FAKE_PROGRAM, Program, ids

CHILD = Path(__file__).with_name("child.py")
ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("HOSTLER_KILLS") or (100 if SOAK else 7))  # of each program
pytestmark = pytest.mark.usefixtures("nothing_left")


class App:
    """An app process, read line by line."""

    def __init__(self, job: dict[str, Any], **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(job)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        )
        self.lines: list[str] = []

    def until(self, start: str, count: int = 1) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if sum(seen.startswith(start) for seen in self.lines) >= count and line.startswith(start):
                return line[len(start) :].strip()
        raise AssertionError(f"the app ended before {start!r}: {self.lines[-5:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.lines += [line.rstrip("\n") for line in self.process.stdout]
        self.process.stdout.close()


def slow_turn(program: Program) -> str:
    """About a second of tool, then a streamed answer."""
    command = "for i in 1 2 3 4 5 6; do echo $i >> log.txt; perl -e 'select(undef,undef,undef,0.1)'; done; echo kept > kept.txt"
    if program.fake:
        return "CODEWORD-two\n" + json.dumps(
            [{"shell": command}, {"deltas": 30, "gap": 0.01}, {"text": "the very end"}]
        )
    steps = [{"shell": command}, {"text": "0 1 2 3 4 5 6 7 8 9 the very end", "chunks": 16, "chunk_delay": 0.03}]
    return f"CODEWORD-two @@{json.dumps(steps)}@@"


def journal(session: Any, last: str) -> list[Record]:
    records: list[Record] = []
    for record in session.follow(0):
        records.append(record)
        if isinstance(record.event, Done) and record.turn == last:
            return records
    raise AssertionError("the journal ended")


@pytest.mark.longer
@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize(
    "program", [FAKE_PROGRAM, *(pytest.param(p, marks=pytest.mark.real) for p in (CLAUDE, CODEX))], ids=ids
)
def test_the_app_is_killed_at_a_random_moment(
    program: Program,
    seed: int,
    models: ModelServer,
    state_dir: Path,
    workspace: Path,
    record_property: Callable[[str, object], None],
) -> None:
    rng = random.Random(f"{program.name}-{seed}")
    orphan = seed % 7 == 6  # now and then nobody comes back in time
    job = {
        "harness": program.name,
        "options": program.options(models),
        "prompts": [program.say("CODEWORD-one"), slow_turn(program)],
        "workspace": str(workspace),
    }
    # A turn that is over when the app dies leaves a parked program, not an orphaned one.
    lives = {"HOSTLER_ORPHAN_TTL": "0.5", "HOSTLER_PARK_TTL": "0.5"} if orphan else {"HOSTLER_ORPHAN_TTL": "60"}
    app = App(job, **lives)
    app.until("state", 2)
    time.sleep(rng.random() * 2.0)
    app.kill()
    state = State.loads(next(line[6:] for line in reversed(app.lines) if line.startswith("state ")))
    if orphan:
        assert wait_until(lambda: not processes_of(state_dir) and not keepers_of(state_dir), 8)
    with hostler.agent_resume(state, sandbox=hostler.sandbox.local(workspace), **program.options(models)) as session:
        result = session.run(program.recall())
        records = journal(session, result.turn_id)
    assert "CODEWORD-one" in result.text
    assert [r.seq for r in records] == list(range(1, len(records) + 1))
    turns = list(dict.fromkeys(r.turn for r in records))
    for turn in turns:
        mine = [r.event for r in records if r.turn == turn]
        dones = [e for e in mine if isinstance(e, Done)]
        assert len(dones) == 1, (turn, mine)
        assert mine[-1] is dones[0]
        assert dones[0].result.text.count("the very end") <= 1
        assert "".join(e.delta for e in mine if isinstance(e, Text)).count("the very end") <= 1 or not program.fake
    slow = (
        next(r.event.result for r in records if isinstance(r.event, Done) and r.turn == turns[1])
        if len(turns) > 2
        else None
    )
    if slow is None:
        fate = "killed before the turn was accepted"
    elif sum(line.startswith("result") for line in app.lines) == 2:
        fate = "killed after its Done"
    elif orphan:
        fate = "nobody came: ended by its keeper"
    else:
        fate = "followed to its Done"
    record_property("kill", [program.name, fate])
    if slow is not None and not orphan:
        assert (slow.stop_reason, slow.error) == ("done", None)
        assert (workspace / "kept.txt").read_text() == "kept\n"
        assert (workspace / "log.txt").read_text().split() == list("123456")  # no tool ran twice
        assert "the very end" in slow.text
        assert "CODEWORD-two" in result.text


def test_a_keeper_that_is_killed_takes_all_with_it_and_the_session_says_so(
    models: ModelServer, state_dir: Path
) -> None:
    with hostler.agent_session(FAKE_PROGRAM.harness, **FAKE_PROGRAM.options(models)) as session:
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        stream = session.stream(json.dumps([{"text": "a"}, {"spawn": "setsid", "seconds": 60}, {"hang": True}]))
        next(stream)
        (keeper,) = keepers_of(state_dir)
        keeper.kill()
        assert wait_until(lambda: not processes_of(state_dir), 5)
        result = stream.wait()
        assert result.stop_reason == "error"
        assert result.error is not None
        assert result.error.code == "program_lost"
        assert result.error.retryable
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text


def test_two_processes_resume_one_parked_session(models: ModelServer) -> None:
    """Case B05: one runs, the other waits, and with "reject" is told."""
    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE_PROGRAM.harness, **options) as session:
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        state = session.detach()
    lock, go = (Path(state.workdir) / name for name in ("lock", "go"))
    command = "mkdir lock || exit 7; while [ ! -e go ]; do sleep 0.05; done; rmdir lock"
    prompt = json.dumps([{"text": "in"}, {"shell": command}, {"text": "out"}])
    job = {
        "harness": "fake",
        "options": options,
        "resume": state.dumps().decode(),
        "prompts": [prompt],
        "leave": "detach",
    }
    apps = [App(job), App(job)]
    assert wait_until(lock.exists, 30)  # one of them runs, whichever came first
    busy = App({**job, "options": {**options, "on_busy": "reject"}})
    assert "SessionBusy" in busy.until("error")
    busy.kill()
    go.touch()
    for app in apps:
        assert json.loads(app.until("result"))["stop"] == "done"
        app.until("state", 3)
        assert app.process.wait(20) == 0
        app.kill()
    with hostler.agent_resume(state, **options) as session:
        result = session.run(FAKE_PROGRAM.recall())
        records = journal(session, result.turn_id)
    outputs = [e.event.output for e in records if type(e.event).__name__ == "ToolResult"]
    assert len(outputs) == 2
    assert not any("exists" in output for output in outputs)
    assert [r.seq for r in records] == list(range(1, len(records) + 1))


def test_a_paused_holder_can_neither_write_nor_speak(models: ModelServer, state_dir: Path) -> None:
    """SIGSTOP the app in mid-turn, take over after it has been silent for 15 s, let it go on."""
    options = FAKE_PROGRAM.options(models)
    script = json.dumps([{"text": "a"}, {"sleep": 17}, {"text": "b"}])
    app = App({"harness": "fake", "options": options, "prompts": [FAKE_PROGRAM.say("CODEWORD-one"), script]})
    state = State.loads([app.until("state ") for _ in range(2)][-1])
    app.until("event Text", app.lines.count("event Text") + 1)
    os.kill(app.process.pid, signal.SIGSTOP)
    try:
        with hostler.agent_resume(state, **options) as session:
            start = time.monotonic()
            result = session.run(FAKE_PROGRAM.recall())
            assert time.monotonic() - start > 10
            assert "CODEWORD-one" in result.text
            os.kill(app.process.pid, signal.SIGCONT)
            again = session.run("once more")
            time.sleep(1.5)  # time for the old holder to do harm
            last = session.run("and again")
            records = journal(session, last.turn_id)
    finally:
        os.kill(app.process.pid, signal.SIGCONT)
        app.kill()
    assert again.stop_reason == last.stop_reason == "done"
    assert [r.seq for r in records] == list(range(1, len(records) + 1))
    turns = dict.fromkeys(r.turn for r in records)
    for turn in turns:
        assert sum(isinstance(r.event, Done) for r in records if r.turn == turn) == 1
    epochs = [r.event.epoch for r in records if type(r.event).__name__ == "Started"]
    assert epochs == sorted(epochs)


@pytest.mark.soak
def test_a_paused_holder_goes_on_with_its_turn_when_that_is_left_to_it(models: ModelServer) -> None:
    """Another process has taken the turn over and has left it again."""
    options = FAKE_PROGRAM.options(models)
    script = json.dumps([{"text": "a"}, *([{"sleep": 1}, {"text": "b"}] * 25)])
    app = App({"harness": "fake", "options": options, "prompts": [FAKE_PROGRAM.say("CODEWORD-one"), script]})
    state = State.loads([app.until("state ") for _ in range(2)][-1])
    app.until("event Text", app.lines.count("event Text") + 1)
    os.kill(app.process.pid, signal.SIGSTOP)
    try:
        session = hostler.agent_resume(state, **options)
        stream = session.stream(FAKE_PROGRAM.recall())  # waits behind that turn
        epochs = (record.event.epoch for record in session.follow(0) if isinstance(record.event, Started))
        assert next(epoch for epoch in epochs if epoch > 1) == 2
        session.detach()
        stream.close()
        os.kill(app.process.pid, signal.SIGCONT)
        assert json.loads(app.until("result", 2)) == {"text": "a" + "b" * 25, "stop": "done"}
    finally:
        os.kill(app.process.pid, signal.SIGCONT)
        app.kill()
    with hostler.agent_resume(state, **options) as session:
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text


def test_an_orphaned_turn_ends_by_itself(models: ModelServer, state_dir: Path) -> None:
    """Invariant 5: at most orphan_ttl, then nothing is left, by marker."""
    job = {
        "harness": "fake",
        "options": FAKE_PROGRAM.options(models),
        "prompts": ['[{"text": "a"}, {"spawn": "setsid", "seconds": 60}, {"hang": true}]'],
    }
    app = App(job, HOSTLER_ORPHAN_TTL="1")
    app.until("event Text")
    app.kill()
    assert processes_of(state_dir)
    assert wait_until(lambda: not processes_of(state_dir) and not keepers_of(state_dir), 8)


def test_a_parked_program_is_let_go_after_its_time(
    models: ModelServer, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTLER_PARK_TTL", "0.7")
    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE_PROGRAM.harness, **options) as session:
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        state = session.detach()
    assert processes_of(state_dir)
    assert wait_until(lambda: not processes_of(state_dir), 8)
    with hostler.agent_resume(state, **options) as session:
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text
        assert session.resumed == "native"


def test_cancel_does_not_wait_for_a_frozen_holder(models: ModelServer, state_dir: Path) -> None:
    """Invariant 13: after 15 s of silence the turn is ours to end."""
    options = FAKE_PROGRAM.options(models)
    job = {"harness": "fake", "options": options, "prompts": ['[{"text": "a"}, {"hang": true}]']}
    app = App(job)
    app.until("event Text")
    state = State.loads(next(line[6:] for line in reversed(app.lines) if line.startswith("state ")))
    os.kill(app.process.pid, signal.SIGSTOP)
    try:
        with hostler.agent_resume(state, **options) as session:
            start = time.monotonic()
            session.cancel()
            assert time.monotonic() - start < 30
            last = session.run("after")
            outcomes = [r.event.result.stop_reason for r in journal(session, last.turn_id) if isinstance(r.event, Done)]
        assert outcomes == ["cancelled", "done"]
    finally:
        os.kill(app.process.pid, signal.SIGCONT)
        app.kill()
