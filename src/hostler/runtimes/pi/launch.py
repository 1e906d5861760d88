"""How Pi is started: its configuration written anew, and nothing of the project's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hostler.runtimes.pi import rules
from hostler.types.errors import CapabilityUnsupported
from hostler.types.runtime import Launch, LaunchContext, start_timeout

PROVIDER = "hostler"
SESSIONS = ".pi/sessions"
AGENT_DIR = ".pi/agent"
MARK = "\u2063hostler\u2063"  # before a prompt that Pi would take for a command; its extension takes it off
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")

_EXTENSION = Path(__file__).with_name("extension.js").read_text(encoding="utf-8")
_HOST = "host"
_HOST_SECONDS = 30.0
_DAY = 24 * 3600


def launch(ctx: LaunchContext) -> Launch:
    """Arguments, environment and files for one process that takes many turns on stdin."""
    # Pi writes into the folder of its configuration, so it lies in the home; what an agent left there is removed first.
    # What holds the rules lies where a confined agent cannot write.
    agent_dir, folder = f"{ctx.home}/{AGENT_DIR}", f"{ctx.files_dir}/pi"
    argv = [*ctx.program, "--mode", "rpc", "--session-dir", f"{ctx.home}/{SESSIONS}"]
    if ctx.resume:
        argv += ["--session", ctx.resume]
    elif ctx.new_id:
        argv += ["--session-id", ctx.new_id]
    argv += ["--thinking", _effort(ctx)]
    # Nothing is loaded but what is named here: neither of the project nor of what an agent left.
    argv += ["--no-approve", "--no-extensions", "--no-prompt-templates", "--no-themes", "--no-skills"]
    argv += ["--extension", f"{folder}/hostler.js"]
    if servers(ctx):
        argv += ["--extension", "builtin:mcp"]
    if ctx.skills:
        argv += ["--skill", ctx.skills]
    files = {
        f"{folder}/hostler.js": extension(ctx),
        f"{agent_dir}/models.json": json.dumps(_models(ctx)),
        f"{agent_dir}/settings.json": json.dumps(_settings(ctx)),
    }
    if ctx.instructions:
        files[f"{folder}/instructions.md"] = ctx.instructions
        argv += ["--append-system-prompt", f"{folder}/instructions.md"]
    argv += rules.arguments(ctx)
    env = {
        "PI_CODING_AGENT_DIR": agent_dir,
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
        "PI_SKIP_VERSION_CHECK": "1",
        # An agent could put its own code into these caches, which lie where it may write.
        "JITI_FS_CACHE": "false",
        "NODE_DISABLE_COMPILE_CACHE": "1",
    }
    return Launch(tuple(argv), env, files, clear=(agent_dir,))


def extension(ctx: LaunchContext) -> str:
    """The text of hostler's extension, with this session's rules."""
    held = {**rules.for_extension(ctx), "mark": MARK, "servers": servers(ctx)}
    return f"const RULES = {json.dumps(held)};\n{_EXTENSION}"


def server_names(ctx: LaunchContext) -> dict[str, str]:
    """Pi's names of the MCP servers, to the caller's: it knows only letters, digits and underscores."""
    names: dict[str, str] = {_HOST: _HOST} if ctx.tool_url else {}
    for name in ctx.mcp_servers:
        safe = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
        while safe in names:
            safe += "_"
        names[safe] = name
    return names


def servers(ctx: LaunchContext) -> dict[str, Any]:
    """The MCP servers: how each is reached, and in how many seconds it must have started."""
    out: dict[str, Any] = {}
    for safe, name in server_names(ctx).items():
        if ctx.tool_url and safe == _HOST:
            headers = {"Authorization": f"Bearer {ctx.tool_token}"}
            out[safe] = {"config": _server({"url": ctx.tool_url, "headers": headers}), "seconds": _HOST_SECONDS}
        else:
            spec = ctx.mcp_servers[name]
            out[safe] = {"config": _server(spec), "seconds": start_timeout(spec)}
    return out


def _server(spec: Mapping[str, Any]) -> dict[str, Any]:
    # The model is told of its tools as of Pi's own. How long a call may take is the server's affair.
    out: dict[str, Any] = {"exposure": "direct", "timeout": _DAY}
    if url := spec.get("url"):
        return {**out, "url": url, "headers": _literal(spec.get("headers"))}
    return {**out, "command": spec["command"], "args": list(spec.get("args") or ()), "env": _literal(spec.get("env"))}


def _literal(values: Mapping[str, str] | None) -> dict[str, str]:
    """Values that Pi neither fills in nor runs."""
    out = {name: value.replace("$", "$$") for name, value in (values or {}).items()}
    return {name: f"${value}" if value.startswith("!") else value for name, value in out.items()}


def _effort(ctx: LaunchContext) -> str:
    if ctx.effort is None:
        return "off"
    if ctx.effort not in EFFORTS:
        raise CapabilityUnsupported(f"Pi knows the efforts {', '.join(EFFORTS)}, not {ctx.effort!r}.")
    return ctx.effort


def _models(ctx: LaunchContext) -> dict[str, Any]:
    model: dict[str, Any] = {"id": ctx.model, "name": ctx.model, "input": ["text", "image"]}
    # Only a model that can reason may be asked for an effort.
    model["reasoning"] = ctx.effort is not None
    model["thinkingLevelMap"] = {level: level for level in EFFORTS}
    limit = ctx.options.get("limit") or {}
    if "context" in limit:
        model["contextWindow"] = limit["context"]
    if "output" in limit:
        model["maxTokens"] = limit["output"]
    provider = {
        "baseUrl": f"{ctx.model_url}/v1",
        "apiKey": ctx.token,
        "api": "openai-completions",
        "compat": {"supportsDeveloperRole": False, "supportsStore": False, "supportsReasoningEffort": True},
        "models": [model],
    }
    return {"providers": {PROVIDER: provider}}


def _settings(ctx: LaunchContext) -> dict[str, Any]:
    return {
        "defaultProvider": PROVIDER,
        "defaultModel": ctx.model,
        "defaultProjectTrust": "never",
        "enableInstallTelemetry": False,
        "enableAnalytics": False,
        "cacheWarming": "off",
        "steeringMode": "all",
        # The endpoint repeats what fails, and decides how long a model may take; a stream that was cut is Pi's to repeat.
        "httpIdleTimeoutMs": 0,
        "retry": {"enabled": True, "maxRetries": 4, "baseDelayMs": 100, "provider": {"maxRetries": 0}},
    }
