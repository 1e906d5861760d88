"""Rules about tools as callers write them (``name``, ``name:pattern``, ``name(pattern)``), read for the app's own tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

_RULE = re.compile(r"(?P<tool>[\w*.-]+)(?::(?P<pattern>.+)|\((?P<quoted>.*)\))?", re.DOTALL)
_SERVERS = ("mcp__host__", "host_")  # how programs name the tools of the host's server

Choice = Literal["allow", "deny", "ask"]


def choose(
    rules: Mapping[str, Any], tool: str, arguments: Mapping[str, Any] | None = None, first: str | None = None
) -> Choice:
    """What a session's ``rules`` make of a call of the app's ``tool``. A pattern is compared with the argument
    ``first``, the first of the function's parameters; ``*`` in it stands for anything. Without ``arguments``: whether
    the tool is denied altogether."""
    named = [*rules["deny"], *rules["disable_tools"]]
    if any(_matches(rule, tool, arguments, first) for rule in named):
        return "deny"
    if rules["permissions"] != "ask" or any(_matches(rule, tool, arguments, first) for rule in rules["allow"]):
        return "allow"
    return "ask"


def is_about(rule: str, tools: Iterable[str]) -> bool:
    """Whether a rule names one of the app's own ``tools``, and nothing else."""
    found = _RULE.fullmatch(rule.strip())
    return found is not None and "*" not in found["tool"] and any(_names(found["tool"], tool) for tool in tools)


def _matches(rule: str, tool: str, arguments: Mapping[str, Any] | None, first: str | None) -> bool:
    found = _RULE.fullmatch(rule.strip())
    if found is None or not _names(found["tool"], tool):
        return False
    pattern = found["pattern"] or found["quoted"]
    if not pattern or pattern == "*":
        return True
    if arguments is None or first not in arguments:
        return False
    value = arguments[first]
    return _like(pattern, value if isinstance(value, str) else json.dumps(value, default=str))


def _names(written: str, tool: str) -> bool:
    if written == "mcp__host":
        return True
    return any(_like(written, prefix + tool) for prefix in ("", *_SERVERS))


def _like(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None
