"""What a program may use at most, held by the kernel: control groups where this process may make them."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..types.errors import CapabilityUnsupported

_PREFIX = "hostler-"
PRLIMIT = "/usr/bin/prlimit"


@dataclass(frozen=True, slots=True)
class Limits:
    """For all processes of a session's sandbox together: ``memory`` in bytes, ``processes`` their number with threads.

    What exceeds the memory is ended by the kernel; a process too many cannot be started.
    """

    memory: int | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "processes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
                raise ValueError(f"limits: {name} must be a positive whole number, not {value!r}.")


@dataclass(frozen=True, slots=True)
class Held:
    """How limits are held: by control ``groups`` (as a KeeperSpec has them), and by what is put before the program."""

    groups: tuple[dict[str, Any], ...] = ()
    wrap: tuple[str, ...] = ()


def hold(limits: Limits, *, root: bool, proc: Path = Path("/proc/self")) -> Held:
    """How to hold the limits on this machine. Raises CapabilityUnsupported for one that cannot be held here."""
    wanted = {"memory": limits.memory, "pids": limits.processes}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not wanted:
        return Held()
    name = _PREFIX + secrets.token_hex(8)
    if (parent := _unified(proc, set(wanted))) is not None:
        settings = {f"{control}.max": str(value) for control, value in wanted.items()}
        if "memory" in wanted and (parent / "memory.swap.max").exists():
            settings["memory.swap.max"] = "0"
        return Held(({"dir": str(parent / name), "settings": settings},))
    groups, wrap = [], []
    for control, value in wanted.items():
        folder = _legacy(proc, control)
        if folder is not None:
            groups.append({"dir": str(folder / name), "settings": _legacy_settings(folder, control, str(value))})
        elif control == "pids" and not root and os.access(PRLIMIT, os.X_OK):
            # Counted by user namespace, so these are the sandbox's own. For root the kernel does not count.
            wrap = [PRLIMIT, f"--nproc={value}", "--"]
        else:
            raise CapabilityUnsupported(
                f"limits: {'memory' if control == 'memory' else 'processes'} cannot be held here: there is no control "
                "group that this process may make. Run it in a delegated cgroup (systemd: Delegate=yes), or leave it out."
            )
    return Held(tuple(groups), tuple(wrap))


def _unified(proc: Path, controls: set[str]) -> Path | None:
    """A group of the unified hierarchy in which one for the program can be made: our own one, or the one around it."""
    mount = _mount(proc, "cgroup2", None)
    own = _own(proc, "")
    if mount is None or own is None:
        return None
    folder = mount / own.lstrip("/")
    for candidate in (folder, folder.parent):
        try:
            given = set((candidate / "cgroup.subtree_control").read_text().split())
        except OSError:
            continue
        if controls <= given and os.access(candidate, os.W_OK) and os.access(candidate / "cgroup.procs", os.W_OK):
            return candidate
        if candidate == mount:
            break
    return None


def _legacy(proc: Path, control: str) -> Path | None:
    mount, own = _mount(proc, "cgroup", control), _own(proc, control)
    if mount is None or own is None:
        return None
    folder = mount / own.lstrip("/")
    folder = folder if folder.is_dir() else mount  # in a container the names are those of the host
    return folder if os.access(folder, os.W_OK) else None


def _legacy_settings(folder: Path, control: str, value: str) -> dict[str, str]:
    if control == "pids":
        return {"pids.max": value}
    swap = "memory.memsw.limit_in_bytes"
    return {"memory.limit_in_bytes": value} | ({swap: value} if (folder / swap).exists() else {})


def _mount(proc: Path, kind: str, control: str | None) -> Path | None:
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        found, _, options = after.split(" ", 2)
        if found == kind and (control is None or control in options.split(",")):
            return Path(before.split(" ")[4])
    return None


def _own(proc: Path, control: str) -> str | None:
    for line in (proc / "cgroup").read_text().splitlines():
        _, controls, path = line.split(":", 2)
        if control in controls.split(",") if control else controls == "":
            return path
    return None
