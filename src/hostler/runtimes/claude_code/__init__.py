"""Claude Code, spoken to in stream-json on stdio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...types.runtime import Capabilities, Launch, LaunchContext, NativeFile
from .. import programs
from . import tools
from .codec import ClaudeCodec
from .history import history
from .launch import launch
from .output import native


class ClaudeCode:
    """The runtime of Claude Code."""

    name = "claude_code"
    capabilities = Capabilities(
        permissions=("full", "read-only", "edit", "ask"),
        approvals=True,
        steer=True,
        history=True,
        instructions=True,
        tools=True,
        mcp_servers=True,
        disable_tools=True,
        allow_deny=True,
        max_turns=True,
        effort=True,
        output="schema",
        skills="native",
        images=True,
        portable=True,
        fork=True,
        questions="native",
    )
    codec = ClaudeCodec()
    native_files = (
        NativeFile(".claude/projects/*/{id}.jsonl", "jsonl"),
        NativeFile(".claude/projects/*/{id}/**/*", "file"),
    )
    wire = "anthropic"
    id_pattern = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    project_instructions: tuple[str, ...] = ("AGENTS.md",)
    model_first: bool = True
    project_code: tuple[str, ...] = ()
    tool_names: frozenset[str] | None = tools.NAMES

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        if program := programs.given(options):
            return program
        if path := programs.bundled("claude_agent_sdk", "_bundled", "claude") or which("claude"):
            return (path,)
        raise programs.missing("Claude Code", '`pip install "hostler[claude]"`')

    def launch(self, ctx: LaunchContext) -> Launch:
        return launch(ctx)

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        return "launch" if native(schema) is not None else None

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return history(files, native_id)


RUNTIME = ClaudeCode()
