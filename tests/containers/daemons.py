"""dockerd and Podman's service as the tests use them: started by whoever needs them first, ended by whoever needs them last.

They keep their images in a folder of this clone (`PLACE`), so that these are made once; everything else of them is in a
folder of its own below the system's temporary one, as sockets need a short path. They touch no daemon, bridge or firewall
rule that the machine has for itself, and there is no way from their containers to any network but the machine's own side.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

from . import images

_ROOT = Path(__file__).resolve().parents[2]
PLACE = Path(os.environ.get("HOSTLER_TEST_CONTAINERS") or _ROOT / ".containers").absolute()
_NUMBER = int(
    hashlib.sha256(str(PLACE).encode()).hexdigest()[:4], 16
)  # two clones on one machine have two of everything
RUN = Path(tempfile.gettempdir()) / f"hostler-test-{_NUMBER:04x}"
GROUP = 61234  # whose members may use the engines besides root
_BRIDGE, _ADDRESS = f"hostlert{_NUMBER:04x}", f"10.213.{_NUMBER % 256}.1/24"
_SECONDS = 60.0  # for anything that takes two on a quiet machine

ENGINES = ("docker", "podman")
_NEEDED = {"docker": ("dockerd", "containerd", "runc", "ip"), "podman": ("podman", "conmon", "runc")}
GVISOR = "runsc"


@dataclass(frozen=True)
class Engine:
    """A running engine. ``url`` is what DOCKER_HOST is set to, ``runtimes`` are those beside its default one."""

    name: str
    url: str
    runtimes: tuple[str, ...]

    @contextlib.contextmanager
    def client(self) -> Iterator[docker.DockerClient]:
        client = docker.DockerClient(base_url=self.url, timeout=_SECONDS * 5)
        try:
            yield client
        finally:
            client.close()


def missing(engine: str) -> str | None:
    """Why the engine cannot be started here; None when it can."""
    if os.geteuid():
        return f"only root can start {engine}"
    absent = [name for name in _NEEDED[engine] if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed (make containers)" if absent else None


@contextlib.contextmanager
def running(name: str) -> Iterator[Engine]:
    """The engine with the test images in it, shared with all processes that use it at the same time."""
    for folder in (PLACE, RUN):
        folder.mkdir(parents=True, exist_ok=True)
    os.chown(RUN, 0, GROUP)
    os.chmod(RUN, 0o750)
    engine = Engine(name, f"unix://{RUN}/{name}.sock", (GVISOR,) if name == "docker" and shutil.which("runsc") else ())
    with open(RUN / f"{name}.users", "w") as users:
        with _alone(name):
            fcntl.flock(users, fcntl.LOCK_SH)
            try:
                _start(engine)
                with engine.client() as client:
                    images.build(client)
            except BaseException:
                _end_if_unused(engine, users)
                raise
        try:
            yield engine
        finally:
            with _alone(name):
                _end_if_unused(engine, users)


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """No two processes start or end an engine at the same time."""
    with open(RUN / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _end_if_unused(engine: Engine, users: Any) -> None:
    fcntl.flock(users, fcntl.LOCK_UN)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    with contextlib.suppress(Exception), engine.client() as client:
        for container in client.containers.list(all=True, ignore_removed=True):
            with contextlib.suppress(docker.errors.APIError):
                container.remove(force=True, v=True)
    _end(engine.name)


# ---- processes --------------------------------------------------------------------------------------------------------


def _start(engine: Engine) -> None:
    if _answers(engine):
        return
    _end(engine.name)  # what was left by a test run that was killed
    argv, env = _dockerd() if engine.name == "docker" else _podman()
    log = str(RUN / f"{engine.name}.log")
    argv = ["env", "-C", str(RUN), *argv]  # some leave files where they are
    # Python's readline sets these two, and with them `top` would cut the commands of a container short.
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    pid = os.posix_spawnp(  # not a Popen, which wants to see the end of what it has started
        argv[0],
        argv,
        {**given, **env},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    (RUN / f"{engine.name}.started").write_text(str(pid))
    if not _until(lambda: _answers(engine) or not _lives(pid)) or not _answers(engine):
        raise RuntimeError(f"{engine.name} does not answer:\n{Path(log).read_text(errors='replace')[-3000:]}")
    os.chown(RUN / f"{engine.name}.sock", 0, GROUP)
    os.chmod(RUN / f"{engine.name}.sock", 0o660)


def _dockerd() -> tuple[list[str], dict[str, str]]:
    config: dict[str, Any] = {
        "data-root": str(PLACE / "docker"),
        "exec-root": str(RUN / "docker"),
        "pidfile": str(RUN / "docker.pid"),
        "hosts": [f"unix://{RUN}/docker.sock"],
        "bridge": _BRIDGE,
        "iptables": False,
        "ip-forward": False,
        "ip-masq": False,
        "userland-proxy": False,
    }
    if shutil.which("runsc"):
        config["runtimes"] = {GVISOR: {"path": str(_gvisor())}}
    file = RUN / "docker.json"
    file.write_text(json.dumps(config))
    subprocess.run(["ip", "link", "add", _BRIDGE, "type", "bridge"], capture_output=True, timeout=_SECONDS, check=False)
    for words in (["addr", "replace", _ADDRESS, "dev", _BRIDGE], ["link", "set", _BRIDGE, "up"]):
        subprocess.run(["ip", *words], capture_output=True, timeout=_SECONDS, check=True)
    return ["dockerd", "--config-file", str(file)], {}


def _gvisor() -> Path:
    """gVisor as it runs on a machine without KVM and with old control groups."""
    wrapper = RUN / "runsc"
    wrapper.write_text(
        '#!/bin/sh\nexec runsc --platform=ptrace --network=none --ignore-cgroups --fsgofer-host-uds=true "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


def _podman() -> tuple[list[str], dict[str, str]]:
    """Where nobody may raise a limit, and control groups are old and new at once, Podman's own defaults do not work."""
    containers, storage = RUN / "containers.conf", RUN / "storage.conf"
    containers.write_text(
        '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
        f'tmp_dir = "{RUN}/podman"\n'
        f'[network]\nnetwork_config_dir = "{PLACE}/podman-networks"\n'
    )
    storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{PLACE}/podman"\nrunroot = "{RUN}/podman-run"\n')
    argv = ["podman", "system", "service", "-t", "0", f"unix://{RUN}/podman.sock"]
    return argv, {"CONTAINERS_CONF": str(containers), "CONTAINERS_STORAGE_CONF": str(storage)}


def _answers(engine: Engine) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(_SECONDS)
            door.connect(engine.url.removeprefix("unix://"))
            door.sendall(b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return b" 200 " in door.recv(64)
    except OSError:
        return False


def _end(name: str) -> None:
    """End the engine that one of these processes has started, if it runs, and what belongs to it."""
    try:
        pid = int((RUN / f"{name}.started").read_text())
    except (OSError, ValueError):
        return
    if _lives(pid):
        os.kill(pid, signal.SIGTERM)
        if not _until(lambda: not _lives(pid)):
            os.kill(pid, signal.SIGKILL)
            _until(lambda: not _lives(pid))
    for file in (f"{name}.started", f"{name}.sock", f"{name}.pid"):
        (RUN / file).unlink(missing_ok=True)
    if name == "docker":
        subprocess.run(["ip", "link", "del", _BRIDGE], capture_output=True, timeout=_SECONDS, check=False)


def _lives(pid: int) -> bool:
    """Whether the engine that was started under this number still runs; the number may be another's by now."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        dead = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return False
    return str(RUN).encode() in line if line else not dead  # one that is just being started has no line yet


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def prepare() -> None:
    """Make the images of all engines that can be started here."""
    for name in ENGINES:
        begun = time.monotonic()
        if (why := missing(name)) is not None:
            print(f"{name}: {why}: its tests are skipped", file=sys.stderr)
            continue
        with running(name):
            print(f"{name}: test images ready after {time.monotonic() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    prepare()
