"""Scripts that end without closing anything, with threads and pools still at work: quickly, without a word, with nothing left."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hostler.testing.model_server import ModelServer
from tests.conftest import processes_of
from tests.sessions.programs import FAKE_PROGRAM

HEAD = """
import json, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import hostler
from hostler.testing.fake_runtime import FAKE
options = json.loads(sys.argv[1])
HANG = json.dumps([{"text": "a"}, {"hang": True}])
"""
ONE_SESSION = r"""
session = hostler.agent_session(FAKE, **options)
first = threading.Event()
def work(n):
    for event in session.stream(HANG):
        first.set()
    sys.stdout.write(event.result.stop_reason + "\n")
pool = ThreadPoolExecutor(2)
for n in range(5):
    pool.submit(work, n)
first.wait()
"""
BY_KEY = r"""
host = hostler.local_host(options.pop("state_dir"))
harness = hostler.create_harness(host=host, runtime=FAKE, **options)
def work(n):
    sys.stdout.write(hostler.generate_harness(harness=harness, session=str(n), prompt=HANG).stop_reason + "\n")
pool = ThreadPoolExecutor(4)
for n in range(8):
    pool.submit(work, n)
time.sleep(float(sys.argv[2]))
"""
THREADS = r"""
def work():
    with hostler.agent_session(FAKE, **options) as session:
        sys.stdout.write(session.run(json.dumps([{"text": "a"}, {"sleep": 0.3}])).stop_reason + "\n")
for _ in range(2):
    threading.Thread(target=work).start()
"""


def ended(code: str, models: ModelServer, state_dir: Path, *arguments: str) -> list[str]:
    """What the script prints; it must end soon, leave nothing and complain of nothing."""
    options: dict[str, Any] = {**FAKE_PROGRAM.options(models), "state_dir": str(state_dir)}
    run = [sys.executable, "-W", "error", "-c", HEAD + code, json.dumps(options), *arguments]
    start = time.monotonic()
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 25
    assert not processes_of(state_dir)
    if (state_dir / "store.db").exists():
        database = sqlite3.connect(state_dir / "store.db")
        assert database.execute("select count(*) from turns where status != 'done'").fetchone() == (0,)
        database.close()
    return done.stdout.split()


def test_turns_of_a_pool_are_cut_and_no_more_begin(models: ModelServer, state_dir: Path) -> None:
    assert ended(ONE_SESSION, models, state_dir) == ["cancelled", "cancelled"]


@pytest.mark.parametrize("delay", ["0", "0.3", "1"])
def test_whatever_a_pool_is_in_the_middle_of(delay: str, models: ModelServer, state_dir: Path) -> None:
    """Importing, opening the host, making sessions, starting programs, in the turn."""
    assert set(ended(BY_KEY, models, state_dir, delay)) <= {"cancelled"}


def test_plain_threads_come_to_their_end(models: ModelServer, state_dir: Path) -> None:
    """Also when the main one is over before they have called at all."""
    assert ended(THREADS, models, state_dir) == ["done", "done"]
