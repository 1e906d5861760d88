"""A store that fails at one write and works again: what was given up is served again, and nobody waits for ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler.harness import StoreError
from hostler.host import implicit_host
from hostler.store import inbox, queries
from hostler.testing.model_server import ModelServer

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness
SAY = json.dumps([{"text": "said"}])


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


@pytest.fixture
def fail_once(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the next run of these statements fail."""

    def arrange(module: Any, *names: str) -> None:
        for name in names:
            works = getattr(module, name)

            def fail(*given: Any, name: str = name, works: Any = works, **more: Any) -> Any:
                monkeypatch.setattr(module, name, works)
                raise StoreError(f"The store failed: {name}.")

            monkeypatch.setattr(module, name, fail)

    return arrange


def soon(work: Callable[..., Any], *given: Any) -> Any:
    """What it gives; a call that waits for ever is an error here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *given).result(timeout=60)


def test_a_lease_that_could_not_be_freed_is_free_later(options: dict[str, Any], fail_once: Any) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        session.run(SAY)
        fail_once(queries, "release")
        with pytest.raises(StoreError):
            session.snapshot()
        assert soon(session.run, SAY).text == "said"


def test_what_was_given_up_is_not_taken_from_a_later_turn(options: dict[str, Any], fail_once: Any) -> None:
    session = hostler.agent_session(FAKE, **options)
    session.run(SAY)
    state = session.state()
    fail_once(inbox, "claim_idle", "disown")
    with pytest.raises(StoreError):
        session.close()
    with hostler.agent_resume(state, **options) as again:
        # Over a heartbeat, with which the rest is given up.
        assert soon(again.run, json.dumps([{"sleep": 4}, {"text": "later"}])).text == "later"


def test_a_detach_that_failed_can_be_called_again(options: dict[str, Any], fail_once: Any) -> None:
    session = hostler.agent_session(FAKE, **options)
    stream = session.stream(json.dumps([{"text": "a"}, {"sleep": 1}, {"text": "b"}]))
    next(stream)
    fail_once(inbox, "disown")
    with pytest.raises(StoreError):
        session.detach()
    state = soon(session.detach)
    stream.close()
    with hostler.agent_resume(state, **options) as again:
        assert soon(again.run, SAY).text == "said"


def test_a_look_at_the_inbox_that_fails_is_taken_again(options: dict[str, Any], fail_once: Any) -> None:
    with hostler.agent_session(FAKE, **options) as session:
        slow = session.stream(json.dumps([{"text": "a"}, {"sleep": 1}, {"text": "b"}]))
        next(slow)
        waiting = session.stream(SAY)
        fail_once(inbox, "next_turn")
        assert soon(slow.wait).text == "ab"
        with pytest.raises(StoreError):
            soon(waiting.wait)
        assert soon(session.run, SAY).text == "said"


async def in_hand(state_dir: Any) -> int:
    return len((await implicit_host(str(state_dir))).sessions)


def test_a_call_that_is_refused_keeps_nothing_in_hand(options: dict[str, Any], state_dir: Any) -> None:
    harness = hostler.create_harness(host=hostler.local_host(data_dir=state_dir), runtime=FAKE, **options)
    with pytest.raises(TypeError):
        hostler.generate_harness(harness=harness, prompt=SAY, overrides={"max_turns": "many"})
    assert hostler.portal.run(in_hand(state_dir)) == 0
