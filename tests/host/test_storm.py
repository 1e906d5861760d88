"""Many processes on one data dir that are killed again and again: one turn at a time, in order, each with one outcome."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import processes_of, wait_until
from tests.sessions.programs import CLAUDE, FAKE_PROGRAM, Program, ids

import hostler
from hostler.harness import Accepted, Done, Record, Started, ToolResult
from hostler.testing.model_server import ModelServer

APP = Path(__file__).with_name("storm_app.py")


class Caller:
    """One app and what it has said, over all of its lives."""

    def __init__(self, job: dict[str, Any], at: Path) -> None:
        self.job = job
        self.at = at
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.lives += 1
        path = self.at / f"{self.job['caller']}.{self.lives}"
        with path.open("w") as out, path.with_suffix(f".{self.lives}.err").open("w") as err:
            self.process = subprocess.Popen([sys.executable, str(APP), json.dumps(self.job)], stdout=out, stderr=err)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def outcomes(self) -> list[dict[str, Any]]:
        """What each life was told, whole lines only."""
        found = []
        for life in range(1, self.lives + 1):
            lines = (self.at / f"{self.job['caller']}.{life}").read_text().splitlines(keepends=True)
            found += [
                json.loads(x.removeprefix("outcome ")) for x in lines if x.startswith("outcome ") and x[-1] == "\n"
            ]
        return found

    def errors(self) -> str:
        return "".join(path.read_text()[-2000:] for path in sorted(self.at.glob(f"{self.job['caller']}.*.err")))


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """After the test no program of this data dir may run."""
    path = tmp_path / "state"
    yield path
    # A program whose app died while it started it is given up after 10 s.
    assert wait_until(lambda: not processes_of(path), 20), [p.cmdline() for p in processes_of(path)]


def command(label: str) -> str:
    """Works alone in the session's workspace or fails: a folder is its lock."""
    return f"mkdir lock || exit 7; echo {label} >> log; perl -e 'select(undef,undef,undef,0.03)'; rmdir lock"


def journal(harness: Any, key: str, turns: int) -> list[Record]:
    records: list[Record] = []
    for record in harness.sessions.follow(key, 0):
        records.append(record)
        turns -= isinstance(record.event, Done)
        if not turns:
            return records
    raise AssertionError("the journal ended")


SMALL = pytest.param(FAKE_PROGRAM, 4, 8, 4, 4)
FULL = pytest.param(FAKE_PROGRAM, 8, 50, 10, 60, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])
REAL = pytest.param(CLAUDE, 3, 6, 2, 3, marks=[pytest.mark.soak, pytest.mark.real, pytest.mark.timeout(600)])


@pytest.mark.parametrize(("program", "callers", "turns", "sessions", "kills"), [SMALL, FULL, REAL], ids=ids)
def test_callers_that_are_killed(
    program: Program,
    callers: int,
    turns: int,
    sessions: int,
    kills: int,
    models: ModelServer,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOSTLER_MAX_PARKED", str(sessions))
    rng = random.Random(f"{program.name}-{callers}-{turns}")
    keys = [f"chat-{n}" for n in range(sessions)]
    options = program.options(models)
    expected: dict[str, Counter[str]] = {key: Counter() for key in keys}
    apps = []
    for caller in range(callers):
        steps = []
        for n in range(turns):
            key, label = rng.choice(keys), f"c{caller}-{n:02d}"
            expected[key][label] += 1
            steps.append({"key": key, "label": label, "prompt": program.shell(command(label), label)})
        job = {
            "harness": program.name,
            "data_dir": str(data_dir),
            "options": options,
            "caller": f"c{caller}",
            "turns": steps,
        }
        apps.append(Caller(job, tmp_path))
    deadline = time.monotonic() + (100 if turns == 8 else 900)
    try:
        while running := [app for app in apps if app.process.poll() is None]:
            assert time.monotonic() < deadline, [app.errors() for app in running]
            if kills:
                time.sleep(rng.uniform(0.2, 1.2))
                victim = rng.choice(running)
                victim.kill()
                victim.start()
                kills -= 1
            else:
                time.sleep(0.05)
        assert not kills, "the storm was over before its kills"
        for app in apps:
            assert app.process.returncode == 0, app.errors()
    finally:
        for app in apps:
            app.kill()

    told = {outcome["label"]: outcome for app in apps for outcome in app.outcomes()}
    assert sorted(told) == sorted(label for labels in expected.values() for label in labels)
    for app in apps:
        for outcome in app.outcomes():  # each life is told the same
            assert outcome == told[outcome["label"]]
    assert [o for o in told.values() if o["stop"] != "done"] == [], "not done"

    harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=program.harness, **options)
    for key in (key for key in keys if expected[key]):
        records = journal(harness, key, sum(expected[key].values()))
        check_alone_and_once(records)
        order = [r.event.extra_body["label"] for r in records if isinstance(r.event, Accepted)]
        assert Counter(order) == expected[key]
        for caller in range(callers):
            mine = [label for label in order if label.startswith(f"c{caller}-")]
            assert mine == sorted(mine)  # a caller's own order
        assert (
            Path(harness.sessions.status(key).workdir, "log").read_text().split() == order
        )  # served as accepted, no tool ran twice
        assert not [r for r in records if isinstance(r.event, ToolResult) and r.event.is_error]


def check_alone_and_once(records: list[Record]) -> None:
    """Numbers without a gap, one Done a turn and nothing behind it, and no turn inside another."""
    assert [r.seq for r in records] == list(range(1, len(records) + 1))
    running: str | None = None
    over: set[str | None] = set()
    for record in records:
        assert record.turn not in over, record
        if isinstance(record.event, Started):
            assert running in (None, record.turn), (running, record)
            running = record.turn
        elif isinstance(record.event, Done):
            assert running in (None, record.turn)
            running = None
            over.add(record.turn)
    assert running is None
    assert over == {r.turn for r in records if r.turn is not None}


@pytest.mark.parametrize("seed", range(3))
def test_one_caller_with_many_calls_at_once_is_served_in_its_order(
    seed: int, models: ModelServer, data_dir: Path
) -> None:
    """Also the first calls of all, which make the session."""
    options = FAKE_PROGRAM.options(models)
    harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE_PROGRAM.harness, **options)
    streams = [
        hostler.stream_harness(harness=harness, prompt=f"word {n}", session="chat", extra_body={"label": n})
        for n in range(10)
    ]
    results = [stream.wait() for stream in streams]
    records = journal(harness, "chat", len(streams))
    check_alone_and_once(records)
    dones = [r.event.result.text for r in records if isinstance(r.event, Done)]
    assert dones == [result.text for result in results] == [f"You said: word {n}" for n in range(10)]
    harness.sessions.delete("chat")
