"""How Codex is found and started: its command, its environment, its configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from hostler.runtimes import programs
from hostler.types.errors import CapabilityUnsupported
from hostler.types.runtime import Launch, LaunchContext, start_timeout

MODEL_KEY = "HOSTLER_MODEL_KEY"
TOOL_KEY = "HOSTLER_TOOL_KEY"
PROVIDER = "hostler"
HOST_SERVER = "host"
DAY = 24 * 3600

# Off: what fetches, phones home, is configured from outside, goes on by itself after the end of a turn (goals), or waits
# for a network without end.
_FEATURES_OFF = (
    "apps",
    "daemon_auto_start",
    "goals",
    "hooks",
    "memories",
    "plugins",
    "remote_plugin",
    "tool_suggest",
    "unbounded_connection_retries",
)
_QUESTIONS = "default_mode_request_user_input"
_FEATURE_OF_TOOL = {"bash": "shell_tool", "view_image": "view_image", "task": "multi_agent", "question": _QUESTIONS}


def find(options: Mapping[str, Any], which: Callable[[str], str | None]) -> tuple[str, ...]:
    """The Codex that the caller names, the one of the extra's package, or the one on PATH."""
    if program := programs.given(options):
        return program
    if path := programs.bundled("codex_cli_bin", "bin", "codex") or which("codex"):
        return (path,)
    raise programs.missing("Codex", '`pip install "hostler[codex]"`')


def launch(ctx: LaunchContext) -> Launch:
    home = f"{ctx.home}/.codex"
    if _below(home, ctx.tmp):
        # Codex refuses to make its sandbox helper there; every sandboxed command would then fail without a word.
        raise CapabilityUnsupported(f"Codex cannot keep its home {home} below its temporary directory {ctx.tmp}.")
    env = {"CODEX_HOME": home, "CODEX_SQLITE_HOME": _index(home), MODEL_KEY: ctx.token}
    if ctx.tool_token:
        env[TOOL_KEY] = ctx.tool_token
    files = {
        f"{home}/config.toml": toml(config(ctx)),
    }
    # Commands that an earlier turn allowed itself for ever, and skills that an agent gave itself.
    clear = (f"{home}/rules", f"{home}/skills", f"{ctx.home}/.agents")
    return Launch((*ctx.program, "app-server"), env, files, clear=clear)


def config(ctx: LaunchContext) -> dict[str, Any]:
    """Codex's configuration; a project that it does not name stays untrusted, so its `.codex` is not read."""
    ours: dict[str, Any] = {
        "model": ctx.model,
        "model_provider": PROVIDER,
        "check_for_update_on_startup": False,
        "suppress_unstable_features_warning": True,
        "model_providers": {
            PROVIDER: {
                "name": PROVIDER,
                "base_url": f"{ctx.model_url}/v1",
                "env_key": MODEL_KEY,
                "wire_api": "responses",
                "supports_websockets": False,
                "request_max_retries": 2,
                "stream_max_retries": 2,
                "stream_idle_timeout_ms": DAY * 1000,  # the endpoint decides how long a model may be silent
            }
        },
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        "history": {"persistence": "none"},
        "skills": {"bundled": {"enabled": False}},
        "shell_environment_policy": {"exclude": [MODEL_KEY, TOOL_KEY]},
        "mcp_servers": _servers(ctx),
    }
    features = {**dict.fromkeys(_FEATURES_OFF, False), _QUESTIONS: ctx.approvals}
    if ctx.permissions != "full":
        ours["web_search"] = "disabled"
    for tool in ctx.disable_tools:
        if tool == "web_search":
            ours["web_search"] = "disabled"
        elif feature := _FEATURE_OF_TOOL.get(tool):
            features[feature] = False
        else:
            known = ", ".join(sorted([*_FEATURE_OF_TOOL, "web_search"]))
            raise CapabilityUnsupported(f"Codex cannot switch off its tool {tool!r}; it can switch off {known}.")
    given = dict(ctx.options.get("config") or {})
    given_features = dict(given.pop("features", None) or {})
    tools = {**dict(given.get("tools") or {}), "experimental_request_user_input": {"enabled": features[_QUESTIONS]}}
    return {**given, **ours, "features": {**given_features, **features}, "tools": tools}


def _servers(ctx: LaunchContext) -> dict[str, Any]:
    servers = {name: _server(spec, ctx) for name, spec in ctx.mcp_servers.items()}
    if ctx.tool_url:
        servers[HOST_SERVER] = {
            "url": ctx.tool_url,
            "bearer_token_env_var": TOOL_KEY,
            "default_tools_approval_mode": "approve",  # the tool server itself asks and refuses
            "tool_timeout_sec": float(DAY),
        }
    return servers


def _server(spec: Mapping[str, Any], ctx: LaunchContext) -> dict[str, Any]:
    # "auto" lets only tools run that call themselves read-only; the rest asks, or fails where nobody is asked.
    mode = "approve" if ctx.permissions == "full" else "auto"
    if url := spec.get("url"):
        out: dict[str, Any] = {"url": url, "http_headers": dict(spec.get("headers") or {})}
    else:
        out = {
            "command": spec["command"],
            "args": list(spec.get("args") or ()),
            "env": dict(spec.get("env") or {}),
        }
    return {**out, "default_tools_approval_mode": mode, "startup_timeout_sec": start_timeout(spec)}


def sandbox_policy(ctx: LaunchContext) -> dict[str, Any]:
    """Codex's own sandbox; off in a confined place, where a nested one fails, and where each command is asked for: an
    approved command would run inside first and then, if that is seen to fail in time, once more outside."""
    if ctx.confined or ctx.permissions in ("full", "ask"):
        return {"type": "dangerFullAccess"}
    if ctx.permissions == "edit":
        return {
            "type": "workspaceWrite",
            "writableRoots": list(ctx.beside),
            "networkAccess": False,
            "excludeSlashTmp": True,
            "excludeTmpdirEnvVar": True,
        }
    return {"type": "readOnly", "networkAccess": False}


def approval_policy(ctx: LaunchContext) -> str:
    return "untrusted" if ctx.permissions == "ask" else "never"


def toml(table: Mapping[str, Any]) -> str:
    """A TOML document: one key a line, tables inline."""
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in table.items())


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if value is None:
        raise TypeError("TOML has no null: leave the key out.")
    return json.dumps(value)


def _index(home: str) -> str:
    """Where Codex keeps what it can find again in its rollout files. It notes their absolute paths there: in a home that
    was moved or copied it would go on with, and write to, the files of the old place. So each place has its own."""
    return f"{home}/index-{hashlib.sha256(home.encode()).hexdigest()[:12]}"


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")
