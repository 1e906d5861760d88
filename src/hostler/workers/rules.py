"""Whether a tool call may run, by the session's mode and rules. Pure, but for where paths lead."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from hostler.workers.settings import Settings

READS = frozenset({"read", "glob", "grep", "ls"})
WRITES = frozenset({"write", "edit"})
SHELL = "bash"
INNER = frozenset({"task", "write_todos"})
"""They act on the conversation alone; what a sub-agent does is judged by itself."""
HOST = "mcp__host__"
"""The tools of the app: their own server asks and refuses."""

_RULE = re.compile(r"(?P<tool>[\w*.-]+)(?::(?P<pattern>.+)|\((?P<quoted>.*)\))?", re.DOTALL)
_OPERATORS = re.compile(r"&&|\|\||[;&|\n\r()`]|\$\(")  # behind one of them another command begins
_ACTIVE = re.compile(r"[;&|<>`\n\r$(){}\\]")  # with one of them a command may do more than its first words say

Choice = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a call; ``reason`` is for the model."""

    choice: Choice
    reason: str = ""


def offered(settings: Settings, tool: str) -> bool:
    """Whether the model is told of the tool: not of one that can never run."""
    if any(_names(rule, tool) for rule in settings.disabled):
        return False
    if any(_names(rule, tool) and not _pattern(rule) for rule in settings.deny):
        return False
    return any(_names(rule, tool) for rule in settings.allow) or _by_mode(settings, tool).choice != "deny"


def judge(settings: Settings, tool: str, given: dict[str, Any]) -> Verdict:
    """What becomes of a call of ``tool`` with the input ``given``."""
    if any(_names(rule, tool) for rule in settings.disabled):
        return Verdict("deny", f"The tool {tool} is switched off in this session.")
    if any(_names(rule, tool) and _denies(rule, settings, tool, given) for rule in settings.deny):
        return Verdict("deny", f"A rule of this session forbids this call of {tool}.")
    outside = tool in WRITES and not within(settings, str(given.get("path") or ""))
    if outside and settings.permissions == "edit":
        return Verdict("deny", "In this session only files of the workspace may be changed.")
    if any(_names(rule, tool) and _allows(rule, settings, tool, given) for rule in settings.allow) and (
        not outside or settings.permissions == "full"
    ):
        return Verdict("allow")
    return _by_mode(settings, tool)


def within(settings: Settings, path: str) -> bool:
    """Whether a path leads into one of the folders that may be written, wherever links take it."""
    real = resolved(settings, path)
    return any(_below(real, os.path.realpath(folder)) for folder in settings.writable)


def resolved(settings: Settings, path: str) -> str:
    """The real path of a file that a call names."""
    return os.path.realpath(os.path.join(settings.workdir, path))


def _by_mode(settings: Settings, tool: str) -> Verdict:
    mode = settings.permissions
    if mode == "full" or tool in READS | INNER or tool.startswith(HOST):
        return Verdict("allow")
    if mode == "ask":
        return Verdict("ask")
    if tool == SHELL and settings.confined:
        return Verdict("allow")  # the system holds what it may change
    if mode == "edit" and tool in WRITES:
        return Verdict("allow")
    return Verdict("deny", f"With permissions={mode!r} the tool {tool} may not be used.")


def _names(rule: str, tool: str) -> bool:
    found = _RULE.fullmatch(rule.strip())
    if found is None:
        return False
    written = found["tool"]
    server = written.startswith("mcp__") and written.count("__") == 1 and tool.startswith(f"{written}__")
    return server or _like(written, tool)


def _pattern(rule: str) -> str:
    found = _RULE.fullmatch(rule.strip())
    pattern = (found["pattern"] or found["quoted"] or "") if found else ""
    return "" if pattern == "*" else pattern


def _allows(rule: str, settings: Settings, tool: str, given: dict[str, Any]) -> bool:
    pattern = _pattern(rule)
    if not pattern:
        return True
    if tool == SHELL:
        command = str(given.get("command") or "").strip()
        return not _ACTIVE.search(command) and _like(pattern, command)
    return any(_like(pattern, form) for form in _forms(settings, tool, given))


def _denies(rule: str, settings: Settings, tool: str, given: dict[str, Any]) -> bool:
    pattern = _pattern(rule)
    if not pattern:
        return True
    if tool == SHELL:
        command = str(given.get("command") or "")
        return any(_like(pattern, part.strip()) for part in (command, *_OPERATORS.split(command)))
    return any(_like(pattern, form) for form in (*_forms(settings, tool, given), _about(given)))


def _forms(settings: Settings, tool: str, given: dict[str, Any]) -> Iterable[str]:
    """What patterns are compared with: of a file where it really is, from the workspace and from the root."""
    if tool not in READS | WRITES:
        return (_about(given),)
    real, root = resolved(settings, str(given.get("path") or ".")), os.path.realpath(settings.workdir)
    return (real, os.path.relpath(real, root)) if _below(real, root) else (real,)


def _about(given: dict[str, Any]) -> str:
    return next((value for value in given.values() if isinstance(value, str)), "")


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _like(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None
