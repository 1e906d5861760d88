"""Options as they are used: checked, and what ``output`` and ``skills`` stand for read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import skills
from .output import wanted
from .persistent.dirs import checked
from .types.options import Options


def options_of(given: Mapping[str, Any]) -> Options:
    """Checked options from keyword arguments. Raises TypeError, ValueError or PathError that names the bad one."""
    options = Options.of(given)
    options = replace(options, persistent_dirs=checked(options.persistent_dirs))
    if options.output is None and not options.skills:
        return options
    return replace(options, output=wanted(options.output), skills=skills.read(options.skills))


async def read_options(given: Mapping[str, Any]) -> Options:
    """`options_of` for the engine: folders are read, and slow libraries imported, in a worker thread."""
    if given.get("output") is None and not given.get("skills"):
        return options_of(given)
    return await asyncio.to_thread(options_of, given)
