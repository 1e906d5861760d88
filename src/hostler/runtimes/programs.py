"""Where the binaries of agent programs are: named by the caller, inside an installed package, or on PATH."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ..types.errors import HarnessInstallFailed

_SHEBANG = 256  # bytes


def given(options: Mapping[str, Any]) -> tuple[str, ...] | None:
    """``options["program"]``: a path, or a list of arguments."""
    program = options.get("program")
    if not program:
        return None
    return (program,) if isinstance(program, str) else tuple(os.fspath(part) for part in program)


def bundled(package: str, *inside: str) -> str | None:
    """An executable file that an installed package brings along; the package is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = pathlib.Path(folder, *inside)
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def script(path: str, which: Callable[[str], str | None]) -> tuple[str, ...]:
    """The command of a program on PATH. One that names its interpreter only by its name (``#!/usr/bin/env node``) is given
    the one on this PATH: in a sandbox the name may stand for another version."""
    try:
        with open(path, "rb") as file:
            words = file.readline(_SHEBANG).decode(errors="replace").split()
    except OSError:
        words = []
    if words[:1] == ["#!/usr/bin/env"] and len(words) == 2 and (interpreter := which(words[1])):
        return (interpreter, path)
    return (path,)


def missing(title: str, how: str) -> HarnessInstallFailed:
    """The error that says how to install what was not found."""
    return HarnessInstallFailed(
        f"{title} was not found: not in options['program'], not in an installed package, not on the sandbox's PATH. "
        f"Install it with {how}, or name it: options={{'program': '/path/to/it'}}."
    )
