"""How Gemini CLI is started: its settings written anew, its rules as an administrator's policy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hostler.types.runtime import Launch, LaunchContext

HOST_SERVER = "host"
HOST_PREFIX = "mcp_host_"
PROJECT = "hostler"  # how it calls the workspace among its own files, wherever that is
INSTRUCTIONS = "HOSTLER.md"
CHATS = f".gemini/tmp/{PROJECT}/chats"
NAMES = {
    "bash": "run_shell_command",
    "read": "read_file",
    "write": "write_file",
    "edit": "replace",
    "glob": "glob",
    "grep": "grep_search",
    "ls": "list_directory",
    "web_search": "google_web_search",
    "web_fetch": "web_fetch",
}
"""hostler's names of tools, to Gemini CLI's."""

_SHELL = "run_shell_command"
_READS = ("read_file", "read_many_files", "glob", "grep_search", "search_file_content", "list_directory")
_WRITES = ("write_file", "replace")
_CHANGES = (*_WRITES, _SHELL, "web_fetch", "google_web_search", "list_background_processes", "read_background_output")
# They need somebody at the terminal, change how it works, or write where the next start would read.
_NEVER = ("ask_user", "enter_plan_mode", "exit_plan_mode", "save_memory", "activate_skill", "invoke_agent")
_SIDE_JOBS: dict[str, tuple[str, ...]] = {
    "classifier": (),
    "edit-corrector": (),
    "fast-ack-helper": (),
    "agent-history-provider-summarizer": (),
    "context-snapshotter": (),
    "llm-edit-fixer": (),
    "loop-detection": (),
    "loop-detection-double-check": (),
    "next-speaker-checker": (),
    "prompt-completion": (),
    "summarizer-default": (),
    "summarizer-shell": (),
    "web-fetch": ("urlContext",),
    "web-fetch-fallback": (),
    "web-search": ("googleSearch",),
    **{
        f"chat-compression-{of}": ()
        for of in ("default", "3-pro", "3-flash", "3.1-flash-lite", "2.5-pro", "2.5-flash", "2.5-flash-lite")
    },
}
"""What it asks a model beside the conversation, and with which of the model's own tools."""
_ABOUT = "(?:file_path|dir_path|path|pattern|query|url|prompt)"
_RULE = re.compile(r"(?P<tool>[\w*.-]+)(?::(?P<pattern>.+)|\((?P<quoted>.*)\))?", re.DOTALL)
# Places of the home from which it would take rights, code, or words.
_CLEARED = (
    ".env",
    ".agents",
    ".gemini/.env",
    ".gemini/agents",
    ".gemini/commands",
    ".gemini/extensions",
    ".gemini/policies",
    ".gemini/skills",
    ".gemini/HOSTLER.md",
    ".gemini/trustedFolders.json",
)


def launch(ctx: LaunchContext) -> Launch:
    """Arguments, environment and files for one process that takes many turns on stdin."""
    policy = f"{ctx.files_dir}/gemini/rules.toml"
    argv = [*ctx.program, "--acp", "--model", ctx.model, "--extensions", "none", "--admin-policy", policy]
    argv += ["--approval-mode", "yolo" if ctx.permissions == "full" else "default"]
    # A project's own servers are not started: those of these names are told with the session.
    argv += ["--allowed-mcp-server-names", ",".join(server_names(ctx)) or "none"]
    argv += ["--debug"]  # else it keeps to itself what its shell printed
    if ctx.permissions in ("edit", "full") and ctx.beside:
        argv += ["--include-directories", ",".join(ctx.beside)]
    files = {
        f"{ctx.home}/.gemini/settings.json": json.dumps(_settings(ctx)),
        policy: rules(ctx),
        f"{ctx.home}/.gemini/projects.json": json.dumps({"projects": {ctx.workdir: PROJECT}}),
        f"{ctx.home}/.gemini/tmp/{PROJECT}/.project_root": ctx.workdir,
        f"{ctx.home}/.gemini/history/{PROJECT}/.project_root": ctx.workdir,
    }
    if ctx.instructions:
        files[f"{ctx.home}/.gemini/{INSTRUCTIONS}"] = ctx.instructions
    env = {
        "GEMINI_API_KEY": ctx.token,
        "GOOGLE_GEMINI_BASE_URL": ctx.model_url,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",  # it connects to no MCP server otherwise
        "GEMINI_CLI_NO_RELAUNCH": "1",
        "GEMINI_TELEMETRY_ENABLED": "false",
        "NODE_DISABLE_COMPILE_CACHE": "1",  # an agent could put its own code into that cache
    }
    return Launch(tuple(argv), env, files, clear=tuple(f"{ctx.home}/{path}" for path in _CLEARED))


def _settings(ctx: LaunchContext) -> dict[str, Any]:
    return {
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "checkpointing": {"enabled": False},
            "plan": {"enabled": False},
            "topicUpdateNarration": False,
            "sessionRetention": {"enabled": False},  # hostler keeps sessions, not it
            "maxAttempts": 1,  # the endpoint repeats what fails; a stream that was cut it repeats in no case
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {
            "auth": {"selectedType": "gemini-api-key"},
            "folderTrust": {"enabled": False},
            "environmentVariableRedaction": {"enabled": False},
            "enablePermanentToolApproval": False,
        },
        # The project's instructions are among those that hostler gives it: it reads its own only now and then.
        "context": {"fileName": [INSTRUCTIONS], "loadMemoryFromIncludeDirectories": False},
        "model": {"name": ctx.model, "skipNextSpeakerCheck": True, "disableLoopDetection": True},
        "tools": {
            "discoveryCommand": "",
            "callCommand": "",
            "allowed": [],
            "sandbox": False,
            "shell": {"enableInteractiveShell": False},
        },
        "mcp": {"serverCommand": ""},
        "hooksConfig": {"enabled": False},
        "skills": {"enabled": False},
        "ide": {"enabled": False},
        "advanced": {"ignoreLocalEnv": True, "autoConfigureMemory": False},
        "experimental": {"enableAgents": False, "autoMemory": False, "extensionManagement": False},
        "modelConfigs": {"customAliases": {name: _side_job(ctx, *more) for name, more in _SIDE_JOBS.items()}},
    }


def _side_job(ctx: LaunchContext, *tools: str) -> dict[str, Any]:
    """A call of its own, asked of the session's model: no other one may be."""
    config: dict[str, Any] = {"tools": [{tool: {}} for tool in tools]} if tools else {}
    return {"extends": "base", "modelConfig": {"model": ctx.model, "generateContentConfig": config}}


# ---- MCP servers ----------------------------------------------------------------------------------------------------


def server_names(ctx: LaunchContext) -> dict[str, str]:
    """Gemini CLI's names of the MCP servers, to the caller's: with an underscore in a name its rules read it wrong."""
    names: dict[str, str] = {HOST_SERVER: HOST_SERVER} if ctx.tool_url else {}
    if ctx.permissions in ("full", "ask"):
        for name in ctx.mcp_servers:
            safe = re.sub(r"[^A-Za-z0-9-]", "-", name) or "-"
            while safe in names:
                safe += "-"
            names[safe] = name
    return names


def renamed(ctx: LaunchContext) -> LaunchContext:
    """The same, with the servers under Gemini CLI's names and without those that the rules keep out."""
    names = server_names(ctx)
    return replace(
        ctx, mcp_servers={safe: ctx.mcp_servers[name] for safe, name in names.items() if safe != HOST_SERVER}
    )


# ---- rules ----------------------------------------------------------------------------------------------------------


def rules(ctx: LaunchContext) -> str:
    """The policy; of the rules that match, the one with the highest priority holds. An administrator's stands above all
    that a project or a home says."""
    out = [_rule("deny", 999, tool=_NEVER)]
    if ctx.permissions == "full":
        out.append(_rule("allow", 1, tool="*"))
    else:
        # What is not named is asked for: under "edit" and "read-only" of hostler, which allows the app's own tools only.
        out += [_rule("ask_user", 1, tool="*"), _rule("allow", 500, tool=_READS)]
    if ctx.permissions in ("edit", "read-only"):
        free = (*(_WRITES if ctx.permissions == "edit" else ()), *((_SHELL,) if ctx.confined else ()))
        out.append(_rule("deny", 500, tool=[tool for tool in _CHANGES if tool not in free]))
        out += [_rule("allow", 500, tool=free)] if free else []
    out += [_given("allow", 800, rule) for rule in ctx.allow]
    out += [_given("deny", 900, rule) for rule in (*ctx.deny, *ctx.disable_tools)]
    return "\n".join(out)


def _given(decision: str, priority: int, rule: str) -> str:
    """A rule of the caller: ``bash``, ``bash:git *`` or ``bash(git *)``."""
    if not (found := _RULE.fullmatch(rule.strip())):
        raise ValueError(f"{rule!r} is not a rule: write a tool's name, or name:pattern.")
    tool, pattern = NAMES.get(found["tool"], found["tool"]), found["pattern"] or found["quoted"]
    if not pattern or pattern == "*":
        return _rule(decision, priority, tool=(tool,))
    # It is compared with the arguments as JSON: an end of the text is an end of the string there.
    like = ".*".join(re.escape(json.dumps(part)[1:-1]) for part in pattern.split("*"))
    if tool == _SHELL:
        return _rule(decision, priority, tool=(tool,), regex=("commandRegex", f'{like}"'))
    return _rule(decision, priority, tool=(tool,), regex=("argsPattern", f'"{_ABOUT}":"{like}"'))


def _rule(
    decision: str,
    priority: int,
    *,
    tool: str | Iterable[str],
    regex: tuple[str, str] | None = None,
) -> str:
    lines = ["[[rule]]", f"toolName = {json.dumps(tool if isinstance(tool, str) else list(tool))}"]
    if regex is not None:
        lines.append(f"{regex[0]} = {json.dumps(regex[1])}")
    lines += [f"decision = {json.dumps(decision)}", f"priority = {priority}"]
    if decision == "allow":
        lines.append("allowRedirection = true")
    return "\n".join(lines) + "\n"


def on_permission(ctx: LaunchContext) -> str:
    """What it still asks for: only in one mode is somebody there to answer."""
    if ctx.permissions == "ask":
        return "ask"
    return "allow" if ctx.permissions == "full" else "reject"
