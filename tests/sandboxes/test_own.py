"""A sandbox of the app's own, and whose a sandbox is: the session's that made it, or the caller's who passed it in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import keepers_of, wait_until
from tests.sessions.programs import FAKE_PROGRAM as FAKE

import hostler
from hostler import sandbox
from hostler.harness import OptionsMismatch
from hostler.testing.model_server import ModelServer
from hostler.types.sandbox import Enclosure, Folders, Job

pytestmark = pytest.mark.usefixtures("nothing_left")


class Own(sandbox.Sandbox):
    """The least that one needs."""

    confined = False

    def __init__(self, folder: Any, closed: list[str]) -> None:
        self.root = self.workdir = str(folder)
        self._local = sandbox.local(folder)
        self._closed = closed

    def environment(self, *, home: str, tmp: str) -> Mapping[str, str]:
        return self._local.environment(home=home, tmp=tmp)

    def which(self, name: str) -> str | None:
        return self._local.which(name)

    def enclose(self, job: Job) -> Enclosure:
        return self._local.enclose(job)

    def inside(self, folders: Folders) -> Folders:
        return folders

    def on(self, folder: str) -> Own:
        return Own(folder, self._closed)

    def close(self) -> None:
        self._closed.append(self.root)


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE.options(models)


@pytest.mark.parametrize("how", ["close", "stop"])
def test_one_that_a_factory_made_ends_with_its_session(how: str, options: dict[str, Any]) -> None:
    closed: list[str] = []

    def factory(workspace: Any) -> Own:
        return Own(workspace.root, closed)

    session = hostler.agent_session(FAKE.harness, sandbox=factory, **options)
    assert session.run("x").stop_reason == "done"
    state = session.detach()
    assert closed == []
    with pytest.raises(OptionsMismatch, match=r"of the app's own \(Own\); pass it again"):
        hostler.agent_resume(state, **options)
    session = hostler.agent_resume(state, sandbox=factory, **options)
    assert session.run("x").stop_reason == "done"
    getattr(session, how)()
    assert closed == [session.workdir]


def test_one_that_was_passed_in_is_its_callers(options: dict[str, Any], workspace: Path) -> None:
    closed: list[str] = []
    with hostler.agent_session(FAKE.harness, sandbox=Own(workspace, closed), **options) as session:
        assert session.run("x").stop_reason == "done"
    assert closed == []


def test_a_fork_makes_its_own(options: dict[str, Any], workspace: Path) -> None:
    closed: list[str] = []
    with hostler.agent_session(FAKE.harness, sandbox=Own(workspace, closed), **options) as session:
        session.run("x")
        fork = session.fork("other")
        assert fork.run("x").stop_reason == "done"
        fork.close()
    assert closed == [fork.workdir] != [str(workspace)]


class Stuck(Own):
    """One that takes a while to find out that it cannot be closed."""

    def close(self) -> None:
        super().close()
        time.sleep(0.5)
        raise RuntimeError("This sandbox cannot be closed.")


def test_one_that_cannot_be_closed_holds_nobody_up(
    options: dict[str, Any], state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[str] = []
    harness = hostler.create_harness(
        host=hostler.local_host(state_dir),
        runtime=FAKE.harness,
        sandbox=lambda workspace: Stuck(workspace.root, closed),
        **options,
    )
    stream = hostler.stream_harness(harness=harness, session="chat", prompt='[{"text": "a"}, {"sleep": 0.5}]')
    next(stream)
    harness.sessions.get("chat").close()  # behind the turn, which is another's
    stream.wait()
    assert wait_until(lambda: bool(closed))

    async def meanwhile() -> Any:
        return await asyncio.wait_for(hostler.agenerate_harness(harness=harness, session="chat", prompt="x"), 20)

    assert asyncio.run(meanwhile()).stop_reason == "done"
    assert "This sandbox cannot be closed." in caplog.text
    with pytest.raises(RuntimeError, match="cannot be closed"):  # who asks for it himself is told
        harness.sessions.get("chat").close()
    assert keepers_of(state_dir) == []
    assert harness.sessions.status("chat").status == "idle"
