"""The local sandbox: the program runs on this machine as this user, in a directory, with an environment of its own."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from ..types.errors import SandboxError

# What a program needs of the host's environment. No name here ever holds a key.
_PASSED = frozenset(
    {"LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
)
_OURS = frozenset({"HOME", "TMPDIR"})
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
_LOOPBACK = ("127.0.0.1", "localhost")


class Local:
    """A directory of this machine. Nothing confines the agent: it can do what this user can.

    ``workdir`` is the directory's real path. Closing it ends and removes nothing: the directory is the caller's.
    """

    confined = False

    def __init__(self, path: str | os.PathLike[str], env: Mapping[str, str], inherit: frozenset[str]) -> None:
        self.workdir = os.path.realpath(path)
        if not os.path.isdir(self.workdir):
            raise SandboxError(f"sandbox.local: {os.fspath(path)!r} is not an existing directory; make it first.")
        self._env = env
        self._inherit = inherit

    def __repr__(self) -> str:
        return f"sandbox.local({self.workdir!r})"

    def environment(self, *, home: str, tmp: str) -> dict[str, str]:
        """The base environment of every process: an allow-list of the host's, ``inherit``, and on top ``env``."""
        host = os.environ
        env = {name: host[name] for name in host if name in _PASSED or name.startswith("LC_") or name in self._inherit}
        env |= {"TERM": "dumb", "PATH": self._path(), **self._env, "HOME": home, "TMPDIR": tmp}
        if any(name.lower() in _PROXIES for name in env):
            # The model's address is on the loopback; a proxy would be asked for it otherwise.
            direct = [*env.get("NO_PROXY", "").split(","), *env.get("no_proxy", "").split(","), *_LOOPBACK]
            env["NO_PROXY"] = env["no_proxy"] = ",".join(dict.fromkeys(filter(None, direct)))
        return env

    def command(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> list[str]:
        """``argv`` as it is: inside is outside here."""
        return list(argv)

    def listen(self) -> socket.socket:
        """A listening socket on a free port of the loopback."""
        return socket.create_server(("127.0.0.1", 0), backlog=128)

    def which(self, name: str) -> str | None:
        """The path of a program on the agent's own PATH, or None. A path is taken only when it is absolute."""
        if os.path.dirname(name) and not os.path.isabs(name):
            return None
        return shutil.which(name, path=self._env.get("PATH") or self._path())

    def close(self) -> None:
        """Nothing to do: the directory belongs to the caller, and hostler's keeper ends the processes."""

    def _path(self) -> str:
        """The host's PATH without entries that depend on the current directory."""
        entries = os.environ.get("PATH", "").split(os.pathsep)
        return os.pathsep.join(entry for entry in entries if os.path.isabs(entry)) or _DEFAULT_PATH


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
    fixed, names = _checked(env or {}), _names(inherit)

    def place(workspace: Any) -> Local:
        return Local(workspace if isinstance(workspace, (str, os.PathLike)) else workspace.root, fixed, names)

    return place if workspace is None else place(workspace)


Factory = Callable[[Any], Local]
"""Makes a sandbox for a Workspace."""


def auto(workspace: Any) -> Local:
    """The best sandbox that this machine has. That is `local` until bubblewrap is supported."""
    sandbox: Local = local(workspace)
    return sandbox


def _checked(env: Mapping[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"sandbox env must map strings to strings; {name!r} does not.")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"sandbox env holds {name!r}, which no environment can hold.")
        if name in _OURS:
            raise ValueError(f"sandbox env may not set {name}: it is private to the session.")
    return dict(env)


def _names(inherit: Sequence[str]) -> frozenset[str]:
    if isinstance(inherit, str):
        raise TypeError(f"inherit takes a list of variable names, not a string: inherit=[{inherit!r}].")
    return frozenset(inherit)
