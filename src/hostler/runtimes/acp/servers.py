"""MCP servers, the host's among them, as the protocol wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hostler.types.errors import CapabilityUnsupported
from hostler.types.runtime import LaunchContext

HOST_SERVER = "host"


def mcp_servers(ctx: LaunchContext) -> list[dict[str, Any]]:
    """The host's tool server and the caller's, as the protocol wants them."""
    if HOST_SERVER in ctx.mcp_servers:
        raise CapabilityUnsupported(f"The MCP server name {HOST_SERVER!r} is hostler's own; name it otherwise.")
    servers = [_server(name, spec) for name, spec in ctx.mcp_servers.items()]
    if ctx.tool_url:
        servers.append(
            _server(HOST_SERVER, {"url": ctx.tool_url, "headers": {"Authorization": f"Bearer {ctx.tool_token}"}})
        )
    return servers


def _server(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    if url := spec.get("url"):
        kind = spec.get("type") if spec.get("type") in ("http", "sse") else "http"
        return {"type": kind, "name": name, "url": url, "headers": _pairs(spec.get("headers"))}
    return {
        "name": name,
        "command": spec["command"],
        "args": list(spec.get("args") or ()),
        "env": _pairs(spec.get("env")),
    }


def _pairs(values: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in (values or {}).items()]
