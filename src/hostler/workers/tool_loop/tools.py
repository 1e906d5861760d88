"""The tools of the loop: what the model is told of them, and how a call is made."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from hostler.workers import rules
from hostler.workers.servers import Servers
from hostler.workers.settings import Settings
from hostler.workers.shell import Shell
from hostler.workers.tool_loop import files
from hostler.workers.tool_loop.files import Wrong

_TIMEOUT, _LONGEST = 120.0, 3600.0  # s that a command may take
_SEARCH = 30.0
_PATH = {"type": "string", "description": "Absolute, or relative to the working directory."}


def _tool(name: str, about: str, required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


BUILTIN: dict[str, dict[str, Any]] = {
    tool["function"]["name"]: tool
    for tool in (
        _tool(
            "read",
            "Read a text file. Gives numbered lines.",
            ("path",),
            path=_PATH,
            offset={"type": "integer", "description": "First line, counted from 1."},
            limit={"type": "integer", "description": "Number of lines (2000 if not given)."},
        ),
        _tool(
            "write",
            "Write a whole file, replacing what is there.",
            ("path", "content"),
            path=_PATH,
            content={"type": "string"},
        ),
        _tool(
            "edit",
            "Replace a piece of text in a file. The old text must be there exactly as given, and only once.",
            ("path", "old", "new"),
            path=_PATH,
            old={"type": "string"},
            new={"type": "string"},
            all={"type": "boolean", "description": "Replace it everywhere."},
        ),
        _tool(
            "bash",
            "Run a shell command in the working directory. Gives what it writes; each call is a new shell.",
            ("command",),
            command={"type": "string"},
            description={"type": "string", "description": "What it does, in a few words."},
            timeout={"type": "number", "description": f"Seconds it may take ({_TIMEOUT:g} if not given)."},
        ),
        _tool(
            "glob",
            "Find files by a pattern of their path, such as **/*.py; the newest first.",
            ("pattern",),
            pattern={"type": "string"},
            path={**_PATH, "description": "Folder to look in (the working directory if not given)."},
        ),
        _tool(
            "grep",
            "Find lines in files by a regular expression (Python's).",
            ("pattern",),
            pattern={"type": "string"},
            path={**_PATH, "description": "File or folder to look in (the working directory if not given)."},
            glob={"type": "string", "description": "Only files whose path fits, such as *.py."},
            ignore_case={"type": "boolean"},
        ),
        _tool("ls", "List a folder.", (), path={**_PATH, "description": "The working directory if not given."}),
    )
}


class Tools:
    """The tools of one process: those above, and those of MCP servers."""

    def __init__(self, settings: Settings, servers: Servers, shell: Shell) -> None:
        self._settings = settings
        self._servers = servers
        self._shell = shell
        self._changing = asyncio.Lock()  # what may change something runs alone, in the order of the calls

    def shown(self) -> list[dict[str, Any]]:
        """As the model is told of them."""
        served = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
            }
            for tool in self._servers.tools.values()
        ]
        return [t for t in (*BUILTIN.values(), *served) if rules.offered(self._settings, t["function"]["name"])]

    def knows(self, name: str) -> bool:
        return name in BUILTIN or name in self._servers.tools

    async def run(self, name: str, given: dict[str, Any], call: str) -> tuple[str, bool]:
        """What the call gives, and whether it failed."""
        if name in self._servers.tools:
            return await self._servers.call(name, given, call)
        try:
            if name not in rules.READS:
                async with self._changing:
                    return await self._builtin(name, given)
            return await self._builtin(name, given)
        except (Wrong, OSError, ValueError) as error:
            return str(error), True

    async def _builtin(self, name: str, given: dict[str, Any]) -> tuple[str, bool]:
        path = rules.resolved(self._settings, _string(given, "path", "."))
        match name:
            case "bash":
                limit = min(max(float(given.get("timeout") or _TIMEOUT), 0.1), _LONGEST)
                return await self._shell.bash(_string(given, "command"), limit)
            case "read":
                lines = (int(given.get("offset") or 1), int(given.get("limit") or 2000))
                return await asyncio.to_thread(files.read, path, *lines), False
            case "write":
                return await asyncio.to_thread(files.write, path, _string(given, "content")), False
            case "edit":
                texts = _string(given, "old"), _string(given, "new")
                return await asyncio.to_thread(files.edit, path, *texts, bool(given.get("all"))), False
            case "ls":
                return await asyncio.to_thread(files.ls, path), False
            case "glob" | "grep":
                return await self._search(name, path, given)
        raise Wrong(f"There is no tool {name}.")

    async def _search(self, name: str, path: str, given: dict[str, Any]) -> tuple[str, bool]:
        asked: dict[str, Any] = {"what": name, "root": path, "pattern": _string(given, "pattern")}
        asked |= {"only": given.get("glob"), "fold": given.get("ignore_case")}
        script = str(Path(__file__).with_name("search.py"))
        argv = [sys.executable, "-I", "-S", "-X", "utf8", script, json.dumps(asked)]
        text, code = await self._shell.run(argv, _SEARCH)
        if code is None:
            return f"{text}\n(it took more than {_SEARCH:g} s; ask for less)".lstrip(), True
        return text, code != 0


def _string(given: dict[str, Any], name: str, default: str | None = None) -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise Wrong(f"{name!r} must be given, as a string.")
    return value
