"""Qwen Code, spoken to in ACP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hostler.runtimes.acp.agent import AcpRuntime
from hostler.runtimes.acp.codec import Dialect
from hostler.runtimes.acp.qwen_history import history
from hostler.runtimes.jsonrpc import obj
from hostler.types.runtime import Capabilities, Launch, LaunchContext, NativeFile

_WRITERS = ("edit", "write_file", "notebook_edit")
_SHELL = ("run_shell_command",)
# What needs somebody at the terminal, goes on behind a turn, or reaches out of the workspace.
_UNATTENDED = ("ask_user_question", "enter_plan_mode", "exit_plan_mode")
_NETWORK = ("web_fetch", "web_search")


def launch(ctx: LaunchContext) -> Launch:
    env = {
        "OPENAI_BASE_URL": f"{ctx.model_url}/v1",
        "OPENAI_API_KEY": ctx.token,
        "OPENAI_MODEL": ctx.model,
        "QWEN_CODE_NO_RELAUNCH": "1",
        "QWEN_CODE_SYSTEM_SETTINGS_PATH": f"{ctx.files_dir}/qwen.json",  # what it says counts, whatever a project says
    }
    files = {f"{ctx.files_dir}/qwen.json": json.dumps(settings(ctx)), f"{ctx.home}/.qwen/settings.json": "{}"}
    if ctx.instructions:
        files[f"{ctx.home}/.qwen/QWEN.md"] = ctx.instructions
    # Where it keeps which folders are trusted, and what an agent may have given itself.
    clear = [
        f"{ctx.home}/.qwen/{name}" for name in ("trustedFolders.json", "skills", "agents", "commands", "extensions")
    ]
    clear += [] if ctx.instructions else [f"{ctx.home}/.qwen/QWEN.md"]
    return Launch(ctx.program, env, files, clear=tuple(clear))


def settings(ctx: LaunchContext) -> dict[str, Any]:
    """Its configuration. In a project that it does not trust it would start no MCP server; so it trusts each."""
    off = [*_UNATTENDED, *ctx.disable_tools]
    if ctx.permissions in ("edit", "read-only"):
        off += [*_NETWORK, *(() if ctx.confined else _SHELL)]
    if ctx.permissions == "read-only":
        off += _WRITERS
    return {
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "disableAllHooks": True,
        "general": {"enableAutoUpdate": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
        "context": {"fileName": ["QWEN.md", "AGENTS.md", "CLAUDE.md"]},
        "model": {"name": ctx.model},
        "permissions": {"deny": off},
    }


def on_permission(ctx: LaunchContext) -> str:
    return "ask" if ctx.permissions == "ask" else "allow"


def mode(ctx: LaunchContext) -> str:
    """It would begin in a mode in which a model decides what may be done; in this one it asks."""
    return "default"


def plain(update: dict[str, Any]) -> dict[str, Any]:
    """It tells the name of a tool beside, and what its shell gave as one text and as an object."""
    name, came = obj(update.get("_meta")).get("toolName"), obj(update.get("rawOutput"))
    out = {**update, "name": name} if isinstance(name, str) and name else dict(update)
    if came.get("type") == "shell_result":
        out["rawOutput"] = {"output": came.get("output"), "metadata": {"exit": came.get("exitCode")}}
        out["content"] = []
    return out


class QwenCode(AcpRuntime):
    """The Runtime of Qwen Code."""

    install = "`npm install -g @qwen-code/qwen-code` (Node 22 or newer)"
    id_pattern = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    project_code = (".qwen",)
    native_files = (NativeFile(".qwen/projects/*/chats/{id}.jsonl", "jsonl"),)
    dialect = Dialect(mode=mode, permission=on_permission, plain=plain)
    capabilities = Capabilities(
        permissions=("full", "ask"),
        approvals=True,
        history=True,
        instructions=True,
        tools=True,
        mcp_servers=True,
        disable_tools=True,
        images=True,
    )

    def launch(self, ctx: LaunchContext) -> Launch:
        return launch(ctx)

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return history(files, native_id)
