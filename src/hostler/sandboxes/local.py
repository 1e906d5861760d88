"""The local sandbox: the program runs on this machine as this user, in a directory, with an environment of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from ..types.errors import SandboxError
from ..types.sandbox import Enclosure, Folders, Job, Sandbox
from . import environment


class Local(Sandbox):
    """A directory of this machine. Nothing confines the agent: it can do what this user can.

    ``root`` and ``workdir`` are the directory's real path. Closing it ends and removes nothing: the directory is the
    caller's.
    """

    confined = False

    def __init__(self, path: str | os.PathLike[str], env: Mapping[str, str], inherit: frozenset[str]) -> None:
        self.root = self.workdir = real_folder("sandbox.local", path)
        self._env = env
        self._inherit = inherit

    def __repr__(self) -> str:
        return f"sandbox.local({self.workdir!r})"

    @property
    def recipe(self) -> Mapping[str, Any]:
        return {"kind": "local", "env": sorted(self._env), "inherit": sorted(self._inherit)}

    def environment(self, *, home: str, tmp: str) -> dict[str, str]:
        """The base environment of every process: an allow-list of the host's, ``inherit``, and on top ``env``."""
        return environment.base(self._env, self._inherit, home=home, tmp=tmp)

    def which(self, name: str) -> str | None:
        """The path of a program on the agent's own PATH, or None. A path is taken only when it is absolute."""
        return environment.which(name, self._env)

    def enclose(self, job: Job) -> Enclosure:
        """The job as it is: inside is outside here."""
        return Enclosure(job.program, job.folders, self.workdir, job.servers)

    def inside(self, folders: Folders) -> Folders:
        """The same: inside is outside here."""
        return folders

    def on(self, folder: str) -> Local:
        """The same sandbox with another workspace."""
        return Local(folder, self._env, self._inherit)


def real_folder(name: str, path: str | os.PathLike[str]) -> str:
    """The real path of a directory. Raises SandboxError, in the words of the sandbox ``name``, when there is none."""
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise SandboxError(f"{name}: {os.fspath(path)!r} is not an existing directory; make it first.")
    return real


def folder_of(workspace: Any) -> str | os.PathLike[str]:
    """The directory of a Workspace, or the path that was given in its place."""
    place: str | os.PathLike[str] = workspace if isinstance(workspace, (str, os.PathLike)) else workspace.root
    return place


@overload
def local(workspace: None = None, *, env: Mapping[str, str] | None = ..., inherit: Sequence[str] = ...) -> Factory: ...
@overload
def local(workspace: Any, *, env: Mapping[str, str] | None = ..., inherit: Sequence[str] = ...) -> Local: ...
def local(
    workspace: Any = None, *, env: Mapping[str, str] | None = None, inherit: Sequence[str] = ()
) -> Local | Factory:
    """Run the program on this machine, in a directory or a Workspace; without one, a factory for the session's own.

    The program does not get the host's environment but PATH, locale, time zone, user name and certificate paths, the
    host's variables named in ``inherit``, and ``env``. Its HOME and TMPDIR are private to the session.
    """
    fixed, names = environment.checked(env or {}), environment.names(inherit)

    def place(workspace: Any) -> Local:
        return Local(folder_of(workspace), fixed, names)

    return place if workspace is None else place(workspace)


Factory = Callable[[Any], Local]
"""Makes a sandbox for a Workspace."""
