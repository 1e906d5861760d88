"""Claude Code behind its ACP adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hostler.runtimes.acp.agent import FORK, STEER, AcpRuntime
from hostler.runtimes.acp.codec import Dialect
from hostler.runtimes.claude_code import RUNTIME as CLAUDE_CODE
from hostler.runtimes.claude_code import tools
from hostler.runtimes.claude_code.launch import EFFORTS, environment, settings
from hostler.types.errors import CapabilityUnsupported
from hostler.types.runtime import Capabilities, Launch, LaunchContext


def meta(ctx: LaunchContext) -> dict[str, Any]:
    """Options of Claude Code itself, which the adapter passes on: its configuration is ours alone."""
    options: dict[str, Any] = {
        "settingSources": [],
        "settings": f"{ctx.files_dir}/claude-settings.json",
        "strictMcpConfig": True,
        "additionalDirectories": [ctx.workdir, *ctx.beside],
        "promptSuggestions": False,
    }
    if ctx.permissions in ("edit", "read-only"):
        writers = tools.WRITERS if ctx.permissions == "edit" else ()
        options["tools"] = [*tools.READERS, *writers, *(("Bash",) if ctx.confined else ()), "Agent"]
    if ctx.max_turns is not None:
        options["maxTurns"] = ctx.max_turns
    if ctx.effort is not None:
        if ctx.effort not in EFFORTS:
            raise CapabilityUnsupported(f"Claude Code knows the efforts {', '.join(EFFORTS)}, not {ctx.effort!r}.")
        options["effort"] = ctx.effort
    prompt = {"systemPrompt": {"append": ctx.instructions}} if ctx.instructions else {}
    return {**prompt, "claudeCode": {"options": options}}


def mode(ctx: LaunchContext) -> str:
    """It would begin in a mode in which a model decides what may be done."""
    return "acceptEdits" if ctx.permissions == "edit" else "default"


def on_permission(ctx: LaunchContext) -> str:
    """What becomes of what it asks for in that mode."""
    if ctx.permissions == "ask":
        return "ask"
    return "allow" if ctx.permissions == "full" or ctx.confined else "reject"


def remark(text: str) -> bool:
    """A warning or an error of Claude Code to whoever sits before it."""
    return text.startswith(("**Warning:** ", "API Error: "))


class ClaudeAcp(AcpRuntime):
    """The Runtime of the adapter; what Claude Code keeps on disk is as without it."""

    wire = "anthropic"
    id_pattern = CLAUDE_CODE.id_pattern
    project_instructions = CLAUDE_CODE.project_instructions
    tool_names = CLAUDE_CODE.tool_names
    native_files = CLAUDE_CODE.native_files
    install = "`npm install -g @agentclientprotocol/claude-agent-acp` (Node 22 or newer)"
    dialect = Dialect(mode=mode, meta=meta, permission=on_permission, remark=remark)
    capabilities = Capabilities(
        permissions=("full", "read-only", "edit", "ask"),
        approvals=True,
        history=True,
        instructions=True,
        tools=True,
        mcp_servers=True,
        disable_tools=True,
        allow_deny=True,
        max_turns=True,
        effort=True,
        images=True,
        portable=True,
        questions="tool",
        reasons={"steer": STEER, "fork": FORK},
    )

    def launch(self, ctx: LaunchContext) -> Launch:
        ctx = replace(ctx, approvals=False)  # it has no way for questions that ask for more than leave
        env = {**environment(ctx), "ANTHROPIC_MODEL": ctx.model}
        files = {
            f"{ctx.files_dir}/claude-settings.json": json.dumps(settings(ctx)),
            f"{ctx.home}/.claude/.claude.json": "{}",
        }
        return Launch(ctx.program, env, files)

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return CLAUDE_CODE.history(files, native_id)
