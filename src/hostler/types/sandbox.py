"""The seam to the place where the program's processes run."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .events import Notice
from .runtime import Permissions


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders that a program works with, all on one side: by their paths on this machine, or as the program sees
    them. ``launch`` holds the files that its command line names."""

    workdir: str
    artifacts: str
    persistent: str
    skills: str
    home: str
    tmp: str
    launch: str


@dataclass(frozen=True, slots=True)
class Job:
    """What shall run in a sandbox, by paths of this machine.

    ``program`` is the command, ``servers`` are the MCP servers that it starts beside itself. What ``permissions`` forbid,
    a confined sandbox makes impossible. ``readonly`` are folders below ``folders`` that are never to be changed.
    """

    program: tuple[str, ...]
    folders: Folders
    permissions: Permissions = "full"
    servers: Mapping[str, Any] = field(default_factory=dict)
    readonly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enclosure:
    """A `Job` as it is from inside, and how to start something there.

    ``program``, ``servers`` and ``folders`` are as the program sees them. What is started on this machine is ``wrap`` and
    then the program, in ``cwd``, with the program's stdin and stdout as the descriptors 4 and 5 of what wraps it and
    ``feeds`` as the contents of 6, 7, ...; where ``model_port`` is not 0, in a network of its own, in which that port of the loopback is the model's address; in the control ``groups`` (see
    `hostler.keeper.KeeperSpec`).

    Where nothing of the program runs as a process of this machine, ``far`` says how it is started elsewhere (as in a KeeperSpec),
    ``listener`` is its model's address, and ``notices`` are what the host should know of it.
    """

    program: tuple[str, ...]
    folders: Folders
    cwd: str
    servers: Mapping[str, Any] = field(default_factory=dict)
    wrap: tuple[str, ...] = ()
    feeds: tuple[bytes, ...] = ()
    model_port: int = 0
    groups: tuple[dict[str, Any], ...] = ()
    far: dict[str, Any] | None = None
    listener: socket.socket | None = None
    notices: tuple[Notice, ...] = ()


class Sandbox(Protocol):
    """A place to run processes in; a base class for those that are.

    ``root`` is the workspace's directory on this machine, ``workdir`` the same as the agent sees it; ``confined`` says
    whether the operating system keeps the agent inside. Whose it is (the session's, which closes it when it ends, or the
    caller's who passed it in) is the session's to know.
    """

    root: str
    workdir: str
    confined: bool

    @property
    def recipe(self) -> Mapping[str, Any]:
        """What is stored with a session (JSON), so that hostler's own are made again when it is resumed without one."""
        return {"kind": type(self).__name__}

    def prepare(self, permissions: Permissions) -> Mapping[str, str]:
        """Be ready for a new session: find out that it can begin here, and make what must be there before it. Gives the
        folders of the session, by name, that must lie in others to be seen inside, and in which. Raises SandboxError."""
        return {}

    def environment(self, *, home: str, tmp: str) -> Mapping[str, str]:
        """The base environment of every process."""
        ...

    def which(self, name: str) -> str | None:
        """The path of a program, or None."""
        ...

    def enclose(self, job: Job) -> Enclosure:
        """How the job is run here. Raises CapabilityUnsupported for a rule that cannot be held, OSError for a program
        that is not there."""
        ...

    def inside(self, folders: Folders) -> Folders:
        """The session's folders, given by their paths on this machine, as the program sees them. Looks at nothing."""
        ...

    def on(self, folder: str) -> Sandbox:
        """The same sandbox with another workspace."""
        ...

    def close(self) -> None:
        """End it and remove what it made. Never raises for a sandbox that is gone already. Most have nothing to do: their
        processes are the keeper's to end."""
        return
