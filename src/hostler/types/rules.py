"""Rules about tools as callers write them (``name``, ``name:pattern``, ``name(pattern)``), read for the app's own tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

_RULE = re.compile(r"(?P<tool>[\w*.-]+)(?::(?P<pattern>.+)|\((?P<quoted>.*)\))?", re.DOTALL)
_SERVERS = ("mcp__host__", "host_")  # how programs name the tools of the host's server

Choice = Literal["allow", "deny", "ask"]


def choose(rules: Mapping[str, Any], tool: str, about: str | None = None) -> Choice:
    """What a session's ``rules`` make of a call of the app's ``tool``. A pattern is compared with ``about``, the first
    argument as text; ``*`` in it stands for anything. Without ``about`` no pattern fits."""
    if any(_matches(rule, tool, about) for rule in (*rules["deny"], *rules["disable_tools"])):
        return "deny"
    if rules["permissions"] != "ask" or any(_matches(rule, tool, about) for rule in rules["allow"]):
        return "allow"
    return "ask"


def is_about(rule: str, tools: Iterable[str]) -> bool:
    """Whether a rule names one of the app's own ``tools``, and nothing else."""
    found = _RULE.fullmatch(rule.strip())
    return found is not None and "*" not in found["tool"] and any(_names(found["tool"], tool) for tool in tools)


def _matches(rule: str, tool: str, about: str | None) -> bool:
    found = _RULE.fullmatch(rule.strip())
    if found is None or not _names(found["tool"], tool):
        return False
    pattern = found["pattern"] or found["quoted"]
    return not pattern or pattern == "*" or (about is not None and _like(pattern, about))


def _names(written: str, tool: str) -> bool:
    if written == "mcp__host":
        return True
    return any(_like(written, prefix + tool) for prefix in ("", *_SERVERS))


def _like(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None
