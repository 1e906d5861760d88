"""The second front door: sessions by the app's own key."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import processes_of, wait_until
from tests.sessions.programs import ALL, FAKE_PROGRAM, Program, ids

import hostler
from hostler.harness import Accepted, Done
from hostler.testing.model_server import ModelServer

FAKE = FAKE_PROGRAM.harness


def profile(tmp_path: Path, models: ModelServer, program: Program = FAKE_PROGRAM, **more: Any) -> Any:
    host = hostler.local_host(data_dir=tmp_path / ".hostler")
    return hostler.create_harness(host=host, runtime=program.harness, **program.options(models), **more)


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_the_same_key_finds_the_same_conversation(program: Program, models: ModelServer, tmp_path: Path) -> None:
    harness = profile(tmp_path, models, program)
    stream = hostler.stream_harness(
        harness=harness, messages=say(program.say("CODEWORD-one")), session="chat/1 é", extra_body={"user": 7}
    )
    assert isinstance(list(stream)[-1], Done)

    async def later() -> Any:
        return await hostler.agenerate_harness(harness=harness, prompt=program.recall(), session="chat/1 é")

    assert "CODEWORD-one" in asyncio.run(later()).text
    other = hostler.generate_harness(harness=harness, prompt=program.recall(), session="chat/2")
    assert "CODEWORD-one" not in other.text
    first = next(iter(harness.sessions.follow("chat/1 é", after=0)))
    assert isinstance(first.event, Accepted)
    assert first.event.extra_body == {"user": 7}
    infos = {info.id: info for info in harness.sessions.list()}
    assert set(infos) == {"chat/1 é", "chat/2"}
    assert infos["chat/1 é"].turns == 2
    assert infos["chat/1 é"].cost is not None
    for key in infos:
        harness.sessions.delete(key)
    assert harness.sessions.list() == ()
    assert not any((tmp_path / ".hostler" / "sessions").iterdir())
    assert wait_until(lambda: not processes_of(tmp_path), 5)


@pytest.mark.parametrize("key", ["a", "../../etc/passwd", "a/b\\c", "CON", "x" * 512, "日本語 \u2028", "A", ".", "-rf"])
def test_any_text_is_a_key_and_no_two_share_a_folder(key: str, models: ModelServer, tmp_path: Path) -> None:
    harness = profile(tmp_path, models)
    hostler.generate_harness(harness=harness, prompt="hello", session=key)
    hostler.generate_harness(harness=harness, prompt="hello", session=key.swapcase() + "2"[: 512 - len(key)] or "z")
    folders = list((tmp_path / ".hostler" / "sessions").iterdir())
    assert len(folders) == len({f.name.lower() for f in folders}) == 2
    assert (tmp_path / ".hostler" / ".gitignore").read_text() == "*\n"
    assert harness.sessions.status(key).turns == 1
    for info in harness.sessions.list():
        harness.sessions.delete(info.id)


@pytest.mark.parametrize("key", ["", "x" * 513, "a\0b", "\ud800", 7])
def test_what_is_no_key_is_refused(key: Any, models: ModelServer, tmp_path: Path) -> None:
    harness = profile(tmp_path, models)
    with pytest.raises((ValueError, TypeError), match="key"):
        hostler.generate_harness(harness=harness, prompt="hello", session=key)


def test_a_run_id_runs_once(models: ModelServer, tmp_path: Path) -> None:
    harness = profile(tmp_path, models)
    prompt = json.dumps([{"shell": "echo x >> log; sleep 0.3"}, {"text": "once"}])
    results: list[Any] = []

    def call() -> None:
        results.append(hostler.generate_harness(harness=harness, prompt=prompt, session="k", run_id="r-1"))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    call()  # after it is done: the recorded outcome
    assert len({r.turn_id for r in results}) == 1
    assert [r.text for r in results] == ["once"] * 5
    session = harness.sessions.get("k")
    assert (Path(session.workdir) / "log").read_text() == "x\n"
    with pytest.raises(hostler.OptionsMismatch, match="run_id"):
        hostler.generate_harness(harness=harness, prompt="other", session="k", run_id="r-1")
    harness.sessions.delete("k")


def test_waiting_turns_are_listed_and_cancelled(models: ModelServer, tmp_path: Path) -> None:
    harness = profile(tmp_path, models)
    running = hostler.stream_harness(harness=harness, prompt='[{"text": "a"}, {"sleep": 2}]', session="k")
    next(running)
    waiting = [hostler.stream_harness(harness=harness, prompt=f"w{n}", session="k") for n in range(2)]
    assert wait_until(lambda: len(harness.sessions.status("k").waiting) == 2, 5)
    first, _ = harness.sessions.status("k").waiting
    asked = len(models.requests)
    harness.sessions.cancel("k", first)
    assert running.wait().stop_reason == "done"
    outcomes = {stream.wait().turn_id: stream.result.stop_reason for stream in waiting}
    assert outcomes.pop(first) == "cancelled"
    assert list(outcomes.values()) == ["done"]
    assert len(models.requests) == asked
    harness.sessions.delete("k")


def test_bad_input_names_itself(models: ModelServer, tmp_path: Path) -> None:
    harness = profile(tmp_path, models)
    for call in ({}, {"prompt": "a", "messages": say("b")}):
        with pytest.raises(ValueError, match="either"):
            hostler.generate_harness(harness=harness, **call)
    with pytest.raises(TypeError, match="extra_body"):
        hostler.generate_harness(harness=harness, prompt="a", session="k", extra_body=object())
    with pytest.raises(hostler.SessionLost, match="no session"):
        harness.sessions.get("nobody")
    with pytest.raises(TypeError, match="state_dir"):
        profile(tmp_path, models, state_dir="x")
    other = hostler.create_harness(
        host=harness.host, runtime=hostler.Harness.CODEX, model="gpt-5", api_base=models.url, api_key="planted-key-123"
    )
    hostler.generate_harness(harness=harness, prompt="a", session="k")
    with pytest.raises(hostler.StateIncompatible, match="fake"):
        hostler.generate_harness(harness=other, prompt="a", session="k")
    harness.sessions.delete("k")


def test_a_call_without_a_key_leaves_no_program(models: ModelServer, tmp_path: Path) -> None:
    harness = profile(tmp_path, models)
    assert hostler.generate_harness(harness=harness, messages=say("hello")).stop_reason == "done"
    assert wait_until(lambda: not processes_of(tmp_path), 5)


def test_a_worker_that_serves_many_keys_keeps_few_sessions_in_hand(
    models: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTLER_MAX_RUNTIMES", "2")
    harness = profile(tmp_path, models)

    async def in_hand() -> int:
        return len((await harness.host.open()).sessions)

    for n in range(6):
        hostler.generate_harness(harness=harness, prompt=f"CODEWORD-{n}", session=f"chat-{n}")
        hostler.generate_harness(harness=harness, prompt="once")
    from hostler import portal

    assert wait_until(lambda: portal.run(in_hand()) <= 2, 5)
    recall = json.dumps([{"say": "memory"}])
    for n in range(6):
        assert f"CODEWORD-{n}" in hostler.generate_harness(harness=harness, prompt=recall, session=f"chat-{n}").text
        harness.sessions.delete(f"chat-{n}")
