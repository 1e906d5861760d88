"""The programs that the table has a column for."""

from __future__ import annotations

from ...types.runtime import Harness, acp_agent
from .bench import Subject

PROGRAMS = (
    Subject("claude_code", "Claude Code", Harness.CLAUDE_CODE, "claude-opus-4-6"),  # older ones have no effort
    Subject("codex", "Codex", Harness.CODEX, "gpt-5"),
    # To models of some names it gives other tools.
    Subject("opencode", "OpenCode", Harness.OPENCODE, "coder"),
    Subject("pi", "Pi", Harness.PI),
    Subject("gemini_cli", "Gemini CLI", Harness.GEMINI_CLI, "gemini-2.5-flash"),
    Subject("tool_loop", "Tool loop", Harness.TOOL_LOOP),
    Subject("deep_agents", "Deep Agents", Harness.DEEP_AGENTS),
    Subject("claude_acp", "claude-agent-acp", acp_agent(["claude-agent-acp"]), "claude-opus-4-6"),
    Subject("codex_acp", "codex-acp", acp_agent(["codex-acp"])),
    Subject("qwen", "Qwen Code", acp_agent(["qwen", "--acp"]), "coder"),
)
BY_NAME = {subject.name: subject for subject in PROGRAMS}
