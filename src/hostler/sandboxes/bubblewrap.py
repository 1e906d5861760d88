"""The bubblewrap sandbox: namespaces of its own, in which the program sees its folders and what it needs to run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from ..types.errors import CapabilityUnsupported, SandboxError
from ..types.sandbox import Enclosure, Folders, Job, Sandbox
from . import environment, limits, probe, seccomp
from .limits import Limits
from .local import folder_of, real_folder
from .visible import Visible, below

Network = Literal["off", "on"]

INSIDE = Folders(
    workdir="/session",
    artifacts="/artifacts",
    persistent="/persistent",
    skills="/skills",
    home="/home/agent",
    tmp="/tmp",
    launch="/run/hostler/launch",
)
MODEL_PORT = 7411  # in a network of its own any port is free
_TAKE_OVER = 'exec "$@" <&4 >&5 4<&- 5>&-'  # a program's own stdin and stdout (see Enclosure)
_ARGUMENTS, _FILTER, _FILES = 6, 7, 8  # descriptors of the feeds
_SHARED_MEMORY = str(256 << 20)

_ETC = Path(__file__).parent / "etc"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Nothing here that only root may read: root's agent could, too. Each mount takes time: files are copied, not mounted.
_FOLDERS_OF_ETC = ("alternatives", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted", "fonts", "java-17-openjdk")
_FILES_OF_ETC = ("ld.so.cache", "ssl/openssl.cnf", "localtime", "mime.types", "protocols", "services")
_OWN_FILES = ("passwd", "group", "hosts", "nsswitch.conf")
_MAX_FILE = 1 << 20
# They belong to root, and to the kernel root's agent is root: it could write /proc/sys/kernel/core_pattern, for one.
_READ_ONLY = ("sys", "sysrq-trigger", "mtrr", "acpi", "scsi", "fs", "pressure")
_STAYS = ("full", "ask")  # permissions under which the network is the sandbox's affair


class Bubblewrap(Sandbox):
    """A directory of this machine, shown to the agent as ``/session``, and hardly anything else of it."""

    confined = True
    workdir = INSIDE.workdir

    def __init__(
        self,
        path: str | os.PathLike[str],
        network: Network,
        bounds: Limits,
        ro: tuple[str, ...],
        env: Mapping[str, str],
        inherit: frozenset[str],
    ) -> None:
        if (missing := probe.missing()) is not None:
            raise SandboxError(f"sandbox.bubblewrap does not work here: {missing} (sandbox.local runs without it.)")
        self.root = real_folder("sandbox.bubblewrap", path)
        self._network = network
        self._limits = bounds
        self._ro = ro
        self._env = env
        self._inherit = inherit
        limits.hold(bounds, root=os.geteuid() == 0)  # refused here and not in the middle of the first turn

    def __repr__(self) -> str:
        return f"sandbox.bubblewrap({self.root!r}, network={self._network!r})"

    @property
    def recipe(self) -> Mapping[str, Any]:
        return {
            "kind": "bubblewrap",
            "network": self._network,
            "limits": {"memory": self._limits.memory, "processes": self._limits.processes},
            "ro": list(self._ro),
            "env": sorted(self._env),
            "inherit": sorted(self._inherit),
        }

    def environment(self, *, home: str, tmp: str) -> dict[str, str]:
        """An allow-list of the host's, ``inherit``, and on top ``env``; PATH names only what is there inside."""
        own = {"USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/sh"}
        seen = [entry for entry in environment.path().split(os.pathsep) if below(entry, *_SYSTEM, *self._ro)]
        own["PATH"] = os.pathsep.join(dict.fromkeys([*seen, "/usr/local/bin", "/usr/bin", "/bin"]))
        return environment.base({**own, **self._env}, self._inherit, home=home, tmp=tmp)

    def which(self, name: str) -> str | None:
        """The path on this machine of a program that can be shown inside, or None."""
        return environment.which(name, {})

    def enclose(self, job: Job) -> Enclosure:
        """The job as it is inside. Raises CapabilityUnsupported for what cannot be held or reached there, SandboxError for
        a workspace that the agent could not work in, OSError for a program that is not there."""
        _check_rights(self.root, job.permissions != "read-only")
        offline = self._network == "off" or job.permissions not in _STAYS
        own = {getattr(job.folders, name): getattr(INSIDE, name) for name in INSIDE.__slots__}
        seen = Visible((*_SYSTEM, *_folders_of_etc()), own, self.which)
        program = seen.command(job.program)
        servers = {name: _server(seen, name, server, offline) for name, server in job.servers.items()}
        for path in (*self._ro, *_certificates()):
            seen.show(path)
        held = limits.hold(self._limits, root=os.geteuid() == 0)
        copied = _copied(offline)
        arguments = [*_namespaces(), *_system(), *_copies(copied), *_folders(job), *_shown(seen), "--remount-ro", "/"]
        arguments += ["--chdir", INSIDE.workdir, "--seccomp", str(_FILTER)]
        return Enclosure(
            program=program,
            folders=INSIDE,
            cwd="/",
            servers=servers,
            # Its arguments name paths of this machine, and its command line can be read inside.
            wrap=(probe.binary(), "--args", str(_ARGUMENTS), "--", *held.wrap, "/bin/sh", "-c", _TAKE_OVER, "sh"),
            feeds=(b"".join(os.fsencode(word) + b"\0" for word in arguments), seccomp.program(), *copied.values()),
            model_port=MODEL_PORT if offline else 0,
            groups=held.groups,
        )

    def inside(self, folders: Folders) -> Folders:
        """The folders as the program sees them, wherever they are."""
        return INSIDE

    def on(self, folder: str) -> Bubblewrap:
        """The same sandbox with another workspace."""
        return Bubblewrap(folder, self._network, self._limits, self._ro, self._env, self._inherit)


def _hidden_by(path: str) -> str | None:
    """The folder of the sandbox's own that would not be seen any more if ``path`` were shown."""
    if below(path, "/dev", "/proc"):
        return path
    own = (getattr(INSIDE, name) for name in INSIDE.__slots__)
    return next((folder for folder in own if folder != path and below(folder, path)), None)


def _check_rights(root: str, writes: bool) -> None:
    """Raise SandboxError for a workspace in which the agent could not work: its user is that of this process, but root's
    agent may not do what root may."""
    info = os.stat(root)
    mine = info.st_uid == os.geteuid()
    ours = info.st_gid in (os.getegid(), *os.getgroups())
    rights = info.st_mode >> (6 if mine else 3 if ours else 0)
    needed = 0o7 if writes else 0o5
    if rights & needed != needed:
        raise SandboxError(
            f"The workspace {root} belongs to user {info.st_uid} (mode {info.st_mode & 0o777:o}): in sandbox.bubblewrap the "
            f"agent, which works as user {os.geteuid()} without any privilege, could not {'write' if writes else 'read'} in "
            "it. Run the app as the user to whom it belongs, or change its owner or mode."
        )


def _namespaces() -> list[str]:
    out = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    out += ["--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    return out


def _system() -> list[str]:
    """What every program finds: the system's folders, its own /proc and /dev."""
    out: list[str] = []
    for folder in _SYSTEM:
        if os.path.islink(folder):
            out += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            out += ["--ro-bind", folder, folder]
    for path in _folders_of_etc():
        out += ["--ro-bind", os.path.realpath(path), path]
    out += ["--proc", "/proc"]
    if os.path.exists("/proc/keys"):
        out += ["--ro-bind", "/dev/null", "/proc/keys"]
    if os.geteuid() == 0:
        out += _only_roots()
    out += ["--dev", "/dev", "--size", _SHARED_MEMORY, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    return [*out, "--dir", "/var", "--symlink", "../tmp", "/var/tmp"]


def _only_roots() -> list[str]:
    """What is safe from an ordinary user anyway."""
    out: list[str] = []
    for name in _READ_ONLY:
        if os.path.exists(f"/proc/{name}"):
            out += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    if os.path.isdir("/usr/local/etc") and os.listdir("/usr/local/etc"):
        out += ["--tmpfs", "/usr/local/etc", "--remount-ro", "/usr/local/etc"]
    return out


def _folders_of_etc() -> list[str]:
    return [path for name in _FOLDERS_OF_ETC if os.path.isdir(path := f"/etc/{name}")]


def _copied(offline: bool) -> dict[str, bytes]:
    """Files that the sandbox has copies of, by their paths inside."""
    found = {f"/etc/{name}": (_ETC / name).read_bytes() for name in _OWN_FILES}
    for path in (*(f"/etc/{name}" for name in _FILES_OF_ETC), *(() if offline else ("/etc/resolv.conf",))):
        try:
            with open(path, "rb") as file:
                content = file.read(_MAX_FILE + 1)
        except OSError:
            continue
        if len(content) <= _MAX_FILE:
            found[path] = content
    return found


def _copies(copied: Mapping[str, bytes]) -> list[str]:
    out: list[str] = []
    for number, path in enumerate(copied):
        out += ["--perms", "0644", "--file", str(_FILES + number), path]
    return out


def _folders(job: Job) -> list[str]:
    """The session's own folders, under the names that they have inside."""
    ours = "--ro-bind" if job.permissions == "read-only" else "--bind"
    out: list[str] = []
    for name, how in (
        ("workdir", ours),
        ("artifacts", ours),
        ("persistent", ours),
        ("skills", "--ro-bind"),
        ("home", "--bind"),
        ("tmp", "--bind"),
        ("launch", "--ro-bind"),
    ):
        out += [how, getattr(job.folders, name), getattr(INSIDE, name)]
    for path in job.readonly:
        if os.path.islink(path):
            raise SandboxError(f"{path} is a link in a folder of the agent's; it is not followed.")
        out += ["--ro-bind", path, _inside(job.folders, path)]
    return out


def _shown(seen: Visible) -> list[str]:
    out: list[str] = []
    for path in sorted(seen.mounts):  # a folder before what lies in it
        out += ["--ro-bind", path, seen.mounts[path]]
    for name, target in seen.links.items():
        out += ["--symlink", target, name]
    return out


def _server(seen: Visible, name: str, server: Mapping[str, Any], offline: bool) -> dict[str, Any]:
    """An MCP server as the program starts or reaches it inside."""
    if server.get("url") and offline:
        raise CapabilityUnsupported(
            f"The MCP server {name!r} is at a URL, and the sandbox has no network. Use "
            "sandbox.bubblewrap(network='on') with permissions='full' or 'ask', or offer its functions as tools="
        )
    if not server.get("command"):
        return dict(server)
    try:
        command, *arguments = seen.command((server["command"], *server.get("args", ())))
    except OSError as error:
        raise CapabilityUnsupported(
            f"The MCP server {name!r} cannot be shown in the sandbox: {server['command']}: {error.strerror}."
        ) from None
    return {**server, "command": command, "args": arguments}


def _inside(folders: Folders, path: str) -> str:
    for name in INSIDE.__slots__:
        if below(path, base := getattr(folders, name)):
            return str(getattr(INSIDE, name)) + path[len(base) :]
    raise ValueError(f"{path} is in none of the session's folders.")


def _certificates() -> list[str]:
    return [path for name in environment.CERTIFICATES if os.path.exists(path := os.environ.get(name, ""))]


Factory = Callable[[Any], Bubblewrap]
"""Makes a sandbox for a Workspace."""


@overload
def bubblewrap(
    workspace: None = None,
    *,
    network: Network = ...,
    limits: Limits | None = ...,
    ro: Sequence[str | os.PathLike[str]] = ...,
    env: Mapping[str, str] | None = ...,
    inherit: Sequence[str] = ...,
) -> Factory: ...
@overload
def bubblewrap(
    workspace: Any,
    *,
    network: Network = ...,
    limits: Limits | None = ...,
    ro: Sequence[str | os.PathLike[str]] = ...,
    env: Mapping[str, str] | None = ...,
    inherit: Sequence[str] = ...,
) -> Bubblewrap: ...
def bubblewrap(
    workspace: Any = None,
    *,
    network: Network = "off",
    limits: Limits | None = None,
    ro: Sequence[str | os.PathLike[str]] = (),
    env: Mapping[str, str] | None = None,
    inherit: Sequence[str] = (),
) -> Bubblewrap | Factory:
    """Run the program in namespaces of its own, in a directory or a Workspace; without one, a factory for the
    session's own. It sees ``/session`` and the other folders of the session, the system's programs, its own files, and
    the paths in ``ro``, read-only. ``network="off"`` leaves it its model and the app's tools, and nothing else.

    ``env`` and ``inherit`` are as for `local`. Raises SandboxError where bubblewrap does not work, CapabilityUnsupported
    for ``limits`` that cannot be held here.
    """
    if network not in ("off", "on"):
        raise ValueError(f"network must be 'off' or 'on', not {network!r}.")
    if isinstance(ro, (str, os.PathLike)):
        raise TypeError(f"ro takes a list of paths, not one: ro=[{os.fspath(ro)!r}].")
    shown = tuple(os.path.abspath(os.path.expanduser(path)) for path in ro)
    for path in shown:
        if not os.path.exists(path):
            raise SandboxError(f"sandbox.bubblewrap: ro names {path!r}, which is not there.")
        if path == "/":
            raise SandboxError("sandbox.bubblewrap: ro=['/'] would show the whole machine; name what is needed.")
        if own := _hidden_by(os.path.realpath(path)):
            raise SandboxError(
                f"sandbox.bubblewrap: ro names {path!r}, which would hide the sandbox's own {own}. Name what is needed in it."
            )
    bounds = limits or Limits()
    if not isinstance(bounds, Limits):
        raise TypeError(f"limits takes sandbox.Limits(memory=..., processes=...), not {bounds!r}.")
    fixed, names = environment.checked(env or {}), environment.names(inherit)

    def place(workspace: Any) -> Bubblewrap:
        return Bubblewrap(folder_of(workspace), network, bounds, shown, fixed, names)

    return place if workspace is None else place(workspace)
