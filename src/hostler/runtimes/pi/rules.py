"""What Pi's tools may do: the session's rules as its command line and hostler's extension take them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from hostler.types.runtime import LaunchContext

READS = ("read", "grep", "find", "ls")
WRITES = ("edit", "write")
HOST = "mcp__host__*"
NAMES = {"read": "read", "bash": "bash", "edit": "edit", "write": "write", "grep": "grep", "glob": "find", "ls": "ls"}
"""hostler's names of tools, to Pi's."""

_NORMAL = {native: name for name, native in NAMES.items()}
_RULE = re.compile(r"(?P<tool>[\w*.-]+)(?::(?P<pattern>.+)|\((?P<quoted>.*)\))?", re.DOTALL)

Rule = tuple[str, str | None]


def normal_name(native: str) -> str:
    return _NORMAL.get(native, native)


def for_extension(ctx: LaunchContext) -> dict[str, Any]:
    """The rules that are looked at before each call of a tool."""
    denied = [*read(ctx.deny), *read(ctx.disable_tools)]
    return {
        "mode": ctx.permissions,
        "confined": ctx.confined,
        "folders": [ctx.workdir, *ctx.beside],
        "allow": [{"tool": tool, "pattern": pattern} for tool, pattern in read(ctx.allow)],
        "deny": [{"tool": tool, "pattern": pattern} for tool, pattern in denied],
    }


def arguments(ctx: LaunchContext) -> list[str]:
    """Which tools the model is told of: none that it may never use."""
    shell = ("bash",) if ctx.confined else ()
    tools: tuple[str, ...]
    match ctx.permissions:
        case "read-only":
            tools = (*READS, *shell, HOST)
        case "edit":
            tools = (*READS, *WRITES, *shell, HOST)
        case "full" | "ask":
            tools = ("read", "bash", *WRITES, "mcp__*")
    tools += tuple(tool for tool, _ in read(ctx.allow) if tool in NAMES.values() or tool.startswith("mcp__"))
    # Always said: a conversation would go on with the tools that it had when it was left.
    argv = ["--tools", ",".join(dict.fromkeys(tools))]
    if gone := [tool for tool, pattern in read((*ctx.deny, *ctx.disable_tools)) if pattern is None]:
        argv += ["--exclude-tools", ",".join(gone)]
    return argv


def read(given: Iterable[str]) -> Iterator[Rule]:
    """Rules of the caller (``bash``, ``bash:git *`` or ``bash(git *)``) as Pi's tool and a pattern or None."""
    for rule in given:
        if not (found := _RULE.fullmatch(rule.strip())):
            raise ValueError(f"{rule!r} is not a rule: write a tool's name, or name:pattern.")
        pattern = found["pattern"] or found["quoted"]
        yield NAMES.get(found["tool"], found["tool"]), None if pattern in (None, "", "*") else pattern
