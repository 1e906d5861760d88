"""Several handles of one session in one process: each leaves for itself."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import hostler
from hostler.testing.model_server import ModelServer
from tests.conftest import keepers_of, wait_until
from tests.sessions.programs import FAKE_PROGRAM as FAKE

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE.options(models)


@pytest.mark.parametrize("after", ["before it begins", "while it runs"])
def test_who_detaches_leaves_the_others_their_turns(after: str, options: dict[str, Any], state_dir: Any) -> None:
    """As two requests to one chat do that the same worker of a web app gets."""
    first = hostler.agent_session(FAKE.harness, **options)
    state = first.state()
    second = hostler.agent_resume(state, **options)
    stream = first.stream(json.dumps([{"sleep": 0.5}, {"text": "one"}]))
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(second.run, json.dumps([{"sleep": 1}, {"text": "two"}]))
        for _ in stream:
            pass
        if after == "while it runs":
            assert wait_until(lambda: second.status == "running" and stream.result is not None)
        state = first.detach()
        assert waits.result(timeout=60).text == "two"
    with pytest.raises(hostler.SessionClosed):
        first.run("x")
    second.detach()
    assert len(keepers_of(state_dir)) == 1
    with hostler.agent_resume(state, **options) as third:
        assert third.resumed == "attached"
        assert "You said: x" in third.run("x").text
