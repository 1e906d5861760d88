"""Known faults of other agent runners with containers (cases I of the public list), each as it should be here."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.containers.daemons import Engine
from tests.containers.images import AGENTS, FAKE_PROGRAM, USER
from tests.sandboxes.test_escapes import as_ordinary, home
from tests.sessions.programs import CLAUDE
from tests.sessions.programs import FAKE_PROGRAM as FAKE_AGENT

import hostler
from hostler import SandboxError, sandbox
from hostler.sandboxes.docker.bridge import engine as engines_api
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.usefixtures("nothing_left")
IN_IMAGE = {"program": ["python3", "-I", "-S", "-E", FAKE_PROGRAM]}


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return {**FAKE_AGENT.options(models), "options": IN_IMAGE}


def shell(session: Any, command: str) -> str:
    result = session.run(json.dumps([{"shell": command}]))
    assert result.error is None, result.error
    return str(result.text)


@pytest.mark.real
@pytest.mark.parametrize("image", [AGENTS, USER])
@pytest.mark.parametrize("user", [None, "0"], ids=["the app's user", "root"])
def test_claude_code_has_full_permissions_in_every_image(
    image: str, user: str | None, docker_engine: Engine, container_name: str, models: ModelServer
) -> None:
    """I01: it refuses them to root, which most images run as."""
    box = sandbox.docker(image, name=container_name, user=user)
    with hostler.agent_session(CLAUDE.harness, sandbox=box, **CLAUDE.options(models)) as session:
        result = session.run(CLAUDE.shell("id -u > /workspace/who; echo x > /tmp/beside"))
        assert result.error is None
        assert session.files.read("who") == f"{user or os.geteuid()}\n".encode()


FIRST_USE = """
import json, sys, hostler
from hostler.testing.fake_runtime import FAKE
box = hostler.sandbox.docker(sys.argv[1], name=sys.argv[2])
with hostler.agent_session(FAKE, sandbox=box, **json.loads(sys.argv[3])) as session:
    print(session.run(json.dumps([{"shell": "cat /etc/hostname"}])).text)
"""


@pytest.mark.parametrize("engine", ["docker", pytest.param("podman", marks=pytest.mark.soak)], indirect=True)
def test_many_processes_that_need_it_at_once(engine: Engine, container_name: str, options: dict[str, Any]) -> None:
    """I04: the name is taken by whoever is first, and everybody works in the one container."""
    argv = [sys.executable, "-c", FIRST_USE, AGENTS, container_name, json.dumps(options)]
    apps = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [app.communicate(timeout=100) for app in apps]
    assert [app.returncode for app in apps] == [0, 0, 0], said
    names = {out for out, _ in said}
    assert len(names) == 1, said
    with engine.client() as client:
        (found,) = client.containers.list(all=True, filters={"name": container_name})
        assert found.id.startswith(names.pop().strip())


def test_a_program_that_never_speaks(
    docker_engine: Engine, container_name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: there is a limit for its silence, it is named, and nothing of it stays in the container."""
    monkeypatch.setenv("HOSTLER_START_TIMEOUT", "3")
    box = sandbox.docker(AGENTS, name=container_name)
    given = {**options, "options": {"program": ["/bin/sh", "-c", "sleep 1000"]}}
    begun = time.monotonic()
    with hostler.agent_session(FAKE, sandbox=box, **given) as session:
        try:
            said = str(session.run("x").error)
        except hostler.HarnessError as error:
            said = str(error)
    assert re.search("3(.0)? s|HOSTLER_START_TIMEOUT", said), said
    assert time.monotonic() - begun < 60
    with docker_engine.client() as client:
        assert "sleep 1000" not in json.dumps(client.api.top(container_name))


# ---- engines (I11) --------------------------------------------------------------------------------------------------


def fails(match: str, options: dict[str, Any]) -> None:
    with (
        pytest.raises(SandboxError, match=match),
        hostler.agent_session(FAKE, sandbox=sandbox.docker(AGENTS, name="never-made"), **options),
    ):
        pass


def test_an_engine_that_does_not_answer(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines_api, "_WAIT", 0.5)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/deaf.sock")
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(f"{tmp_path}/deaf.sock")
        deaf.listen()
        fails("deaf.sock does not answer in time", options)


def test_an_app_without_the_engines_package(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/any.sock")
    fails(r'pip install "hostler\[docker\]"', options)


WITHOUT_RIGHTS = """
import hostler
from hostler.testing.fake_runtime import FAKE
try:
    with hostler.agent_session(FAKE, sandbox=hostler.sandbox.docker("x", name="never-made"), model="m"):
        pass
except hostler.SandboxError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_a_user_who_may_not_use_the_engine(home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(f"{home}/roots.sock")
        closed.listen()
        os.chmod(f"{home}/roots.sock", 0o600)
        said = as_ordinary(WITHOUT_RIGHTS, home, DOCKER_HOST=f"unix://{home}/roots.sock")
    assert "this user may not use" in said
    assert "group" in said


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_long_silent_command(engine: Engine, container_name: str, options: dict[str, Any]) -> None:
    """I13: no limit of a client's own ends it."""
    box = sandbox.docker(AGENTS, name=container_name)
    with hostler.agent_session(FAKE, sandbox=box, **options) as session:
        assert shell(session, "sleep 100; echo woke") == "woke\n"
