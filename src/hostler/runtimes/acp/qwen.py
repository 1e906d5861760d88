"""Qwen Code, spoken to in ACP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hostler.runtimes.acp.agent import FORK, STEER, AcpRuntime
from hostler.runtimes.acp.codec import Dialect
from hostler.runtimes.acp.qwen_history import history
from hostler.runtimes.jsonrpc import obj
from hostler.types.runtime import Capabilities, Launch, LaunchContext, NativeFile

_NATIVE = {
    "read": ("read_file",),
    "write": ("write_file",),
    "edit": ("edit", "notebook_edit"),
    "bash": ("run_shell_command",),
    "glob": ("glob",),
    "grep": ("grep_search",),
    "ls": ("list_directory",),
    "web_fetch": ("web_fetch",),
    "web_search": ("web_search",),
    "task": ("agent",),
}
_WRITERS = ("write", "edit")
_NETWORK = ("web_fetch", "web_search")
# They need somebody at the terminal, go on behind the turn, or work elsewhere.
_UNATTENDED = (
    "ask_user_question",
    "enter_plan_mode",
    "exit_plan_mode",
    "enter_worktree",
    "exit_worktree",
    "cron_create",
    "cron_delete",
    "cron_list",
    "loop_wakeup",
    "monitor",
    "send_message",
    "report_findings",
    "record_artifact",
)
_SLUG = re.compile(r"[^a-zA-Z0-9]")
_RULE = re.compile(r"(?P<tool>[\w*.-]+)(?::(?P<pattern>.+)|\((?P<quoted>.*)\))?", re.DOTALL)


def launch(ctx: LaunchContext) -> Launch:
    env = {
        "OPENAI_BASE_URL": f"{ctx.model_url}/v1",
        "OPENAI_API_KEY": ctx.token,
        "OPENAI_MODEL": ctx.model,
        "QWEN_CODE_NO_RELAUNCH": "1",
        "QWEN_CODE_LEGACY_MCP_BLOCKING": "1",  # else its first call of the model may come before their tools
        "QWEN_CODE_SYSTEM_SETTINGS_PATH": f"{ctx.files_dir}/qwen.json",  # what it says counts, whatever a project says
    }
    files = {f"{ctx.files_dir}/qwen.json": json.dumps(settings(ctx)), f"{ctx.home}/.qwen/settings.json": "{}"}
    links: dict[str, str] = {}
    if not ctx.confined:
        # It keeps a project's chats in a folder named after the working directory, which is not everywhere the same.
        env["QWEN_RUNTIME_DIR"] = f"{ctx.files_dir}/qwen"
        links[f"{ctx.files_dir}/qwen/projects/{_SLUG.sub('-', ctx.workdir)}"] = f"{ctx.home}/.qwen/project"
        files[f"{ctx.home}/.qwen/project/.here"] = ""
    if ctx.instructions:
        files[f"{ctx.home}/.qwen/QWEN.md"] = ctx.instructions
    # Where it keeps which folders are trusted, and what an agent may have given itself.
    clear = [
        f"{ctx.home}/.qwen/{name}" for name in ("trustedFolders.json", "skills", "agents", "commands", "extensions")
    ]
    clear += [] if ctx.instructions else [f"{ctx.home}/.qwen/QWEN.md"]
    return Launch(ctx.program, env, files, clear=tuple(clear), links=links)


def settings(ctx: LaunchContext) -> dict[str, Any]:
    """Its configuration. In a project that it does not trust it would start no MCP server; so it trusts each."""
    off = [*ctx.deny, *ctx.disable_tools]
    if ctx.permissions in ("edit", "read-only"):
        off += [*_NETWORK, *(() if ctx.confined else ("bash",))]
    if ctx.permissions == "read-only":
        off += _WRITERS
    return {
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "disableAllHooks": True,
        "general": {"enableAutoUpdate": False},
        "ui": {"enableFollowupSuggestions": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
        "context": {"fileName": ["QWEN.md", "AGENTS.md", "CLAUDE.md"]},
        # It would hide the caller's tools behind a search, and pictures from a model that it does not know.
        "tools": {"toolSearch": {"enabled": False}},
        "model": {"name": ctx.model, "generationConfig": {"modalities": {"image": True}}},
        "permissions": {"deny": [*_UNATTENDED, *native_rules(off)], "allow": native_rules(ctx.allow)},
    }


def native_rules(rules: Iterable[str]) -> list[str]:
    """Rules in the words of Qwen Code: ``bash:git *`` is ``run_shell_command(git *)``."""
    out = []
    for rule in rules:
        if not (found := _RULE.fullmatch(rule.strip())):
            raise ValueError(f"{rule!r} is not a rule: write a tool's name, or name:pattern.")
        pattern = found["pattern"] or found["quoted"]
        names = _NATIVE.get(found["tool"], (found["tool"],))
        out += [f"{name}({pattern})" if pattern else name for name in names]
    return out


def on_permission(ctx: LaunchContext) -> str:
    """What becomes of what it asks for: for each change, in the one mode that it is in."""
    if ctx.permissions == "ask":
        return "ask"
    return "allow" if ctx.permissions == "full" or ctx.confined else "reject"


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

    tool_names = frozenset(_NATIVE) | {name for names in _NATIVE.values() for name in names}
    install = "`npm install -g @qwen-code/qwen-code` (Node 22 or newer)"
    id_pattern = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    project_code = (".qwen",)
    native_files = (
        NativeFile(".qwen/project/chats/{id}.jsonl", "jsonl", moved="cwd"),
        NativeFile(".qwen/projects/*/chats/{id}.jsonl", "jsonl", moved="cwd"),
    )
    dialect = Dialect(mode=mode, permission=on_permission, plain=plain, stops_when_denied=True)
    capabilities = Capabilities(
        permissions=("full", "read-only", "ask"),
        approvals=True,
        history=True,
        instructions=True,
        tools=True,
        mcp_servers=True,
        disable_tools=True,
        allow_deny=True,
        max_turns=True,
        images=True,
        portable=True,
        questions="tool",
        repeats_cut_calls=False,
        reasons={
            "repeats_cut_calls": "it ends its turn when an answer that has begun breaks off",
            "edit": "its file tools are not confined to the workspace",
            "steer": STEER,
            "effort": "it has no such setting for a model that it does not know",
            "fork": FORK,
        },
    )

    def launch(self, ctx: LaunchContext) -> Launch:
        return launch(ctx)

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return history(files, native_id)
