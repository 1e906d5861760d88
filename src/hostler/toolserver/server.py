"""The MCP server of one session's tools: stateless streamable HTTP with plain JSON answers, as an ASGI app."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
from starlette.types import Message, Receive, Scope, Send

from ..endpoint.serving import CUT
from ..types.tools import ToolAnswer
from .calls import ENDED, Calls, Desk, GivenUp
from .functions import HostTool

NAME = "host"
_FRAME = "x-hostler-frame"  # the keeper's word when the request came
_REQUEST_LIMIT = 16 * 1024 * 1024
_REFUSED_METHOD = {
    "type": "http.response.start",
    "status": 405,
    "headers": [(b"allow", b"POST"), (b"content-length", b"0")],
}


class ToolServer:
    """Answers a program's tool calls with the app's functions, as the ``desk`` permits. ``timeout`` seconds are given to
    each call. With ``objects`` a result is told as an object, too (see `Capabilities.wants_objects`).

    It starts with its first request and must be closed on the same loop.
    """

    def __init__(self, tools: Iterable[HostTool], desk: Desk, *, timeout: float, objects: bool = False) -> None:
        self.offer(tools)
        self._desk = desk
        self._objects = objects
        self._calls = Calls(desk, timeout)
        self._starting = asyncio.Lock()
        self._manager: StreamableHTTPSessionManager | None = None
        self._run: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()

    def offer(self, tools: Iterable[HostTool]) -> None:
        """Offer these from now on; calls under way go on."""
        self._tools = {tool.name: tool for tool in tools}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tools)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":  # nothing is ever said unasked, and there is no session to end
            await send(_REFUSED_METHOD)
            await send({"type": "http.response.body", "body": b""})
            return
        manager = await self._started()
        self._calls.come_back()
        request = _Request(receive)
        answer = asyncio.create_task(manager.handle_request(scope, request.read, send))
        gone = asyncio.create_task(request.gone())
        self._answers.add(answer)
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._answers.discard(answer)
            for task in (answer, gone):
                task.cancel()
            outcome, _ = await asyncio.gather(answer, gone, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            scope[CUT]()  # no answer at all: whoever serves these tools next is asked again
        elif outcome is not None:
            raise outcome

    async def aclose(self) -> None:
        """The program has ended: end the calls under way, without an answer."""
        run, self._run, self._manager = self._run, None, None
        ending: list[asyncio.Task[Any]] = [*self._answers, *self._calls.end(), *([run] if run is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def leave(self) -> None:
        """The program goes on under another host: calls that have begun go on to their end, and their answers are kept
        for it; the others are given up, without an answer. Returns when all is over, or the program has come back."""
        try:
            await asyncio.gather(*self._calls.leave(), return_exceptions=True)
        finally:
            if self._calls.left:
                await self.aclose()

    async def _started(self) -> StreamableHTTPSessionManager:
        async with self._starting:
            if self._manager is None:
                server: Server[Any] = Server(NAME, on_list_tools=self._list, on_call_tool=self._call)
                manager = StreamableHTTPSessionManager(
                    server, json_response=True, stateless=True, max_request_body_size=_REQUEST_LIMIT
                )
                ready = asyncio.Event()
                self._run = asyncio.create_task(_hold(manager, ready), name="hostler-toolserver")
                await ready.wait()
                self._manager = manager
            return self._manager

    def _shown(self) -> list[HostTool]:
        return [tool for tool in self._tools.values() if self._desk.shows(tool.name)]

    async def _list(self, _context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(name=tool.name, description=tool.description, input_schema=dict(tool.schema))
                for tool in self._shown()
            ]
        )

    async def _call(self, context: Any, params: Any) -> CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            names = ", ".join(sorted(tool.name for tool in self._shown()))
            return self._result(ToolAnswer(f"There is no tool {params.name!r}; there are {names}.", is_error=True))
        meta = (context.params or {}).get("_meta") or {}
        came = context.request.headers.get(_FRAME, "")
        try:
            answer = await self._calls.answer(
                tool,
                params.arguments or {},
                request=context.request_id,
                meta=meta,
                frame=int(came) if came.isdecimal() else None,
            )
        except GivenUp:
            context.request.scope[CUT]()
            answer = ENDED  # goes nowhere
        return self._result(answer)

    def _result(self, answer: ToolAnswer) -> CallToolResult:
        return CallToolResult(
            content=[TextContent(type="text", text=answer.text)],
            structured_content={"result": answer.text} if self._objects and not answer.is_error else None,
            is_error=answer.is_error,
        )


class _Request:
    """The messages of one request, for the one who reads its body and the one who waits for its client to leave."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read = asyncio.Event()

    async def read(self) -> Message:
        if self._read.is_set():
            await asyncio.Event().wait()  # the other one waits for what comes behind the body
        message = await self._receive()
        if not message.get("more_body"):
            self._read.set()
        return message

    async def gone(self) -> None:
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _hold(manager: StreamableHTTPSessionManager, ready: asyncio.Event) -> None:
    async with manager.run():
        ready.set()
        await asyncio.Event().wait()
