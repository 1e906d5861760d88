"""Tries to get out of each sandbox of this machine, with an agent inside that does its best: `selftest`."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hostler

from .. import keeper, sandbox
from ..sandboxes import probe
from ..types.errors import CapabilityUnsupported
from ..workspace import SessionDirs
from . import escape_attempts, escape_image
from .escape_attempts import ATTEMPTS
from .fake_runtime import FAKE
from .model_server import ModelServer

MEMORY, PROCESSES = 1 << 30, 300  # what the agent may use; it tries for more
_FAKE: Any = FAKE
_MODEL = "claude-sonnet-4-5"
# What the root of a container may do in it: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID.
CONTAINER_ROOT = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7
_HOST_FILES = ("/etc/shadow", "/root/.ssh", "/etc/ssl/private", "/etc/sudoers", "/boot", "/sys")
_SHARED = 300 << 20  # more than the sandbox's shared memory holds


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether one attempt got out of the sandbox, and what it said; words of one that did not say what is not kept back."""

    escaped: bool
    words: str


@dataclass(frozen=True, slots=True)
class Agent:
    """Who makes the attempts. ``shell`` gives the prompt that has it run a command, ``python`` is its interpreter."""

    harness: Any = _FAKE
    model: str = _MODEL
    shell: Callable[[str], str] = lambda command: json.dumps([{"shell": command}])
    python: str = '"$FAKE_PYTHON"'
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    """A sandbox that is tried. ``make`` gives it for a Workspace. One with a root of its ``own_root`` holds what it shows of
    system files itself; ``capabilities`` are those that it gives root; ``concedes`` says what is no way out of it, or is
    not kept back by it, by attempt."""

    make: Any
    own_root: bool = False
    capabilities: int = 0
    concedes: Mapping[str, str] = field(default_factory=dict)


def kinds() -> dict[str, Kind]:
    """The sandboxes of this machine, each with the limits that can be held here."""
    found = {"local": Kind(sandbox.local)}
    if probe.missing() is None:
        found["bubblewrap"] = Kind(bounded)
    return found


_FREE = {"disk fill": "its own layer is as large as the engine's disk"}


def container(mounts: Mapping[str, Any], image: str, **more: Any) -> Kind:
    """A container with limits, of an image in which the agent and its interpreter are, or are by these mounts."""

    def make(workspace: Any) -> Any:
        limits = sandbox.Limits(MEMORY, PROCESSES)
        return sandbox.docker(image, mounts={**workspace.mounts, **mounts}, limits=limits, **more)

    return Kind(make, own_root=True, capabilities=CONTAINER_ROOT, concedes=_FREE)


def bounded(workspace: Any) -> sandbox.Bubblewrap:
    """A bubblewrap sandbox with those of the limits that this machine can hold."""
    made: sandbox.Bubblewrap = sandbox.bubblewrap(workspace)
    for limits in (sandbox.Limits(processes=PROCESSES), sandbox.Limits(MEMORY, PROCESSES)):
        with contextlib.suppress(CapabilityUnsupported):
            made = sandbox.bubblewrap(workspace, limits=limits)
    return made


def selftest() -> dict[str, dict[str, Outcome]]:
    """Outcomes by sandbox and attempt."""
    outcomes = {name: attempts(kind) for name, kind in kinds().items()}
    with escape_image.made() as found:
        if found is not None:
            engine, image, mounts = found
            outcomes[engine] = attempts(container(mounts, image))
    return outcomes


def attempts(kind: Kind, agent: Agent | None = None) -> dict[str, Outcome]:
    """What an agent reaches from inside of a sandbox. Starts a session of its own, and removes all that it made."""
    agent = agent or Agent()
    key = f"planted-{secrets.token_hex(12)}"
    with tempfile.TemporaryDirectory(prefix="hostler-") as folder, ModelServer(key=key) as models:
        options: dict[str, Any] = {
            "model": agent.model,
            "api_base": models.url,
            "api_key": key,
            "state_dir": f"{folder}/state",
            "timeout": 300,
        }
        with (
            bait(Path(folder), key, models) as planted,
            hostler.agent_session(_FAKE, sandbox=sandbox.local, **{**options, "model": _MODEL}) as other,
            hostler.agent_session(agent.harness, sandbox=kind.make, options=agent.options, **options) as session,
        ):
            other.files.write("secret.txt", b"of another session")
            begun = session.run("Hello.")
            if begun.error is not None:
                raise hostler.HarnessError(f"The agent does not run in the sandbox: {begun.error.message}")
            planted["other_sessions"] = [f"{other.workdir}/secret.txt", f"{folder}/state/store.db"]
            planted["keeper_sockets"] = glob.glob(f"{keeper.runtime_dir()}/*.sock")
            launch = SessionDirs.of(f"{folder}/state", session.key).launch
            planted["launch"] = [launch, "/run/hostler/launch", "/run/hostler/given"]
            if kind.own_root:  # a container shows the machine's /sys, read-only
                del planted["host_files"]["/sys"]
            planted |= {"own_root": kind.own_root, "capabilities": kind.capabilities}
            session.files.write(".bait.json", json.dumps(planted).encode())
            session.files.write(".attempts.py", Path(escape_attempts.__file__).read_bytes())
            result = session.run(agent.shell(f"{agent.python} -I -S .attempts.py .bait.json .outcomes.json"))
            try:
                said: Mapping[str, Any] = json.loads(session.files.read(".outcomes.json"))
            except (OSError, ValueError):
                raise hostler.HarnessError(f"The attempts were not made: {result.error or result.text}") from None
            written = os.listdir(planted["outside"])
    outcomes = {name: Outcome(*said[name]) for name in ATTEMPTS}
    if written:  # seen from outside
        outcomes["writes outside"] = Outcome(True, outcomes["writes outside"].words)
    return {
        name: Outcome(False, kind.concedes[name]) if outcome.escaped and name in kind.concedes else outcome
        for name, outcome in outcomes.items()
    }


@contextlib.contextmanager
def bait(folder: Path, key: str, models: ModelServer) -> Iterator[dict[str, Any]]:
    """What an agent should not find. What would be found in the bait's own file is written backwards there."""
    secret, mark, abstract = (f"{name}-{secrets.token_hex(12)}" for name in ("secret", "process", "abstract"))
    outside = folder / "outside"
    outside.mkdir()
    (outside.parent / "secret.txt").write_text(secret)
    idle = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()", mark]
    with (
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as nameless,
        subprocess.Popen(idle, stdin=subprocess.PIPE, env={"SECRET": secret, "KEY": key}) as process,
    ):
        named.bind(f"{folder}/socket")
        named.listen()
        nameless.bind("\0" + abstract)
        nameless.listen()
        try:
            yield {
                "secret_file": f"{folder}/secret.txt",
                "host_files": {path: escape_attempts.seen(path) for path in _HOST_FILES},
                "outside": str(outside),
                "secret": secret[::-1],
                "process": mark[::-1],
                "key": key[::-1],
                "ports": [port.getsockname()[1], int(models.url.rpartition(":")[2])],
                "socket": f"{folder}/socket",
                "abstract": abstract,
                "processes": PROCESSES + 100,
                "memory": MEMORY + (MEMORY >> 2),
                "disk": _SHARED,
            }
        finally:
            process.kill()
