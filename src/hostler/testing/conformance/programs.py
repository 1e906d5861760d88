"""The programs that the table has a column for."""

from __future__ import annotations

from ...types.runtime import Harness
from .bench import Subject

PROGRAMS = (
    Subject("claude_code", "Claude Code", Harness.CLAUDE_CODE, "claude-opus-4-6"),  # older ones have no effort
    Subject("codex", "Codex", Harness.CODEX, "gpt-5"),
    # To models of some names it gives other tools.
    Subject("opencode", "OpenCode", Harness.OPENCODE, "coder"),
)
BY_NAME = {subject.name: subject for subject in PROGRAMS}
