"""Where the binaries of agent programs are: named by the caller, inside an installed package, or on PATH."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ..types.errors import HarnessInstallFailed


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


def missing(title: str, how: str) -> HarnessInstallFailed:
    """The error that says how to install what was not found."""
    return HarnessInstallFailed(
        f"{title} was not found: not in options['program'], not in an installed package, not on the sandbox's PATH. "
        f"Install it with {how}, or name it: options={{'program': '/path/to/it'}}."
    )
