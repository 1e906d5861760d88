"""The container engine of this machine: where its socket is, and what to do when it does not answer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...types.errors import SandboxError
from .bridge.engine import Engine, EngineError

VARIABLES = ("DOCKER_HOST", "CONTAINER_HOST")
_TIMEOUT = 60.0
_API = "1.44"  # what the SDK knows
_UNIX = "unix://"
_INSTALL = 'The package for it is missing: pip install "hostler[docker]".'


@dataclass(frozen=True, slots=True)
class Daemon:
    """An engine that answers. ``client`` is the SDK's; ``socket`` the path that it was reached at."""

    client: Any
    socket: str
    podman: bool

    def own(self) -> bool:
        """Whether it is this user's own, in which root is no more than this user. (To ask it takes Podman a second.)"""
        return os.geteuid() != 0 and os.stat(self.socket).st_uid == os.geteuid()


def address() -> str:
    """The path of the engine's socket: DOCKER_HOST, else CONTAINER_HOST, else the first of the usual ones that is there.

    Raises SandboxError when there is none, or none on this machine."""
    for name in VARIABLES:
        if given := os.environ.get(name):
            if not given.startswith(_UNIX):
                raise SandboxError(
                    f"{name} is {given!r}. hostler shows folders of this machine to the container, so the engine must be "
                    "one of this machine, at a socket in its file system: unix:///run/docker.sock, for example."
                )
            return given.removeprefix(_UNIX)
    places = _usual()
    for path in places:
        if os.path.exists(path):
            return path
    raise SandboxError(
        f"There is no container engine here: no socket at {', '.join(places)}. Start Docker (systemctl start docker) or "
        "Podman's service (systemctl --user start podman.socket), or set DOCKER_HOST."
    )


def _usual() -> list[str]:
    own = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    home = os.path.expanduser("~")
    docker = ["/var/run/docker.sock", f"{own}/docker.sock", f"{home}/.docker/run/docker.sock"]
    desktop = [f"{home}/.docker/desktop/docker.sock"]
    return [*docker, *desktop, f"{own}/podman/podman.sock", "/run/podman/podman.sock"]


@contextlib.contextmanager
def connected(socket: str) -> Iterator[Daemon]:
    """The engine at this socket. Raises SandboxError that says what to do when it does not answer."""
    try:
        import docker
        import docker.utils
        import requests.exceptions
    except ImportError as error:
        raise SandboxError(f"sandbox.docker: {_INSTALL} ({error})") from None
    try:
        about = Engine(socket).headers()
    except EngineError as error:
        raise SandboxError(f"sandbox.docker: {_why(socket, error)}") from None
    # Not the SDK's own way to find out the version, which takes Podman a second and more.
    version = about.get("api-version", _API)
    if docker.utils.version_lt(_API, version):
        version = _API
    client = docker.DockerClient(base_url=_UNIX + socket, timeout=_TIMEOUT, version=version)
    try:
        yield Daemon(client, socket, "libpod-api-version" in about)
    except requests.exceptions.RequestException as error:
        raise SandboxError(f"sandbox.docker: {_why(socket, error)}") from None
    finally:
        client.close()


def _why(socket: str, error: BaseException) -> str:
    words = str(error)
    if not os.path.exists(socket):
        return f"the container engine is not running: there is no socket {socket}. Start it, or set DOCKER_HOST to where it is."
    if "Permission denied" in words or not os.access(socket, os.W_OK):
        return (
            f"this user may not use {socket}. Add it to the group of that socket (usermod -aG docker USER, and log in "
            "again), or use an engine of the user's own: rootless Docker, or Podman."
        )
    if "refused" in words:
        return f"the container engine is not running: nobody listens at {socket}. Start it, or set DOCKER_HOST."
    if "timed out" in words.lower():
        return f"the container engine at {socket} does not answer in time; see whether it is well (docker ps)."
    return f"the container engine at {socket} cannot be used: {words}."
