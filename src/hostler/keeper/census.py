"""Which keepers of this user run on this machine, whoever started them, and what they take."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from .holder import tree
from .launch import HOLDER, sweep

_PLACE = os.sep.join(HOLDER.split(os.sep)[-2:])
_ARGUMENTS = 10  # of a keeper's command line: python and its switches, the holder, mark, guard, descriptor, folder
_GRACE = 4.0


@dataclass(frozen=True)
class Found:
    """A running keeper, as its command line names it; ``pids`` are its own process and its guardian."""

    mark: str
    dir: str
    pids: tuple[int, ...]


def running() -> list[Found]:
    """All keepers of this user. Those in other containers are not ours to judge: their folders are elsewhere."""
    found: dict[tuple[str, str], list[int]] = {}
    for pid in tree.pids():
        with contextlib.suppress(LookupError, ValueError):
            argv = _read(pid, "cmdline").split("\0")
            if len(argv) == _ARGUMENTS + 1 and argv[5].endswith(_PLACE) and _is_ours(pid):
                found.setdefault((argv[6], argv[9]), []).append(pid)
    return [Found(mark, folder, tuple(pids)) for (mark, folder), pids in found.items()]


def dismiss(keeper: Found) -> None:
    """End a keeper that nobody owns: by its own way of ending, then by force, with all that carries its mark."""
    tree.send(keeper.pids, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    while any(tree.started(pid) for pid in keeper.pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    tree.send([pid for pid in keeper.pids if tree.started(pid)], signal.SIGKILL)
    sweep(keeper.mark)


def remains(mark: str) -> int:
    """How many processes carry the mark of a keeper that is dead."""
    return len(tree.marked(mark))


def size(pid: int) -> int:
    """Resident bytes of a process and all below it."""
    total = 0
    for one in (pid, *tree.below(pid)):
        with contextlib.suppress(LookupError, ValueError):
            total += int(_read(one, "statm").split()[1])
    return total * os.sysconf("SC_PAGE_SIZE")


def age(pid: int) -> float:
    """Seconds since the process started."""
    start = tree.started(pid).rpartition(":")[2]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(start) / os.sysconf("SC_CLK_TCK") if start else 0.0


def _is_ours(pid: int) -> bool:
    # Not the owner of /proc/PID: a process that nobody may read belongs to root there.
    status = dict(line.split(":\t", 1) for line in _read(pid, "status").splitlines() if ":\t" in line)
    one_namespace = len(status.get("NSpid", "1").split()) == 1
    return one_namespace and int(status["Uid"].split()[1]) == os.geteuid() and status["State"][0] not in "ZX"


def _read(pid: int, name: str) -> str:
    return tree.read(f"/proc/{pid}/{name}").decode(errors="surrogateescape")
