"""How hostler's own agents, which are workers that speak ACP, are started and spoken to."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hostler.runtimes.acp.codec import AcpCodec, Dialect
from hostler.runtimes.acp.servers import HOST_SERVER
from hostler.runtimes.failures import http_failure
from hostler.runtimes.jsonrpc import error_text, obj
from hostler.types.errors import CapabilityUnsupported
from hostler.types.result import ErrorInfo
from hostler.types.runtime import Folded, Launch, LaunchContext, start_timeout

HOST_PREFIX = "mcp__host__"
SESSION_ID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TOOLS = frozenset({"read", "write", "edit", "bash", "glob", "grep", "ls"})

_WORKERS = Path(__file__).resolve().parents[1] / "workers"
_UNAVAILABLE = re.compile(r'^hostler: MCP server ("(?:[^"\\]|\\.)*") did not start')


def command(name: str, library: str) -> tuple[str, ...]:
    """The worker ``name``, run by this very Python: by its file and isolated, so that nothing in the workspace is
    imported. Where the ``library`` that it needs lies outside of this Python's own folders it is told of a file of it.
    Raises ModuleNotFoundError when there is none."""
    found = importlib.util.find_spec(library)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(library)
    beside = () if Path(found.origin).is_relative_to(sys.prefix) else (found.origin,)
    return (sys.executable, "-I", "-X", "utf8", str(_WORKERS / name / "__main__.py"), *beside)


def launch(ctx: LaunchContext, folder: str, **env: str) -> Launch:
    """Its settings are a file; ``folder`` below home is where it keeps its sessions."""
    path = f"{ctx.files_dir}/settings.json"
    key = {"OPENAI_API_KEY": ctx.token, "OPENAI_BASE_URL": f"{ctx.model_url}/v1"}
    return Launch((*ctx.program, path), {**key, **env}, {path: json.dumps(settings(ctx, folder))})


def settings(ctx: LaunchContext, folder: str) -> dict[str, Any]:
    """What `hostler.workers.settings` reads."""
    if HOST_SERVER in ctx.mcp_servers:
        raise CapabilityUnsupported(f"The MCP server name {HOST_SERVER!r} is hostler's own; name it otherwise.")
    servers = {name: {**spec, "start_timeout": start_timeout(spec)} for name, spec in ctx.mcp_servers.items()}
    if ctx.tool_url:
        servers[HOST_SERVER] = {"url": ctx.tool_url, "headers": {"Authorization": f"Bearer {ctx.tool_token}"}}
    return {
        "model": ctx.model,
        "url": ctx.model_url,
        "workdir": ctx.workdir,
        "folder": f"{ctx.home}/{folder}",
        "instructions": ctx.instructions,
        "permissions": ctx.permissions,
        "confined": ctx.confined,
        "writable": [ctx.workdir, *ctx.beside],
        "allow": list(ctx.allow),
        "deny": list(ctx.deny),
        "disabled": list(ctx.disable_tools),
        "max_turns": ctx.max_turns,
        "effort": ctx.effort,
        "servers": servers,
        "skills": ctx.skills,
        "fork": {"from": ctx.resume, "at": ctx.fork_at} if ctx.fork_at is not None else None,
    }


class WorkerCodec(AcpCodec):
    """ACP as the workers speak it. A fork is a session that begins as another was: it is resumed under its new name."""

    def __init__(self) -> None:
        super().__init__(DIALECT)

    def start(self, ctx: LaunchContext) -> Folded:
        return super().start(ctx if ctx.fork_at is None else replace(ctx, resume=ctx.new_id))


def failure(message: Mapping[str, Any]) -> ErrorInfo:
    """Why a turn failed. What the model's provider said the endpoint has heard."""
    data = obj(obj(message.get("error")).get("data"))
    text = error_text(dict(message))
    return http_failure(None, text) if data.get("kind") == "model" else ErrorInfo("program_error", text)


def failed_server(line: str) -> str | None:
    """The MCP server that did not start, if the line of the worker's log says so."""
    found = _UNAVAILABLE.match(line)
    return str(json.loads(found[1])) if found else None


def _asks(ctx: LaunchContext) -> str:
    return "ask"  # a worker decides by the rules itself, and asks only what somebody is to answer


DIALECT = Dialect(
    names_tools=True,
    host_prefix=HOST_PREFIX,
    steers=True,
    servers=False,
    fresh=True,
    permission=_asks,
    failure=failure,
    failed_server=failed_server,
)
