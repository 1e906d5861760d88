"""Finding and ending processes through /proc: by descent, and by the mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

MARK = "HOSTLER_RUN"


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name: state, parent, ...; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def started(pid: int) -> str:
    """When the process started, unique together with its pid; empty when it is gone or a zombie."""
    fields = _stat(pid)
    if not fields or fields[0] in (b"Z", b"X"):
        return ""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read(8)
    except OSError:
        boot = ""
    return f"{boot}:{fields[19].decode()}"


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(root: int) -> set[int]:
    """All processes below ``root``."""
    if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return _descendants(root, _children)
    parents: dict[int, list[int]] = {}
    for pid in _pids():
        if fields := _stat(pid):
            parents.setdefault(int(fields[1]), []).append(pid)
    return _descendants(root, lambda pid: parents.get(pid, []))


def _descendants(root: int, children: Callable[[int], list[int]]) -> set[int]:
    found: set[int] = set()
    todo = [root]
    while todo:
        new = [pid for pid in children(todo.pop()) if pid not in found]
        found.update(new)
        todo += new
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def marked(mark: str) -> set[int]:
    """All other processes that were started with HOSTLER_RUN=``mark`` in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found: set[int] = set()
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.add(pid)
        except OSError:
            pass
    found.discard(os.getpid())
    return found


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


def kill_all(find: Callable[[], set[int]], limit: float, *, reaping: bool = False) -> int:
    """Stop, then kill all that ``find`` gives, until it gives nothing twice; returns how many there were.

    Stopped first, so that nobody forks away between the look and the blow. ``reaping``: they may be our own children.
    """
    seen: set[int] = set()
    quiet, deadline = 0, time.monotonic() + limit
    while quiet < 2 and time.monotonic() < deadline:
        alive = {pid for pid in find() if (fields := _stat(pid)) and fields[0] not in (b"Z", b"X")}
        send(alive, signal.SIGSTOP)
        send(alive, signal.SIGKILL)
        seen |= alive
        quiet = 0 if alive else quiet + 1
        if reaping:
            reap()
        time.sleep(0.003)
    return len(seen)
