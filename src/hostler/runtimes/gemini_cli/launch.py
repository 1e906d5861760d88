"""How Gemini CLI is started: its settings above all others, its rules as an administrator's policy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hostler.types.runtime import Launch, LaunchContext, start_timeout

HOST_SERVER = "host"
HOST_PREFIX = "mcp_host_"
PROJECT = "hostler"  # how it calls the workspace among its own files, wherever that is
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
# They need somebody at the terminal, change how it works, or write where the next start would read.
_NEVER = ("ask_user", "enter_plan_mode", "exit_plan_mode", "save_memory", "activate_skill")
_ABOUT = "(?:file_path|dir_path|path|pattern|query|url|prompt)"
_HOST_SECONDS = 30.0
_DAY = 24 * 3600 * 1000
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
    ".gemini/AGENTS.md",
    ".gemini/GEMINI.md",
    ".gemini/settings.json",
    ".gemini/trustedFolders.json",
)


def launch(ctx: LaunchContext) -> Launch:
    """Arguments, environment and files for one process that takes many turns on stdin."""
    settings, policy = f"{ctx.files_dir}/gemini/settings.json", f"{ctx.files_dir}/gemini/rules.toml"
    argv = [*ctx.program, "--acp", "--model", ctx.model, "--extensions", "none", "--admin-policy", policy]
    argv += ["--approval-mode", "yolo" if ctx.permissions == "full" else "default"]
    # Named here, a project's own servers are not started, whatever they are called.
    argv += ["--allowed-mcp-server-names", ",".join(servers(ctx)) or "none"]
    if ctx.permissions in ("edit", "full") and ctx.beside:
        argv += ["--include-directories", ",".join(ctx.beside)]
    files = {
        settings: json.dumps(_settings(ctx)),
        policy: rules(ctx),
        f"{ctx.home}/.gemini/projects.json": json.dumps({"projects": {ctx.workdir: PROJECT}}),
        f"{ctx.home}/.gemini/tmp/{PROJECT}/.project_root": ctx.workdir,
        f"{ctx.home}/.gemini/history/{PROJECT}/.project_root": ctx.workdir,
    }
    if ctx.instructions:
        files[f"{ctx.home}/.gemini/GEMINI.md"] = ctx.instructions
    env = {
        "GEMINI_API_KEY": ctx.token,
        "GOOGLE_GEMINI_BASE_URL": ctx.model_url,
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": settings,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",  # it connects to no MCP server otherwise
        "GEMINI_CLI_NO_RELAUNCH": "1",
        "GEMINI_TELEMETRY_ENABLED": "false",
        "NODE_DISABLE_COMPILE_CACHE": "1",  # an agent could put its own code into that cache
    }
    return Launch(tuple(argv), env, files, clear=tuple(f"{ctx.home}/{path}" for path in _CLEARED))


def _settings(ctx: LaunchContext) -> dict[str, Any]:
    """They win over those of the project and of the home."""
    return {
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "checkpointing": {"enabled": False},
            "plan": {"enabled": False},
            "sessionRetention": {"enabled": False},  # hostler keeps sessions, not it
            "maxAttempts": 4,  # of a stream that was cut; the endpoint repeats what fails
            "retryFetchErrors": True,
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {
            "auth": {"selectedType": "gemini-api-key"},
            "folderTrust": {"enabled": False},
            "environmentVariableRedaction": {"enabled": False},
            "enablePermanentToolApproval": False,
        },
        "context": {"fileName": ["GEMINI.md", "AGENTS.md"], "loadMemoryFromIncludeDirectories": False},
        "model": {"name": ctx.model, "skipNextSpeakerCheck": True, "disableLoopDetection": True},
        "tools": {
            "discoveryCommand": "",
            "callCommand": "",
            "allowed": [],
            "sandbox": False,
            "shell": {"enableInteractiveShell": False},
        },
        "mcp": {"serverCommand": ""},
        "mcpServers": servers(ctx),
        "hooksConfig": {"enabled": False},
        "skills": {"enabled": False},
        "ide": {"enabled": False},
        "advanced": {"ignoreLocalEnv": True, "autoConfigureMemory": False},
        "experimental": {"enableAgents": ctx.permissions == "full", "autoMemory": False, "extensionManagement": False},
    }


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


def servers(ctx: LaunchContext) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for safe, name in server_names(ctx).items():
        if ctx.tool_url and safe == HOST_SERVER:
            headers = {"Authorization": f"Bearer {ctx.tool_token}"}
            out[safe] = _server({"url": ctx.tool_url, "headers": headers}, _DAY)
        else:
            spec = ctx.mcp_servers[name]
            # Its one time limit holds for the start and for each call.
            out[safe] = _server(spec, int(1000 * start_timeout(spec)) if "start_timeout" in spec else None)
    return out


def _server(spec: Mapping[str, Any], timeout: int | None) -> dict[str, Any]:
    out: dict[str, Any] = {"timeout": timeout} if timeout is not None else {}
    if url := spec.get("url"):
        return {**out, "httpUrl": url, "headers": dict(spec.get("headers") or {})}
    return {**out, "command": spec["command"], "args": list(spec.get("args") or ()), "env": dict(spec.get("env") or {})}


# ---- rules ----------------------------------------------------------------------------------------------------------


def rules(ctx: LaunchContext) -> str:
    """The policy; of the rules that match, the one with the highest priority holds. An administrator's stands above all
    that a project or a home says."""
    out = [_rule("deny", 999, tool=_NEVER), _rule("allow", 700, mcp=HOST_SERVER)]
    match ctx.permissions:
        case "full":
            out.append(_rule("allow", 1, tool="*"))
        case "ask":
            # What a sub-agent asks reaches nobody.
            out += [_rule("ask_user", 1, tool="*"), _rule("deny", 600, tool=("invoke_agent",))]
        case "edit":
            out += [_rule("deny", 1, tool="*"), _rule("allow", 500, tool=_WRITES)]
        case "read-only":
            out.append(_rule("deny", 1, tool="*"))
    if ctx.permissions != "full":
        out.append(_rule("allow", 500, tool=_READS))
    if ctx.permissions in ("edit", "read-only") and ctx.confined:
        out.append(_rule("allow", 500, tool=(_SHELL,)))
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
    tool: str | Iterable[str] | None = None,
    mcp: str | None = None,
    regex: tuple[str, str] | None = None,
) -> str:
    lines = ["[[rule]]"]
    if tool is not None:
        lines.append(f"toolName = {json.dumps(tool if isinstance(tool, str) else list(tool))}")
    if mcp is not None:
        lines.append(f"mcpName = {json.dumps(mcp)}")
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
