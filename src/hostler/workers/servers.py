"""MCP servers, the host's among them, as tools for a model."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST = 64  # characters of a tool's name, as models' servers take it
_START = 30.0
_DAY = 86_400.0
_LAST = 2.0


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool of a server; ``name`` is what the model calls it, ``native`` what its server does."""

    name: str
    native: str
    description: str
    schema: dict[str, Any]
    client: Any


class Servers:
    """Starts them at once and together. One that does not start in its time is told of on stderr, and missing."""

    def __init__(self, specs: Mapping[str, Mapping[str, Any]]) -> None:
        self.tools: dict[str, ServedTool] = {}
        self._found: dict[str, list[ServedTool]] = {}
        self._end = asyncio.Event()
        self._held: list[asyncio.Task[None]] = []
        self._ready = [asyncio.create_task(self._start(name, spec)) for name, spec in specs.items()]
        self._names = list(specs)

    async def ready(self) -> None:
        """Until all have started, or had their time."""
        if self._ready:
            await asyncio.wait(self._ready)  # who waits may be cancelled; they are not
            self._ready = []
            self.tools = {tool.name: tool for name in self._names for tool in self._found.get(name, ())}

    async def call(self, name: str, given: dict[str, Any], call: str) -> tuple[str, bool]:
        """What the tool answers, and whether that is an error. ``call`` is the model's id of the call."""
        tool = self.tools[name]
        try:
            result = await tool.client.call_tool(tool.native, given, meta={"callId": call})
        except Exception as error:
            return f"The tool could not be called: {type(error).__name__}: {error}", True
        parts = [_words(part) for part in result.content]
        if not parts and result.structured_content is not None:
            parts = [json.dumps(result.structured_content)]
        return "\n".join(parts), bool(result.is_error)

    async def _start(self, name: str, spec: Mapping[str, Any]) -> None:
        await asyncio.to_thread(
            importlib.import_module, "mcp.client"
        )  # most of a second, which is none of the server's
        started = asyncio.get_running_loop().create_future()
        held = asyncio.create_task(self._hold(name, spec, started))
        self._held.append(held)
        why = f"it was not ready within {spec.get('start_timeout', _START):g} s"
        done, _ = await asyncio.wait(
            {held, started}, timeout=spec.get("start_timeout", _START), return_when="FIRST_COMPLETED"
        )
        if started in done:
            return
        if held in done:
            why = _why(held.exception())
        held.cancel()
        sys.stderr.write(f"hostler: MCP server {json.dumps(name)} did not start: {why}\n")
        sys.stderr.flush()

    async def _hold(self, name: str, spec: Mapping[str, Any], started: asyncio.Future[None]) -> None:
        from mcp.client import Client

        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(await _transport(spec, stack), cache=None))
            tools: list[Any] = []
            page = await client.list_tools()
            tools += page.tools
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                tools += page.tools
            self._found[name] = [_tool(name, tool, client) for tool in tools]
            if not started.done():
                started.set_result(None)
            await self._end.wait()

    async def aclose(self) -> None:
        """End them."""
        self._end.set()
        for task in self._ready:
            task.cancel()
        if self._held:
            await asyncio.wait(self._held, timeout=_LAST)


async def _transport(spec: Mapping[str, Any], stack: AsyncExitStack) -> Any:
    if not (url := spec.get("url")):
        from mcp.client.stdio import StdioServerParameters

        env = {**os.environ, **(spec.get("env") or {})}
        return StdioServerParameters(command=spec["command"], args=list(spec.get("args") or ()), env=env)
    headers = dict(spec.get("headers") or {})
    if spec.get("type") == "sse":
        from mcp.client.sse import sse_client

        return sse_client(url, headers=headers, sse_read_timeout=_DAY)
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    limits = httpx2.Timeout(_START, read=_DAY)
    http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=limits))
    return streamable_http_client(url, http_client=http)


def _tool(server: str, tool: Any, client: Any) -> ServedTool:
    name = _NAME.sub("_", f"mcp__{server}__{tool.name}")[:_LONGEST]
    return ServedTool(name, tool.name, tool.description or "", dict(tool.input_schema), client)


def _words(part: Any) -> str:
    """A part of an answer; what is no text is named."""
    if part.type == "text":
        return str(part.text)
    resource = getattr(part, "resource", None)
    return str(getattr(resource, "text", None) or f"({part.type}, which is not shown here)")


def _why(error: BaseException | None) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".split("\n")[0][:300]
