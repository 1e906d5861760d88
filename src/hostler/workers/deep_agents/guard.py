"""What hostler does around each model call and each tool call of the graph: rules, what is told of it, steering, limits."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.types import Command

from hostler.workers import rules
from hostler.workers.acp import Client, Turn
from hostler.workers.servers import ServedTool, Servers
from hostler.workers.settings import Settings

SUB_AGENT = "x-sub-agent"
"""The header that tells the model calls of sub-agents from those of the main agent."""

_ATTEMPTS = 3
_NORMAL = {
    "read_file": "read",
    "write_file": "write",
    "edit_file": "edit",
    "delete": "edit",
    "execute": "bash",
}
_EXITED = re.compile(r"\n*\[Command (succeeded|failed) with exit code -?\d+\]\Z")  # which is told by itself
_PATHS = ("file_path", "path")
_STOPS = {"length": "max_tokens", "content_filter": "refusal"}


class Enough(Exception):
    """The turn has called the model as often as it may."""


class ModelCut(Exception):
    """The model's answer broke off, each time."""


class Guard(AgentMiddleware):
    """Around the main agent, or (not ``main``) around its sub-agents; those work for the turn of ``turn_of``."""

    def __init__(
        self, client: Client, settings: Settings, servers: Servers, *, main: bool, turn_of: Guard | None = None
    ) -> None:
        super().__init__()
        self._client = client
        self._settings = settings
        self._servers = servers
        self._main = main
        self._of = turn_of or self
        self._turn: Turn | None = None
        self._calls = 0
        self.stop: str | None = None

    def begin(self, turn: Turn) -> None:
        """A turn begins, or goes on because something was said to it."""
        if self._turn is not turn:
            self._turn, self._calls = turn, 0
        self.stop = None

    def tool(self, served: ServedTool) -> BaseTool:
        """A tool of an MCP server, for the graph."""

        async def call(**given: Any) -> str:
            raise RuntimeError("It is called in awrap_tool_call.")

        return StructuredTool(
            name=served.name, description=served.description, args_schema=served.schema, coroutine=call
        )

    @hook_config()
    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """What was said to the turn meanwhile is heard before the model is called again."""
        if not self._main or self._turn is None or not self._turn.waiting:
            return None
        from hostler.workers.deep_agents.agent import message

        return {"messages": [message(blocks) for blocks in self._turn.take()]}

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Only the tools that may be used are offered; an answer that breaks off is asked for again."""
        most = self._settings.max_turns
        if self._main:
            if most is not None and self._calls >= most:
                raise Enough
            self._calls += 1
        else:
            headers = {**request.model_settings.get("extra_headers", {}), SUB_AGENT: "1"}
            request = request.override(model_settings={**request.model_settings, "extra_headers": headers})
        allowed = [tool for tool in request.tools if rules.offered(self._settings, _NORMAL.get(n := _name(tool), n))]
        request = request.override(tools=allowed)
        cut = "no answer"
        for attempt in range(_ATTEMPTS):
            await asyncio.sleep(0.2 * attempt)
            try:
                response = await handler(request)
            except (httpx.TransportError, openai.APIConnectionError) as error:
                cut = f"{type(error).__name__}: {error}"
                continue
            reason = _finish(response)
            if reason is not None:
                self.stop = _STOPS.get(reason) if self._main else self.stop
                return response
            cut = "its stream ended before the answer did"
        raise ModelCut(f"The model's answer broke off {_ATTEMPTS} times ({cut}).")

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Told, judged, asked for, run."""
        turn = self._of._turn
        assert turn is not None
        session, call = turn.session, request.tool_call
        name, id, given = str(call["name"]), str(call["id"]), dict(call["args"])
        given |= {key: os.path.join(self._settings.workdir, given[key]) for key in _PATHS if given.get(key)}
        tool = _NORMAL.get(name, name)
        judged = {**given, "path": next((given[key] for key in _PATHS if given.get(key)), "")}
        self._client.tool_called(session, id, name, given)
        verdict = rules.judge(self._settings, tool, judged)
        if verdict.choice == "ask" and not await self._client.allows(session, id, name, given):
            verdict = rules.Verdict("deny", "The user does not allow this.")
        self._client.tool_runs(session, id, given)
        if verdict.choice == "deny":
            result: Any = ToolMessage(verdict.reason, tool_call_id=id, name=name, status="error")
        elif name in self._servers.tools:
            text, wrong = await self._servers.call(name, given, id)
            result = ToolMessage(text, tool_call_id=id, name=name, status="error" if wrong else "success")
        else:
            result = await _run(request.override(tool_call={**call, "args": given}), handler, id, name)
        text, failed = _told(result)
        self._client.tool_done(session, id, text, failed=failed)
        return result


async def _run(request: Any, handler: Callable[[Any], Awaitable[Any]], id: str, name: str) -> Any:
    try:
        return await handler(request)
    except Exception as error:  # the model can do something about it, the turn cannot
        return ToolMessage(f"{type(error).__name__}: {error}", tool_call_id=id, name=name, status="error")


def _name(tool: Any) -> str:
    return str(tool.name if isinstance(tool, BaseTool) else tool.get("name") or tool.get("function", {}).get("name"))


def _finish(response: Any) -> str | None:
    """Why the model stopped; None when it never said so."""
    result = response if isinstance(response, AIMessage) else getattr(response, "model_response", response).result[-1]
    reason = result.response_metadata.get("finish_reason")
    return str(reason) if reason else None


def _told(result: Any) -> tuple[str, bool]:
    """What a tool gave, and whether it failed."""
    if isinstance(result, Command):
        update = result.update if isinstance(result.update, dict) else {}
        result = next((m for m in reversed(update.get("messages") or []) if isinstance(m, ToolMessage)), None)
    if not isinstance(result, ToolMessage):
        return "", False
    about = result.artifact if isinstance(result.artifact, dict) else {}
    return _EXITED.sub("", result.text), result.status == "error" or about.get("exit_code") not in (None, 0)
