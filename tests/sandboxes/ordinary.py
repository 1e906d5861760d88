"""Runs a command as an ordinary user: ``python ordinary.py UID FOLDER... -- COMMAND...``, started by root.

In a mount namespace of its own the folders are opened up for it, wherever they lie: a Python below /root, say. Nothing
is changed for other processes.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

_NEWNS, _PRIVATE, _REC, _BIND = 0x00020000, 1 << 18, 0x4000, 0x1000


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def closed(path: str) -> str | None:
    """The first folder on the way to ``path`` that others may not enter."""
    parts = os.path.realpath(path).split("/")[1:]
    for depth in range(1, len(parts) + 1):
        folder = "/" + "/".join(parts[:depth])
        if not os.stat(folder).st_mode & 0o001:
            return folder
    return None


def open_up(paths: list[str]) -> None:
    """Whatever bars the way is covered by an empty folder with only ``paths`` in it."""
    _call("unshare", _NEWNS)
    _call("mount", None, b"/", None, _PRIVATE | _REC, None)
    barred: dict[str, list[str]] = {}
    for path in paths:
        if (folder := closed(path)) is not None:
            barred.setdefault(folder, []).append(os.path.realpath(path))
    for folder, inside in barred.items():
        held = {path: os.open(path, os.O_PATH) for path in inside}
        _call("mount", b"none", folder.encode(), b"tmpfs", 0, b"mode=755")
        for path, fd in held.items():
            os.makedirs(path, exist_ok=True)
            _call("mount", f"/proc/self/fd/{fd}".encode(), path.encode(), None, _BIND | _REC, None)


def main() -> None:
    user = int(sys.argv[1])
    middle = sys.argv.index("--")
    open_up(sys.argv[2:middle])
    done = subprocess.run(sys.argv[middle + 1 :], user=user, group=user, extra_groups=[], check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
