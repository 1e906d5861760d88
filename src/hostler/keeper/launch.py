"""Starting keepers, and ending what they leave."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ..removal import remove_path
from .address import KeeperAddress, KeeperSpec
from .errors import KeeperError, ProgramNotStarted
from .holder import tree

HOLDER = str(Path(__file__).parent / "holder")
_START = 10.0
_GUARD_ENV = "HOSTLER_GUARD"
_MAX_SOCKET_PATH = 100  # sun_path holds 107 bytes
_SWEEP = 4.0
_SUFFIX = ".sock"
_STALE = 3600.0  # younger ones may be on their way from bind to listen


async def start(spec: KeeperSpec, model_socket: socket.socket | None) -> KeeperAddress:
    """Start a keeper with its program. ``model_socket`` is a listening socket, the program's model address; the caller
    closes his copy afterwards. ProgramNotStarted when the program cannot be executed."""
    starting = asyncio.create_task(asyncio.to_thread(_start, spec, model_socket))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_discard)
        raise


def _discard(starting: asyncio.Task[KeeperAddress]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        destroy(starting.result())


def _start(spec: KeeperSpec, model_socket: socket.socket | None) -> KeeperAddress:
    if sys.platform != "linux":
        raise KeeperError("programs can be kept on Linux only: the keeper finds and ends processes through /proc")
    folder = os.path.abspath(spec.dir)
    os.makedirs(folder, 0o700, exist_ok=True)
    sockets = runtime_dir()
    for left in stale_sockets(sockets):
        with contextlib.suppress(OSError):
            os.unlink(left)
    path = os.path.join(sockets, f"k-{secrets.token_hex(8)}{_SUFFIX}")
    token = secrets.token_hex(32)
    config = {
        "argv": spec.argv,
        "env": {**spec.env, tree.MARK: spec.mark},
        "cwd": os.path.abspath(spec.cwd),
        "socket": path,
        "token": token,
        "park_ttl": spec.park_ttl,
        "orphan_ttl": spec.orphan_ttl,
        "spool_limit": spec.spool_limit,
        "hold_limit": spec.hold_limit,
        "feeds": [base64.b64encode(feed).decode() for feed in spec.feeds],
        "model_port": spec.model_port,
        "groups": list(spec.groups),
        "enclosed": spec.enclosed,
        "far": None if spec.far is None else {**spec.far, "mark": spec.mark},
    }
    model_fd = model_socket.fileno() if model_socket is not None else -1
    guard = os.environ.get(_GUARD_ENV, "")
    argv = [sys.executable, "-I", "-S", "-X", "utf8", HOLDER, spec.mark, guard, str(model_fd), folder]
    log_path = os.path.join(folder, "keeper.log")
    with open(os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Not the app's environment: its secrets would be readable in that of the init process.
            env={tree.MARK: spec.mark} | {k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH") if k in os.environ},
            pass_fds=[model_fd] if model_fd >= 0 else [],
            start_new_session=True,
        )
    with process:
        try:
            # The token goes through a pipe: it is in no argument, no environment and no file.
            output, _ = process.communicate(json.dumps(config).encode(), timeout=_START)
            answer = json.loads(output)
        except (subprocess.TimeoutExpired, ValueError, OSError) as error:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            late = isinstance(error, subprocess.TimeoutExpired)
            what = f"is not ready after {_START:g} s" if late else "does not start"
            raise KeeperError(f"the keeper {what} ({_tail(log_path) or 'it said nothing'}); log: {log_path}") from None
    if "error" in answer:
        raise _not_started(spec, answer)
    return KeeperAddress(socket=path, token=token, mark=spec.mark, dir=folder, **answer)


def _not_started(spec: KeeperSpec, answer: dict[str, Any]) -> KeeperError:
    code, step = int(answer["error"]), answer["step"]
    reason = os.strerror(code) if code else ""
    if step == "keeper":
        return KeeperError(f"the keeper cannot start: {answer.get('text') or reason}")
    if step == "network":
        return KeeperError(f"a network of its own cannot be made for the program: {reason}")
    if step == "limits":
        return KeeperError(f"the program cannot be put under its limits: {reason}")
    if step == "cwd":
        return ProgramNotStarted(f"the working directory {spec.cwd!r} cannot be entered: {reason}", code)
    return ProgramNotStarted(f"the program {spec.argv[0]!r} cannot be executed: {reason}", code)


def _tail(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")[-2000:].strip()
    except OSError:
        return ""


def runtime_dir() -> str:
    """The private folder for sockets, made if missing; the path is short, because socket paths must be."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and len(os.path.join(base, "hostler", "k-0123456789abcdef.sock").encode()) <= _MAX_SOCKET_PATH:
        with contextlib.suppress(OSError, KeeperError):
            return _private(os.path.join(base, "hostler"))
    try:
        return _private(f"/tmp/hostler-{os.geteuid()}")
    except OSError as error:
        raise KeeperError(f"no folder for the keeper's socket: {error}") from None


def _private(path: str) -> str:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise KeeperError(
            f"{path} must be a directory of this user that nobody else may enter"
            f" (owner {found.st_uid}, mode {stat.filemode(found.st_mode)}); remove it or set XDG_RUNTIME_DIR"
        )
    return path


def stale_sockets(folder: str, older: float = _STALE) -> list[str]:
    """Sockets in the folder, ``older`` seconds or more, that nobody listens on: a killed keeper cannot remove its own."""
    found = []
    with os.scandir(folder) as listed:
        entries = list(listed)
    for entry in entries:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if entry.name.endswith(_SUFFIX) and time.time() - entry.stat().st_mtime > older:
                probe.setblocking(False)
                try:
                    probe.connect(entry.path)
                except ConnectionRefusedError:
                    found.append(entry.path)
    return found


def alive(address: KeeperAddress) -> bool:
    """Whether that very keeper process still runs."""
    start = tree.started(address.pid)
    if not start and not os.path.exists(f"/proc/{address.pid}"):
        # Where /proc is mounted with hidepid, a process that nobody may read is not shown at all.
        try:
            os.kill(address.pid, 0)
        except OSError:
            return False
        return True
    return start == address.start


def sweep(mark: str) -> int:
    """Kill every process that carries HOSTLER_RUN=``mark``; how many there were. For what a dead keeper has left."""
    return tree.kill_all(lambda: tree.marked(mark), _SWEEP)


def forget(dir: str) -> None:
    """Remove what a program said that is over, once nobody has to read it any more; what its keeper said stays."""
    with contextlib.suppress(OSError):
        remove_path(os.path.join(dir, "spool"))


def destroy(address: KeeperAddress) -> int:
    """Kill the keeper, dead or alive, and with it everything that it holds; the last resort, without any grace."""
    deadline = time.monotonic() + _SWEEP
    while alive(address) and time.monotonic() < deadline:
        tree.send([address.pid], signal.SIGKILL)
        time.sleep(0.003)
    with contextlib.suppress(OSError):
        os.unlink(address.socket)
    return sweep(address.mark)
