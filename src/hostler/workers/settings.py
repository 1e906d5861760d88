"""What a worker is told at its start: one JSON file, written anew before each, and its key in the environment."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

KEY = "OPENAI_API_KEY"
"""The variable that holds the key of the model address; what the agent runs does not inherit it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``model`` is asked for at ``url``. ``folder`` is where sessions are kept. ``writable`` are the folders that may be
    written in the mode "edit", the workspace ``workdir`` among them. ``fork`` names a session and the place up to which a
    new one is to hold it. ``servers`` are MCP servers, each with its ``start_timeout``; ``skills`` is a folder of skills."""

    model: str
    url: str
    workdir: str
    folder: str
    instructions: str | None = None
    permissions: str = "full"
    confined: bool = False
    writable: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    max_turns: int | None = None
    effort: str | None = None
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    fork: dict[str, Any] | None = None
    skills: str | None = None
    key: str = field(default="", repr=False)

    @classmethod
    def read(cls, path: str) -> Settings:
        """From the file that the launch wrote. The key is taken out of the environment."""
        given = json.loads(Path(path).read_text())
        known = {f.name for f in fields(cls)} - {"key"}
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        values = {name: value for name, value in {**given, **lists}.items() if name in known}
        return cls(**values, key=os.environ.pop(KEY, ""))
