"""Who a host process is, and whether another one still lives."""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import Any

SILENT_AFTER = 15.0
BEAT_EVERY = 3.0


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


def is_dead(row: Any, machine: str, now: float | None = None) -> bool:
    """Whether the host of this row may be replaced: its lock is free (same machine), or it has been silent too long."""
    if row.machine == machine and _lock_is_free(row.lock):
        return True
    silent = (time.time() if now is None else now) - row.heartbeat
    return bool(silent > SILENT_AFTER)


def _lock_is_free(path: str) -> bool:
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
