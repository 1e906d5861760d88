"""How OpenCode is started: its environment, its configuration, its permissions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hostler.runtimes.failures import http_failure
from hostler.runtimes.jsonrpc import error_text
from hostler.types.result import ErrorInfo
from hostler.types.runtime import Launch, LaunchContext

PROVIDER = "hostler"
HOST_SERVER = "host"
HOST_PREFIX = "host_"
DATABASE = ".local/share/opencode/opencode.db"
DAY = 24 * 3600 * 1000
PLUGIN = "@opencode-ai/plugin"

_READS = ("read", "glob", "grep", "list", "skill", "todowrite", "todoread")
_AGENTS = ("build", "general", "explore", "plan")  # those that a model call can run as
_NATIVE = {"write": "edit", "ls": "list", "web_search": "websearch", "web_fetch": "webfetch"}
_PATHS = ("edit", "read", "list")  # what is asked for is a path
_BEFORE = ("* ", "*/", "\\", "*'", '*"')  # in front of a command: env, a path, a backslash, the quotes of another shell
_UNAVAILABLE = re.compile(r'message="server unavailable" key=(?:"([^"]*)"|(\S+)) .*status=failed')
_RULE = re.compile(r"(?P<tool>[\w*.-]+)(?::(?P<pattern>.+)|\((?P<quoted>.+)\))?", re.DOTALL)


def launch(ctx: LaunchContext) -> Launch:
    # Outside of the home: what an agent leaves where configuration is read from (plugins, tools, agents) would be run.
    config_dir = f"{ctx.files_dir}/config/opencode"
    env = {
        "XDG_DATA_HOME": f"{ctx.home}/.local/share",
        "XDG_CONFIG_HOME": f"{ctx.files_dir}/config",
        "OPENCODE_TEST_HOME": ctx.files_dir,  # where it looks for ~/.opencode
        "XDG_STATE_HOME": f"{ctx.home}/.local/state",
        "XDG_CACHE_HOME": f"{ctx.home}/.cache",
        "OPENCODE_DB": f"{ctx.home}/{DATABASE}",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
        "OPENCODE_PURE": "1",
        # Read last, so that agents described by files do not get more.
        "OPENCODE_CONFIG_CONTENT": json.dumps(rules(ctx)),
    }
    files = {
        f"{config_dir}/opencode.json": json.dumps(config(ctx)),
        # The look of an installed plugin library, which OpenCode would fetch at each first start (98 MB).
        f"{config_dir}/package.json": json.dumps({"dependencies": {PLUGIN: "*"}}),
        f"{config_dir}/package-lock.json": json.dumps({"packages": {"": {"dependencies": {PLUGIN: "*"}}}}),
        f"{config_dir}/node_modules/.package-lock.json": "{}",
        f"{config_dir}/.gitignore": "node_modules\n",  # which it would write: a confined program may not write here
    }
    if ctx.instructions:
        files[_instructions(ctx)] = ctx.instructions
    # It tells of servers that do not start nowhere else.
    logs = ("--print-logs", "--log-level", "WARN") if ctx.mcp_servers or ctx.tool_url else ()
    return Launch((*ctx.program, "acp", *logs), env, files)


def config(ctx: LaunchContext) -> dict[str, Any]:
    """OpenCode's configuration, but for the rules."""
    model: dict[str, Any] = {
        "name": ctx.model,
        "attachment": True,
        "tool_call": True,
        "modalities": {"input": ["text", "image"], "output": ["text"]},
    }
    if ctx.effort:
        model["options"] = {"reasoningEffort": ctx.effort}
    if limit := ctx.options.get("limit"):
        model["limit"] = dict(limit)
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        # The endpoint decides how long a model may take.
        "options": {"baseURL": f"{ctx.model_url}/v1", "apiKey": ctx.token, "timeout": False},
        "models": {ctx.model: model},
    }
    # Project configuration is off, and with it the project's instructions: so these are named here.
    instructions = [f"{ctx.workdir}/AGENTS.md", f"{ctx.workdir}/CLAUDE.md"]
    if ctx.instructions:
        instructions.append(_instructions(ctx))
    # Formatters and language servers come out of the project and run without being asked for.
    quiet = {} if ctx.permissions == "full" else {"formatter": False, "lsp": False}
    return {
        **quiet,
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "model": f"{PROVIDER}/{ctx.model}",
        "small_model": f"{PROVIDER}/{ctx.model}",
        "enabled_providers": [PROVIDER],
        "provider": {PROVIDER: provider},
        "instructions": instructions,
        "mcp": _servers(ctx),
        **({"skills": {"paths": [ctx.skills]}} if ctx.skills else {}),
        "experimental": {"continue_loop_on_deny": True},
    }


def rules(ctx: LaunchContext) -> dict[str, Any]:
    allowed = permission(ctx)
    agents = {name: {"permission": allowed} for name in _AGENTS}
    title = {"disable": True}  # it costs a model call of its own
    return {"permission": allowed, "default_agent": "build", "agent": {**agents, "title": title}}


def permission(ctx: LaunchContext) -> dict[str, Any]:
    """OpenCode's permissions; of the rules that match, the last one holds."""
    reads = dict.fromkeys(_READS, "allow")
    host = {f"{HOST_PREFIX}*": "allow"}  # the tool server itself asks and refuses
    # In a confined place the shell, and what lies outside of the workspace, are held by the system.
    held = "allow" if ctx.confined else "deny"
    out: dict[str, Any]
    match ctx.permissions:
        case "full":
            out = {"*": "allow", "external_directory": "allow", "doom_loop": "allow"}
        case "read-only":
            out = {"*": "deny", **reads, "bash": held, "external_directory": "allow", **host}
        case "edit":
            edit = {"*": "allow", **_unwritten(ctx)} if ctx.skills else "allow"
            out = {
                "*": "deny",
                **reads,
                "edit": edit,
                "bash": held,
                "external_directory": _outside(ctx, held, *ctx.beside),
                **host,
            }
        case "ask":
            # What a sub-agent asks reaches nobody: its turn would hang.
            outside = _outside(ctx, "ask", *ctx.beside)
            out = {"*": "ask", **reads, "external_directory": outside, "doom_loop": "deny", "task": "deny", **host}
    _add(out, ctx.allow, "allow", ctx.workdir)
    _add(out, ctx.deny, "deny", ctx.workdir)
    _add(out, ctx.disable_tools, "deny", ctx.workdir)
    return out


def _outside(ctx: LaunchContext, action: str, *folders: str) -> Any:
    """What becomes of paths outside the workspace: those of skills may be read, and ``folders`` be used."""
    allowed = {f"{folder}/*": "allow" for folder in (*folders, ctx.skills) if folder}
    return {"*": action, **allowed} if allowed else action


def _unwritten(ctx: LaunchContext) -> dict[str, str]:
    """Skills are not changed. What is edited is named from the project's root, wherever that is: the end tells."""
    *_, session, folder = f"/{ctx.skills}".split("/")
    return {f"*{session}/{folder}/*": "deny"} if session else {}


def _add(out: dict[str, Any], given: Iterable[str], action: str, workdir: str) -> None:
    """Rules of the caller: ``bash``, ``bash:git *`` or ``bash(git *)``."""
    for rule in given:
        if not (found := _RULE.fullmatch(rule.strip())):
            raise ValueError(f"{rule!r} is not a rule: write a tool's name, or name:pattern.")
        tool = found["tool"].lower() if found["tool"].lower() in _NATIVE else found["tool"]
        tool = _NATIVE.get(tool, tool)
        pattern = found["pattern"] or found["quoted"]
        before = out.pop(tool, None)
        if not pattern:
            out[tool] = action
        else:
            if before is None:
                before = out.get("*", "ask")
            patterns = before if isinstance(before, Mapping) else {"*": before}
            meant = _meant(tool, pattern, action, workdir)
            out[tool] = {**{p: a for p, a in patterns.items() if p not in meant}, **dict.fromkeys(meant, action)}


def _meant(tool: str, pattern: str, action: str, workdir: str) -> list[str]:
    """A caller's pattern as OpenCode compares it: with paths named from the project's root, which may be any folder above
    the workspace, and with each command of a line as it is written. What is denied is denied behind another word, too."""
    if tool in _PATHS and not pattern.startswith(("/", "*", "~")):
        parts = workdir.strip("/").split("/")
        return [
            pattern,
            *("/".join([*parts[at:], pattern]) for at in reversed(range(len(parts)))),
            f"{workdir}/{pattern}",
        ]
    if tool in _PATHS and pattern.startswith("/"):
        return [pattern, pattern[1:]]
    if tool == "bash" and action == "deny" and not pattern.startswith("*"):
        return [pattern, *(before + pattern for before in _BEFORE)]
    return [pattern]


def on_permission(ctx: LaunchContext) -> str:
    """What OpenCode still asks for: only in one mode is somebody there to answer."""
    if ctx.permissions == "ask":
        return "ask"
    return "allow" if ctx.permissions == "full" else "reject"


def _servers(ctx: LaunchContext) -> dict[str, Any]:
    # Its one time limit holds for the start and for each call.
    servers = {
        name: _server({**spec, "timeout": int(1000 * spec["start_timeout"])} if "start_timeout" in spec else spec)
        for name, spec in ctx.mcp_servers.items()
    }
    if ctx.tool_url:
        servers[HOST_SERVER] = _server(
            {"url": ctx.tool_url, "headers": {"Authorization": f"Bearer {ctx.tool_token}"}, "timeout": DAY}
        )
    return servers


def _server(spec: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"timeout": spec["timeout"]} if spec.get("timeout") else {}
    if url := spec.get("url"):
        return {**out, "type": "remote", "url": url, "headers": dict(spec.get("headers") or {}), "oauth": False}
    command = [spec["command"], *(spec.get("args") or ())]
    return {**out, "type": "local", "command": command, "environment": dict(spec.get("env") or {})}


def _instructions(ctx: LaunchContext) -> str:
    return f"{ctx.files_dir}/instructions.md"


def failed_server(line: str) -> str | None:
    """The MCP server that did not start, if the line of the program's log says so."""
    found = _UNAVAILABLE.search(line)
    return found[1] or found[2] if found else None


def failure(message: dict[str, Any]) -> ErrorInfo:
    """Why a turn failed. OpenCode tells the provider's words, not its status."""
    error = message.get("error")
    data = error.get("data") if isinstance(error, dict) else None
    text = error_text(message).removeprefix("Internal error: ")
    match data.get("errorName") if isinstance(data, dict) else None:
        case "APIError":
            return http_failure(None, text)
        case "ProviderAuthError":
            return http_failure(401, text)
        case "ContextOverflowError":
            return ErrorInfo("context_exceeded", text)
    return ErrorInfo("program_error", text)
