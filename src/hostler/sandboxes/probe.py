"""Whether bubblewrap works on this machine, found out once a process by using it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from . import environment, seccomp

_TIMEOUT = 10.0
_RESTRICTED = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def binary() -> str:
    """The path of bubblewrap's program; its name when it is not installed."""
    return shutil.which("bwrap", path=environment.path()) or "bwrap"


@functools.cache
def missing() -> str | None:
    """Why bubblewrap cannot be used here, and what would help; None when it can."""
    if not os.path.isabs(program := binary()):
        return "the program bwrap is not on PATH; install the package bubblewrap."
    if not seccomp.supported():
        return "there is no filter of system calls for this kind of processor."
    try:
        if os.geteuid() and _RESTRICTED.read_text().strip() == "1":
            return f"this system lets only chosen programs make user namespaces ({_RESTRICTED} is 1)."
    except OSError:
        pass
    trial = [program, "--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--unshare-net"]
    trial += ["--unshare-ipc", "--unshare-uts", "--die-with-parent", "--cap-drop", "ALL"]
    trial += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "true"]
    try:
        said = subprocess.run(trial, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run ({error})."
    if said.returncode == 0:
        return None
    words = said.stderr.strip().split("\n")[-1][:300]
    return f"{program} cannot make its namespaces ({words or f'exit code {said.returncode}'})."
