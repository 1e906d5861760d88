"""Claude Code's tool names and permission rules, to and from hostler's own."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NATIVE = {
    "read": ("Read",),
    "write": ("Write",),
    "edit": ("Edit", "NotebookEdit"),
    "bash": ("Bash",),
    "glob": ("Glob",),
    "grep": ("Grep",),
    "ls": (),  # it lists with its shell
    "web_search": ("WebSearch",),
    "web_fetch": ("WebFetch",),
    "agent": ("Agent",),
    "question": ("AskUserQuestion",),
}
_NORMAL = {native: name for name, natives in _NATIVE.items() for native in natives} | {
    "MultiEdit": "edit",
    "LS": "ls",
    "Task": "agent",
}
HOST = "mcp__host"
"""The MCP server through which the host offers its own tools."""

READERS = ("Read", "Glob", "Grep")
WRITERS = ("Edit", "Write", "NotebookEdit")
NETWORK = ("WebFetch", "WebSearch")
ASKS = "AskUserQuestion"
"""Offered where somebody can be asked."""

UNATTENDED = (
    "EnterPlanMode",
    "ExitPlanMode",
    "EnterWorktree",
    "ExitWorktree",
    "CronCreate",
    "CronDelete",
    "CronList",
    "ScheduleWakeup",
    "Monitor",
    "TaskStop",
    "Workflow",
    "SendMessage",
    "ListAgents",
    "ReportFindings",
    "RemoteTrigger",
    "PushNotification",
)
"""Tools that need somebody at the terminal, or that act outside the turn: never offered."""

VENDOR_SKILLS = ("plugin-authoring",)
"""Skills of the program's own that are there even when its bundled ones are switched off."""

NAMES = frozenset(
    (
        *_NATIVE,
        *_NORMAL,
        *UNATTENDED,
        "BashOutput",
        "KillShell",
        "ListMcpResourcesTool",
        "NotebookRead",
        "ReadMcpResourceTool",
        "Skill",
        "TaskCreate",
        "TaskGet",
        "TaskList",
        "TaskOutput",
        "TaskUpdate",
        "TodoWrite",
        "ToolSearch",
    )
)
"""What a rule may name, beside the tools of MCP servers (``mcp__server__tool``): Claude Code ignores a rule for a tool
that it does not know, so that a misspelt one would deny nothing."""

_RULE = re.compile(r"(?P<tool>[A-Za-z_]\w*)(?::(?P<what>.+)|\((?P<native>.*)\))?", re.DOTALL)


def normal_name(native: str) -> str:
    """hostler's name of a tool: ``Bash`` to ``bash``; the caller's own tools without their server's prefix."""
    if is_host_tool(native):
        return native.removeprefix(f"{HOST}__")
    return _NORMAL.get(native, native)


def is_host_tool(native: str) -> bool:
    return native.startswith(f"{HOST}__")


def native_rules(rules: Iterable[str]) -> list[str]:
    """Permission rules in Claude Code's words. ``bash`` is Bash, ``bash:git *`` is ``Bash(git *)``; its own words pass.

    Rules about paths exist for Read and Edit only, where Edit stands for every tool that changes files.
    """
    out: list[str] = []
    for rule in rules:
        match = _RULE.fullmatch(rule.strip())
        if match is None or match["native"] is not None:
            out.append(rule.strip())
            continue
        tool, what = match["tool"], match["what"]
        if what is not None and tool in ("write", "edit"):
            out.append(f"Edit({what})")
            continue
        for native in _NATIVE.get(tool, (tool,)):
            out.append(native if what is None else f"{native}({what})")
    return out


def output_text(content: object) -> str:
    """The text of a tool result; what is no text is named."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    parts = [block for block in content if isinstance(block, dict)]
    return "\n".join(str(b["text"]) if b.get("type") == "text" and "text" in b else f"[{b.get('type')}]" for b in parts)
