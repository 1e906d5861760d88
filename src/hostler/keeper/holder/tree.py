"""Finding and ending processes through /proc: by descent, and by the mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Set

MARK = "HOSTLER_RUN"
_CHUNK = 1 << 16
_PAUSE = 0.003
_STATE, _PARENT, _THREADS, _STARTED = 0, 1, 17, 19  # of the fields of stat behind the name
_boot: str | None = None  # the machine's: read once


def read(path: str) -> bytes:
    """A file of /proc, empty when there is none. In a third of the system calls that open() takes for it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    data = b""
    try:
        while more := os.read(fd, _CHUNK):
            data += more
    except OSError:  # the process has ended meanwhile
        pass
    finally:
        os.close(fd)
    return data


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name: state, parent, ...; empty when there is no such process."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _start(fields: list[bytes]) -> str:
    global _boot
    # A process whose first thread has ended looks like a zombie, and lives in the others.
    if not fields or (fields[_STATE] in (b"Z", b"X") and fields[_THREADS] in (b"0", b"1")):
        return ""
    if _boot is None:
        _boot = read("/proc/sys/kernel/random/boot_id")[:8].decode()
    return f"{_boot}:{fields[_STARTED].decode()}"


def started(pid: int) -> str:
    """When the process started, unique together with its pid; empty when it is gone or a zombie."""
    return _start(_stat(pid))


def below(root: int) -> dict[int, str]:
    """All living processes below ``root``, and when each has `started`."""
    if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return _walk(root, _stat, _children)
    stats = {pid: fields for pid in pids() if (fields := _stat(pid))}
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    return _walk(root, lambda pid: stats.get(pid, []), lambda pid, _: children.get(pid, []))


def _walk(
    root: int, stat: Callable[[int], list[bytes]], children: Callable[[int, list[bytes]], list[int]]
) -> dict[int, str]:
    found: dict[int, str] = {}
    todo = children(root, stat(root))
    while todo:
        pid = todo.pop()
        fields = stat(pid)
        if pid not in found and (start := _start(fields)):
            found[pid] = start
            todo += children(pid, fields)
    return found


def _children(pid: int, fields: list[bytes]) -> list[int]:
    """Of all its threads: most processes have one, which bears the number of the process."""
    tasks = [str(pid)]
    if fields and fields[_THREADS] != b"1":
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return []
    return [int(child) for task in tasks for child in read(f"/proc/{pid}/task/{task}/children").split()]


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def marked(mark: str) -> set[int]:
    """All other processes that were started with HOSTLER_RUN=``mark`` in their environment."""
    wanted = f"{MARK}={mark}".encode()
    own = os.getpid()
    return {pid for pid in pids() if pid != own and wanted in read(f"/proc/{pid}/environ").split(b"\0")}


def reads(pid: int, inode: int) -> bool:
    """Whether the stdin of a process is the pipe with this inode."""
    try:
        return os.stat(f"/proc/{pid}/fd/0").st_ino == inode
    except OSError:
        return False


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def reap() -> list[tuple[int, int]]:
    """Children of this process that have ended: (pid, exit code)."""
    ended: list[tuple[int, int]] = []
    try:
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((child[0], os.waitstatus_to_exitcode(child[1])))
    except ChildProcessError:
        pass
    return ended


def kill_all(find: Callable[[], Set[int]], limit: float, *, reaping: bool = False) -> int:
    """Stop, then kill all living ones that ``find`` gives, until it gives nothing twice; returns how many there were.

    Stopped first, so that nobody forks away between the look and the blow. ``reaping``: they may be our own children.
    """
    seen: set[int] = set()
    quiet, deadline = 0, time.monotonic() + limit
    while True:
        alive = find()
        send(alive, signal.SIGSTOP)
        send(alive, signal.SIGKILL)
        seen |= alive
        quiet = 0 if alive else quiet + 1
        if reaping:
            reap()
        if quiet == 2 or time.monotonic() > deadline:
            return len(seen)
        time.sleep(_PAUSE)
