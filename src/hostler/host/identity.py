"""Who a host process is, and whether another one still lives."""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import Any

from ..types.errors import HarnessError

SILENT_AFTER = 15.0
BEAT_EVERY = 3.0
_PR_SET_DUMPABLE = 4


def machine_id() -> str:
    """This boot of this machine: kernel locks and process ids mean something only within it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = f"node{uuid.getnode():x}"
    try:  # containers share the boot id, but not the names of processes
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return boot


def become_unreadable() -> None:
    """No other process of this user reads our memory and environment from now on, where the kernel can see to it."""
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is None or prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise HarnessError("HOSTLER_NONDUMPABLE=1 cannot be held on this system: it has no PR_SET_DUMPABLE. Unset it.")


class HostLock:
    """A file that this process keeps locked while it lives; the kernel frees it, however the process ends."""

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self.id = uuid.uuid4().hex
        self.path = os.path.join(directory, f"{self.id}.lock")
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        # The lock belongs to the open file, which a forked child shares: it must not hold it beyond our life.
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def release(self) -> None:
        if self._fd >= 0:
            try:
                os.unlink(self.path)
            except OSError:
                pass
            os.close(self._fd)
            self._fd = -1


def uptime() -> float:
    """Seconds by a clock that all processes of this boot share and that nobody sets."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def is_dead(row: Any, machine: str, orphan_ttl: float) -> bool:
    """Whether the host of this row may be replaced. On this machine: at once when the kernel has freed its lock, else
    after 15 s of silence. On another one only when its keepers have ended their programs by themselves."""
    if row.machine == machine:
        return lock_is_free(row.lock) or bool(uptime() - row.uptime > SILENT_AFTER)
    return bool(time.time() - row.heartbeat > orphan_ttl + SILENT_AFTER)


def lock_is_free(path: str) -> bool:
    """Whether no process holds this lock file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
