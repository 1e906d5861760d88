"""Any agent program that speaks the Agent Client Protocol on stdio; of some more is known than their command."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hostler.runtimes.acp.agent import AcpRuntime
from hostler.runtimes.acp.claude import ClaudeAcp
from hostler.runtimes.acp.codex import CodexAcp
from hostler.runtimes.acp.qwen import QwenCode

_KNOWN: dict[str, type[AcpRuntime]] = {
    "claude-agent-acp": ClaudeAcp,
    "claude-code-acp": ClaudeAcp,
    "codex-acp": CodexAcp,
    "qwen": QwenCode,
    "qwen-code": QwenCode,
}
"""By a name in the command: that of the program, or of the package that it is started from."""

COMMANDS = (("claude-agent-acp",), ("codex-acp",), ("qwen", "--acp"))
"""How the known agents are commonly started."""


def runtime(command: Sequence[str]) -> AcpRuntime:
    """The Runtime of the agent that this command starts."""
    names = (part for word in command for part in re.split(r"[/@]", word))
    return next((_KNOWN[name] for name in names if name in _KNOWN), AcpRuntime)(command)
