"""Sessions under the app's own keys: their default context, their status, how many programs run at once."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import keepers_of, processes_of, wait_until
from tests.host.test_storm import journal
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler.harness import Accepted
from hostler.testing.model_server import ModelServer

FAKE = FAKE_PROGRAM.harness


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


@pytest.fixture
def harness(options: dict[str, Any], state_dir: Path, nothing_left: None) -> Iterator[hostler.HarnessProfile]:
    made = hostler.create_harness(host=hostler.local_host(state_dir), runtime=FAKE, **options)
    yield made
    for info in made.sessions.list():
        made.sessions.delete(info.id)


def contexts(harness: hostler.HarnessProfile, key: str, turns: int) -> list[Any]:
    return [r.event.extra_body for r in journal(harness, key, turns) if isinstance(r.event, Accepted)]


def app_of(state_dir: Path, options: dict[str, Any], code: str) -> list[str]:
    """The command of another app that runs ``code``."""
    app = (
        "import json, sys, hostler\n"
        "from hostler.testing.fake_runtime import FAKE\n"
        "host = hostler.local_host(sys.argv[1])\n"
        "harness = hostler.create_harness(host=host, runtime=FAKE, **json.loads(sys.argv[2]))\n"
    )
    return [sys.executable, "-c", app + code, str(state_dir), json.dumps(options)]


def elsewhere(state_dir: Path, options: dict[str, Any], code: str) -> str:
    """Run ``code`` in another app."""
    run = app_of(state_dir, options, code)
    return subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout


# ---- the default context --------------------------------------------------------------------------------------------


def test_a_sessions_context_is_that_of_turns_that_bring_none(harness: hostler.HarnessProfile) -> None:
    session = harness.sessions.get_or_create("chat", extra_body={"user": 7, "api_key": "planted"})
    session.run("a")
    hostler.generate_harness(harness=harness, prompt="b", session="chat")
    hostler.generate_harness(harness=harness, prompt="c", session="chat", extra_body={"user": 8})
    assert harness.sessions.get_or_create("chat").run("d").stop_reason == "done"
    default = {"user": 7, "api_key": "[masked]"}
    assert contexts(harness, "chat", 4) == [default, default, {"user": 8}, default]
    harness.sessions.get_or_create("other").run("x")
    assert contexts(harness, "other", 1) == [None]


def test_it_is_stored_and_can_be_replaced_without_a_new_program(
    harness: hostler.HarnessProfile, options: dict[str, Any], state_dir: Path
) -> None:
    elsewhere(state_dir, options, "harness.sessions.get_or_create('chat', extra_body=['first'])")
    session = harness.sessions.get_or_create("chat")
    session.run("a")
    (keeper,) = keepers_of(state_dir)
    harness.sessions.get_or_create("chat", extra_body=["second"])
    session.run("b")
    assert [k.pid for k in keepers_of(state_dir)] == [keeper.pid]
    assert contexts(harness, "chat", 2) == [["first"], ["second"]]


def test_an_approval_shows_it(options: dict[str, Any], state_dir: Path, nothing_left: None) -> None:
    seen: list[Any] = []
    harness = hostler.create_harness(
        host=hostler.local_host(state_dir),
        runtime=FAKE,
        permissions="ask",
        on_approval=lambda a: bool(seen.append(a.extra_body)) or True,
        **options,
    )
    session = harness.sessions.get_or_create("chat", extra_body={"user": 7})
    assert session.run(json.dumps([{"approve": "Shell"}])).stop_reason == "done"
    assert seen == [{"user": 7}]
    harness.sessions.delete("chat")


@pytest.mark.parametrize("bad", [object(), {1, 2}, b"x"])
def test_a_context_that_is_no_json_is_refused_before_a_session_is_made(
    harness: hostler.HarnessProfile, bad: Any
) -> None:
    with pytest.raises(TypeError, match="extra_body must be a JSON value"):
        harness.sessions.get_or_create("chat", extra_body=bad)
    assert harness.sessions.list() == ()


# ---- status ---------------------------------------------------------------------------------------------------------


def test_a_keyed_session_that_is_not_in_use_is_idle(
    harness: hostler.HarnessProfile, options: dict[str, Any], state_dir: Path
) -> None:
    """After a clean exit of its app, after close(), after stop(): its key always leads back to it."""
    elsewhere(state_dir, options, "hostler.generate_harness(harness=harness, prompt='a', session='exit')")
    with harness.sessions.get_or_create("closed") as session:
        session.run("a")
    stopped = harness.sessions.get_or_create("stopped")
    stopped.run("a")
    stopped.stop()
    assert {info.id: info.status for info in harness.sessions.list()} == dict.fromkeys(
        ("exit", "closed", "stopped"), "idle"
    )
    shown = subprocess.run(
        [sys.executable, "-m", "hostler.cli", "sessions", "--data-dir", str(state_dir)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    assert shown.count("idle") == 3
    assert hostler.generate_harness(harness=harness, prompt="b", session="closed").stop_reason == "done"
    with hostler.agent_session(FAKE, state_dir=str(state_dir), **options) as other:
        other.run("a")
    assert harness.sessions.status(other.key).status == "closed"  # no key of the app's leads to it


def test_keyed_sessions_that_nobody_uses_go_where_the_operator_says_so(
    harness: hostler.HarnessProfile, options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("old", "new"):
        elsewhere(state_dir, options, f"hostler.generate_harness(harness=harness, prompt='a', session={key!r})")
    with contextlib.closing(sqlite3.connect(state_dir / "store.db", timeout=10)) as database, database:
        database.execute("update sessions set updated = ? where key = 'old'", (time.time() - 8 * 86400,))
    look = "import time; harness.sessions.list(); time.sleep(0.5); print([i.id for i in harness.sessions.list()])"
    assert "old" in elsewhere(state_dir, options, look)
    monkeypatch.setenv("HOSTLER_RETENTION", str(7 * 86400))
    assert elsewhere(state_dir, options, look).strip() == "['new']"
    assert len(list((state_dir / "sessions").iterdir())) == 1


# ---- delete ---------------------------------------------------------------------------------------------------------


def test_a_session_is_deleted_in_the_middle_of_another_apps_turn(
    harness: hostler.HarnessProfile, options: dict[str, Any], state_dir: Path
) -> None:
    prompt = '[{"text": "begun"}, {"hang": true}]'
    code = (
        f"stream = hostler.stream_harness(harness=harness, session='chat', prompt={prompt!r})\n"
        "print(next(stream).delta, flush=True)\n"
        "print(stream.wait().stop_reason, flush=True)\n"
        "sys.stdin.read()\n"
    )
    app = subprocess.Popen(app_of(state_dir, options, code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with app:
        assert app.stdout is not None
        assert app.stdout.readline() == "begun\n"
        harness.sessions.delete("chat")
        assert harness.sessions.list() == ()
        assert not list((state_dir / "sessions").iterdir())
        assert wait_until(lambda: not processes_of(state_dir / "sessions"), 5)
        assert app.stdout.readline() == "cancelled\n"


# ---- max_concurrent -------------------------------------------------------------------------------------------------


def test_at_most_so_many_programs_at_once(options: dict[str, Any], state_dir: Path, nothing_left: None) -> None:
    harness = hostler.create_harness(host=hostler.local_host(state_dir, max_concurrent=2), runtime=FAKE, **options)
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            most[0] = max(most[0], len(keepers_of(state_dir)))

    prompt = json.dumps([{"text": "a"}, {"sleep": 0.2}])
    hostler.generate_harness(harness=harness, prompt=prompt, session="chat-0")
    watching = threading.Thread(target=look)
    watching.start()
    streams = [hostler.stream_harness(harness=harness, prompt=prompt, session=f"chat-{n}") for n in range(5)]
    assert [stream.wait().stop_reason for stream in streams] == ["done"] * 5
    over.set()
    watching.join()
    assert most == [2]
    more = hostler.create_harness(host=hostler.local_host(state_dir, max_concurrent=5), runtime=FAKE, **options)
    for n in range(4):
        hostler.generate_harness(harness=more, prompt="a", session=f"chat-{n}")
    assert len(keepers_of(state_dir)) > 2  # the number that was used last holds
    for info in harness.sessions.list():
        harness.sessions.delete(info.id)
    assert wait_until(lambda: not processes_of(state_dir), 5)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", True])
def test_a_number_of_programs_is_a_positive_whole_number(bad: Any) -> None:
    with pytest.raises(ValueError, match="max_concurrent"):
        hostler.local_host(max_concurrent=bad)
