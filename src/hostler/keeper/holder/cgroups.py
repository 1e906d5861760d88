"""Control groups that bound what a program may use: made before it starts, removed after its last process."""

from __future__ import annotations

import os
import time

PREFIX = "hostler-"
_STALE = 60.0  # s; a younger one may be on its way from here to its program
_WAIT = 1.0

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any


def make(groups: list[dict[str, Any]]) -> list[str]:
    """``groups`` are ``{"dir": ..., "settings": {file: text}}``. Gives the folders that were made. Raises OSError."""
    made: list[str] = []
    for group in groups:
        _sweep(os.path.dirname(group["dir"]))
        os.mkdir(group["dir"])
        made.append(group["dir"])
        for name, text in group["settings"].items():
            with open(os.path.join(group["dir"], name), "w") as file:
                file.write(text)
    return made


def remove(folders: list[str]) -> None:
    """A process that was just killed may stay in its group for a moment."""
    deadline = time.monotonic() + _WAIT
    for folder in folders:
        while not _removed(folder) and time.monotonic() < deadline:
            time.sleep(0.005)


def _sweep(parent: str) -> None:
    """What killed keepers have left: groups without processes."""
    for entry in os.scandir(parent):
        if entry.name.startswith(PREFIX) and time.time() - entry.stat().st_mtime > _STALE:
            _removed(entry.path)


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
