"""The container as a session's sandbox: what is mounted where, and how a program is started in it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...types.errors import CapabilityUnsupported, SandboxError
from ...types.events import Notice
from ...types.runtime import Permissions
from ...types.sandbox import Enclosure, Folders, Job, Sandbox
from .. import environment
from ..bubblewrap import INSIDE
from ..limits import Limits
from ..visible import below
from . import container, network, programs
from .container import OFFLINE, Bind, Found, Plan
from .daemon import Daemon, connected
from .look import Seen, look
from .place import AREAS, PRIVATE, READ_ONLY, RESULTS, Place
from .place import INSIDE as PLACES

BRIDGE = str(Path(__file__).parent / "bridge")
_STAYS = ("full", "ask")  # permissions under which network and files of the container are the caller's affair
_FOLDERS = ("workdir", "artifacts", "persistent", "skills", "home", "tmp", "launch")
_FIXED = ("skills", "launch")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the caller has said of the container."""

    image: str
    name: str
    workdir: str
    network: str
    user: str | None
    env: Mapping[str, str]
    limits: Limits
    labels: Mapping[str, str]
    mounts: tuple[Bind, ...]
    runtime: str | None
    life: float


class Docker(Sandbox):
    """A container of this machine's Docker or Podman. It is made, or found by its name, when a session begins in it.

    ``root`` is the folder of this machine that the agent sees as ``workdir``. With a ``place`` sessions come and go in it;
    without one it is a single session's, whose folders are mounted one by one.
    """

    confined = True

    def __init__(self, settings: Settings, address: str, root: str, place: Place | None) -> None:
        self.settings = settings
        self.root = root
        self.workdir = settings.workdir
        self.place = place
        self._address = address
        self._replaced = False

    def __repr__(self) -> str:
        return f"sandbox.docker({self.settings.image!r}, name={self.settings.name!r})"

    @property
    def name(self) -> str:
        """The container's."""
        return self.settings.name

    @property
    def recipe(self) -> Mapping[str, Any]:
        given = self.settings
        return {
            "kind": "docker",
            "image": given.image,
            "name": given.name,
            "workdir": given.workdir,
            "network": given.network,
            "user": given.user,
            "env": sorted(given.env),
            "limits": {"memory": given.limits.memory, "processes": given.limits.processes},
            "labels": dict(given.labels),
            "mounts": [[bind.inside, bind.host, bind.readonly] for bind in given.mounts],
            "runtime": given.runtime,
            "life": given.life,
            "shared": self.place is not None,
        }

    def environment(self, *, home: str, tmp: str) -> dict[str, str]:
        """Beside the image's own: the time zone of this machine, and on top ``env``. The language is the image's, which need
        not know this machine's: shells complain then, before each answer."""
        passed = {name: os.environ[name] for name in ("TZ",) if name in os.environ}
        return environment.direct({**passed, "TERM": "dumb", **self.settings.env, "HOME": home, "TMPDIR": tmp})

    def which(self, name: str) -> str:
        """The name itself: it is looked for in the container, when the program is started."""
        return name

    def inside(self, folders: Folders) -> Folders:
        """The session's folders as the program sees them."""
        if self.place is None:
            return replace(INSIDE, workdir=self.workdir)
        areas = {self.place.area(name): f"{PLACES}/{name}" for name in AREAS}
        names = {}
        for name in _FOLDERS[1:]:
            path = getattr(folders, name)
            area = next((area for area in areas if below(path, area)), None)
            if area is None:
                raise SandboxError(f"{path} is not in {self.place.path}, so that {self!r} cannot show it.")
            names[name] = areas[area] + path[len(area) :]
        return Folders(workdir=self.workdir, **names)

    def prepare(self, permissions: Permissions) -> dict[str, str]:
        """Find out that the container can be used, and make one that sessions come and go in. Raises SandboxError."""
        with connected(self._address) as daemon:
            container.check_image(daemon, self.settings.image)
            if self.place is None:
                return {}
            self._running(daemon, self._shared_binds(permissions), permissions, self.place.filled)
        return self.place.folders

    def enclose(self, job: Job) -> Enclosure:
        """The job in the container, which runs then. Raises SandboxError, HarnessInstallFailed for an image without the
        program, CapabilityUnsupported for what cannot be held."""
        offline = self._check_network(job)
        servers = {name: _server(name, server, offline) for name, server in job.servers.items()}
        with connected(self._address) as daemon:
            if self.place is None:
                used = os.path.join(os.path.dirname(job.folders.launch), "container")
                found = self._running(daemon, self._own_binds(job), job.permissions, used)
            else:
                binds = self._shared_binds(job.permissions)
                found = self._running(daemon, binds, job.permissions, self.place.filled)
            inside = self.inside(job.folders)
            listener = self._listener(found)
            try:
                seen = self._look(found, job, inside, listener.getsockname()[1])
                forwarded = not seen.listening and self.settings.network != "host"
                if forwarded:
                    listener.close()
                    if seen.python is None:
                        raise SandboxError(
                            f"The model cannot be reached from the container {self.name!r}: this process may not enter its "
                            f"network (that takes root, and an engine that runs containers on this kernel), and the image "
                            f"{self.settings.image!r} has no Python that could forward it. Add one to its Dockerfile: "
                            "RUN apt-get update && apt-get install -y --no-install-recommends python3-minimal"
                        )
                    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            except BaseException:
                listener.close()
                raise
        assert seen.program is not None
        return Enclosure(
            program=(seen.program, *job.program[1:]),
            folders=inside,
            cwd="/",
            servers=servers,
            listener=listener,
            far={
                "bridge": [sys.executable, "-I", "-S", "-X", "utf8", BRIDGE],
                "socket": self._address,
                "container": found.id,
                "name": self.name,
                "user": found.user,
                "cwd": self.workdir,
                "python": seen.python,
                "forward": listener.getsockname()[1] if forwarded else 0,
            },
            notices=self._notices(),
        )

    def on(self, folder: str) -> Docker:
        """A container of its own, of the same image, with another workspace."""
        return Docker(replace(self.settings, name=own_name(folder)), self._address, folder, None)

    def close(self) -> None:
        """Remove the container with all that runs in it. The files of the workspace stay where they are."""
        try:
            with connected(self._address) as daemon:
                container.remove(daemon, self.name)
        except SandboxError:
            pass  # the engine is gone, or the container is another's by now

    # ---- the container ----------------------------------------------------------------------------------------------

    def _running(self, daemon: Daemon, binds: tuple[Bind, ...], permissions: Permissions, used: str) -> Found:
        """``used`` is a file that is there when the container has been made before."""
        given = self.settings
        plan = Plan(
            given.name,
            given.image,
            given.workdir,
            binds,
            given.network,
            given.limits,
            given.user,
            given.runtime,
            given.life,
            used,
            permissions not in _STAYS,
            given.labels,
        )
        if self.place is None:
            found = container.running(daemon, plan, replace=True)
        else:
            self.place.make()
            with self.place.alone():
                if not os.path.exists(used) and self.root == self.place.workspace:
                    container.content(daemon, plan, self.place.fill)
                found = container.running(daemon, plan, replace=False)
        if found.made and os.path.exists(used):
            self._replaced = True
        Path(used).touch(mode=0o600)
        return found

    def _notices(self) -> tuple[Notice, ...]:
        """That the container is a new one, once."""
        replaced, self._replaced = self._replaced, False
        if not replaced:
            return ()
        return (
            Notice(
                "container_replaced",
                f"The container {self.name!r} was not there any more (or was made for other rules); a new one was made of "
                f"{self.settings.image!r}. The workspace and the conversation are as they were; what was installed or "
                "started in the old one is gone.",
            ),
        )

    def _shared_binds(self, permissions: Permissions) -> tuple[Bind, ...]:
        """One folder for all sessions, by what they may do with it."""
        assert self.place is not None
        fixed = permissions == "read-only"
        given = [replace(bind, readonly=bind.readonly or fixed) for bind in self.settings.mounts]
        if all(bind.inside != self.workdir for bind in given):
            given.append(Bind(self.root, self.workdir, fixed))
        areas = ((READ_ONLY, True), (RESULTS, fixed), (PRIVATE, False))
        return (*given, *(Bind(self.place.area(name), f"{PLACES}/{name}", how) for name, how in areas))

    def _own_binds(self, job: Job) -> tuple[Bind, ...]:
        fixed = job.permissions == "read-only"
        inside = self.inside(job.folders)
        binds = [replace(bind, readonly=bind.readonly or fixed) for bind in self.settings.mounts]
        for name in _FOLDERS:
            how = name in _FIXED or (fixed and name in ("workdir", "artifacts", "persistent"))
            binds.append(Bind(getattr(job.folders, name), getattr(inside, name), how))
        for path in job.readonly:
            if os.path.islink(path):
                raise SandboxError(f"{path} is a link in a folder of the agent's; it is not followed.")
            binds.append(Bind(path, inside.persistent + path[len(job.folders.persistent) :], True))
        return tuple(binds)

    def _check_network(self, job: Job) -> bool:
        """Whether there is none. Raises CapabilityUnsupported for permissions that the container's would break."""
        offline = self.settings.network == OFFLINE
        if not offline and job.permissions not in _STAYS:
            raise CapabilityUnsupported(
                f"permissions={job.permissions!r} allows no network, and the container {self.name!r} has one "
                f"({self.settings.network!r}). Use sandbox.docker(network='off')."
            )
        return offline

    def _listener(self, found: Found) -> socket.socket:
        """The model's address: in the container's network if that can be entered, else on this machine's loopback."""
        listener = None if self.settings.network == "host" else network.listen_in(found.pid)
        return listener or socket.create_server(("127.0.0.1", 0), backlog=128)

    def _look(self, found: Found, job: Job, inside: Folders, port: int) -> Seen:
        """Raises what is to be said before the first model call."""
        writes = job.permissions != "read-only"
        folders = [(inside.workdir, writes), (inside.artifacts, writes), (inside.persistent, writes)]
        folders += [(inside.home, True), (inside.tmp, True), (inside.launch, False), (inside.skills, False)]
        program, *words = job.program
        files = [word for word in words if os.path.isabs(word) and os.path.isfile(word)]
        seen = look(
            self._address, found.id, self.name, found.user, program=program, files=files, port=port, folders=folders
        )
        if seen.program is None:
            raise programs.missing(os.path.basename(program), self.settings.image, self.name)
        if seen.lacking:
            raise programs.lacking(seen.lacking[0], program, self.settings.image)
        if seen.unreadable or seen.unwritable:
            what = f"cannot read {seen.unreadable[0]}" if seen.unreadable else f"cannot write {seen.unwritable[0]}"
            raise SandboxError(
                f"In the container {self.name!r} the user {found.user} {what}, a folder of this machine's user "
                f"{os.geteuid()}. Leave user= out of sandbox.docker, so that the agent works as that user, or change the "
                "owner or mode of the folder."
            )
        return seen


def own_name(root: str) -> str:
    """The name of the container that belongs to the session with this workspace."""
    import hashlib

    return f"hostler-{hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:16]}"


def _server(name: str, server: Mapping[str, Any], offline: bool) -> dict[str, Any]:
    if server.get("url") and offline:
        raise CapabilityUnsupported(
            f"The MCP server {name!r} is at a URL, and the container has no network. Use sandbox.docker(network='on') with "
            "permissions='full' or 'ask', or offer its functions as tools="
        )
    return dict(server)
