"""Nothing of the escape suite gets out of a container: of Docker, Podman and gVisor, by the fake program and a real one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tests.containers.daemons import Engine
from tests.containers.images import AGENTS, FAKE_PROGRAM
from tests.sandboxes.test_escapes import as_ordinary, escaped, home
from tests.sessions.programs import CLAUDE, CODEX, OPENCODE, Program

from hostler import sandbox
from hostler.testing import escape_image, escapes
from hostler.testing.escapes import ATTEMPTS, Agent, Outcome, attempts

__all__ = ["home"]  # a fixture
pytestmark = pytest.mark.timeout(300)
FAKE_AGENT = Agent(options={"program": ["python3", "-I", "-S", "-E", FAKE_PROGRAM]}, python="python3")
# A kernel of its own, which is nobody else's; and on this machine it can hold no limits.
GVISOR = {
    "ptrace": "by its own kernel",
    "user namespaces": "by its own kernel",
    "devices": "by its own kernel",
    "fork bomb": "no limits here",
    "memory bomb": "no limits here",
}


def test_nothing_gets_out_of_a_container(engine: Engine) -> None:
    """As `hostler doctor --selftest` does it, in an image that holds nothing."""
    with escape_image.made() as found:
        assert found is not None
        name, image, mounts = found
        outcomes = attempts(escapes.container(mounts, image))
    assert name == engine.name
    assert list(outcomes) == list(ATTEMPTS)
    assert escaped(outcomes) == {}
    assert {attempt for attempt, outcome in outcomes.items() if outcome.words} <= {"disk fill"}
    with engine.client() as client:
        assert not client.images.list(name=image)


def test_nothing_gets_out_of_a_container_with_a_name(docker_engine: Engine, container_name: str) -> None:
    """Sessions come and go in it: it sees the folders of all of them, which are one user's."""
    limits = sandbox.Limits(escapes.MEMORY, escapes.PROCESSES)
    kind = escapes.container({}, AGENTS)
    box = sandbox.docker(AGENTS, name=container_name, limits=limits)
    assert escaped(attempts(dataclasses.replace(kind, make=box), FAKE_AGENT)) == {}


def test_nothing_gets_out_of_gvisor(docker_engine: Engine, gvisor: str) -> None:
    kind = escapes.container({}, AGENTS, runtime=gvisor)
    kind = dataclasses.replace(kind, concedes={**kind.concedes, **GVISOR})
    outcomes = attempts(kind, FAKE_AGENT)
    assert list(outcomes) == list(ATTEMPTS)
    assert escaped(outcomes) == {}


@pytest.mark.real
@pytest.mark.parametrize(
    "program", [CLAUDE, pytest.param(CODEX, marks=pytest.mark.soak), pytest.param(OPENCODE, marks=pytest.mark.soak)]
)
def test_no_real_program_gets_out(docker_engine: Engine, program: Program) -> None:
    agent = Agent(program.harness, program.model, program.shell, "python3")
    assert escaped(attempts(escapes.container({}, AGENTS), agent)) == {}


@pytest.mark.real
@pytest.mark.soak
@pytest.mark.parametrize("program", [CLAUDE, CODEX, OPENCODE])
def test_no_real_program_gets_out_of_podmans(podman_engine: Engine, program: Program) -> None:
    agent = Agent(program.harness, program.model, program.shell, "python3")
    assert escaped(attempts(escapes.container({}, AGENTS), agent)) == {}


CODE = f"""
import dataclasses, json
from hostler.testing import escapes
agent = escapes.Agent(options={{"program": ["python3", "-I", "-S", "-E", {FAKE_PROGRAM!r}]}}, python="python3")
outcomes = escapes.attempts(escapes.container({{}}, {AGENTS!r}), agent)
print(json.dumps({{name: dataclasses.astuple(o) for name, o in outcomes.items()}}))
"""


def test_nothing_gets_out_of_an_ordinary_users_container(docker_engine: Engine, home: Path) -> None:
    """Who may use the engine, and is not root here or there."""
    said = as_ordinary(CODE, home, DOCKER_HOST=docker_engine.url)
    found = {name: Outcome(*words) for name, words in json.loads(said).items()}
    assert list(found) == list(ATTEMPTS)
    assert escaped(found) == {}
