"""Container engines and Redis for tests: ask for `docker_engine`, `podman_engine`, `engine` (one after the other) or `redis_url`."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import redis

from . import daemons
from .daemons import Engine

_READY = 60.0


@pytest.fixture(scope="session")
def _docker() -> Iterator[Engine]:
    yield from _shared("docker")


@pytest.fixture(scope="session")
def _podman() -> Iterator[Engine]:
    yield from _shared("podman")


def _shared(name: str) -> Iterator[Engine]:
    if (why := daemons.missing(name)) is not None:
        pytest.skip(why)
    with daemons.running(name) as engine:
        yield engine


@pytest.fixture
def docker_engine(_docker: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A real dockerd with the test images, named in the environment as its users do."""
    return _named(_docker, monkeypatch)


@pytest.fixture
def podman_engine(_podman: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Podman's service with the test images, named in the environment as Docker's users do."""
    return _named(_podman, monkeypatch)


@pytest.fixture(params=daemons.ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each of them in turn."""
    found: Engine = request.getfixturevalue(f"{request.param}_engine")
    return found


def _named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    for name in ("CONTAINER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    return engine


@pytest.fixture
def gvisor(docker_engine: Engine) -> str:
    """The name of dockerd's runtime that gives each container a kernel of its own."""
    if daemons.GVISOR not in docker_engine.runtimes:
        pytest.skip("gVisor's runsc is not installed (make containers)")
    return daemons.GVISOR


@pytest.fixture
def container_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name that no other test has; containers whose name begins with it are removed in the end."""
    name = f"test-{secrets.token_hex(6)}"
    used = [n for n in ("_docker", "_podman") if n in request.fixturenames]
    engines = [request.getfixturevalue(n) for n in used]
    if "engine" in request.fixturenames:
        engines.append(request.getfixturevalue("engine"))
    yield name
    for engine in engines:
        with engine.client() as client:
            for container in client.containers.list(all=True, filters={"name": name}, ignore_removed=True):
                with contextlib.suppress(docker.errors.APIError):
                    container.remove(force=True, v=True)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real Redis, on a socket of its own and without a file."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (make containers)")
    with tempfile.TemporaryDirectory(prefix="hostler-redis-") as folder:
        socket = f"{folder}/redis.sock"
        argv = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                _wait_for(socket, process)
                yield f"unix://{socket}"
            finally:
                process.terminate()


def _wait_for(socket: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _READY
    while time.monotonic() < end and process.poll() is None:
        if Path(socket).exists():
            with contextlib.suppress(redis.ConnectionError), redis.Redis(unix_socket_path=socket) as client:
                client.ping()
                return
        time.sleep(0.02)
    raise TimeoutError("Redis does not answer.")
