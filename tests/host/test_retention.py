"""How long sessions stay that nobody comes back to."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import deep
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler.testing.model_server import ModelServer
from hostler.workspace import layout

FAKE = FAKE_PROGRAM.harness
DAY = 86400
# `hostler gc` finds what nobody owns on the whole machine: not two of these at once.
pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.xdist_group("gc")]


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


def age(state_dir: Path, days: float) -> None:
    database = sqlite3.connect(state_dir / "store.db", timeout=10)
    with database:
        database.execute("update sessions set updated = ?", (time.time() - days * DAY,))
    database.close()


def keys(state_dir: Path) -> set[str]:
    database = sqlite3.connect(state_dir / "store.db", timeout=10)
    try:
        return {key for (key,) in database.execute("select key from sessions")}
    finally:
        database.close()


def opened_elsewhere(state_dir: Path, seconds: float = 0.5) -> None:
    """Another app opens the store, and has time to look around."""
    code = f"""
import asyncio
from hostler import portal
from hostler.host import Host
async def work():
    host = await Host.open({str(state_dir)!r})
    await asyncio.sleep({seconds})
    await host.close()
portal.run(work())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def a_session_of_each_kind(options: dict[str, Any], state_dir: Path) -> tuple[str, str]:
    """The keys of a closed and of a stopped session; there are two without a key beside them."""
    host = hostler.local_host(data_dir=state_dir)
    harness = hostler.create_harness(host=host, runtime=FAKE, **options)
    assert hostler.agent(FAKE, "hello", **options).stop_reason == "done"
    assert hostler.generate_harness(harness=harness, prompt="hello").stop_reason == "done"
    with hostler.agent_session(FAKE, **options) as closed:
        closed.run("hello")
    stopped = hostler.agent_session(FAKE, **options)
    stopped.run("hello")
    return closed.key, stopped.stop().session


def test_those_without_a_key_go_after_a_day(options: dict[str, Any], state_dir: Path) -> None:
    kept = set(a_session_of_each_kind(options, state_dir))
    age(state_dir, 0.9)
    opened_elsewhere(state_dir)
    assert len(keys(state_dir)) == 4
    age(state_dir, 1.1)
    opened_elsewhere(state_dir)
    assert keys(state_dir) == kept
    assert len(list((state_dir / "sessions").iterdir())) == 2
    age(state_dir, -3)  # the clock was set back: nothing is old
    opened_elsewhere(state_dir)
    assert keys(state_dir) == kept


def test_closed_ones_go_where_the_operator_says_so(
    options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, stopped = a_session_of_each_kind(options, state_dir)
    monkeypatch.setenv("HOSTLER_RETENTION", str(7 * DAY))
    monkeypatch.setenv("HOSTLER_EPHEMERAL_TTL", str(30 * DAY))
    age(state_dir, 8)
    assert len(keys(state_dir)) == 4
    opened_elsewhere(state_dir)
    assert keys(state_dir) == {stopped}


def test_gc_names_what_it_would_remove(
    options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostler.agent(FAKE, "hello", **options)
    (key,) = keys(state_dir)
    age(state_dir, 2)

    def hostler_gc(*args: str) -> str:
        run = [sys.executable, "-m", "hostler.cli", "gc", *args]
        return subprocess.run(run, capture_output=True, text=True, timeout=30, check=True).stdout

    assert f"would remove: session {key}: made without a key, last used 2.0 days ago" in hostler_gc("--dry-run")
    assert key in keys(state_dir)
    assert f"removed: session {key}" in hostler_gc()
    assert keys(state_dir) == set()
    assert list((state_dir / "sessions").iterdir()) == []


def test_one_that_is_in_use_stays(options: dict[str, Any], state_dir: Path) -> None:
    """However old its row: a turn runs in it, waits in it, or its program lives."""
    stream = hostler.agent_stream(FAKE, '[{"text": "a"}, {"sleep": 1.5}]', **options)
    next(stream)
    age(state_dir, 9)
    opened_elsewhere(state_dir)
    assert len(keys(state_dir)) == 1
    assert stream.wait().stop_reason == "done"


@pytest.mark.parametrize("how", ["delete", "retention", "gc"])
def test_a_deep_tree_keeps_nothing(
    how: str, options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an agent has nested so deeply that Python cannot recurse through it goes like anything else."""
    harness = hostler.create_harness(host=hostler.local_host(data_dir=state_dir), runtime=FAKE, **options)
    for _ in range(2):
        with hostler.agent_session(FAKE, **options) as session:
            session.run("hello")
            deep(Path(session.workdir) / "deep", 1500)
    folders = state_dir / "sessions"
    if how == "retention":
        monkeypatch.setenv("HOSTLER_RETENTION", str(DAY))
        age(state_dir, 2)
        opened_elsewhere(state_dir, 4)
    else:
        with monkeypatch.context() as patch:
            if how == "gc":  # the app is killed before it comes to that
                patch.setattr(layout, "erase", lambda root: None)
            for info in harness.sessions.list():
                harness.sessions.delete(info.id)
        for left in folders.iterdir():
            os.utime(left, (1, 1))
            run = [sys.executable, "-m", "hostler.cli", "gc", "--data-dir", str(state_dir)]
            subprocess.run(run, check=True, timeout=30)
    assert keys(state_dir) == set()
    assert list(folders.iterdir()) == []
