"""The MCP server of one session's tools: stateless streamable HTTP with plain JSON answers, as an ASGI app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
from starlette.types import Message, Receive, Scope, Send

from .. import portal
from ..endpoint.serving import CUT
from ..types.events import CallbackFailed
from .functions import HostTool, answer_text, digest

NAME = "host"
_REQUEST_LIMIT = 16 * 1024 * 1024
_REFUSED_METHOD = {
    "type": "http.response.start",
    "status": 405,
    "headers": [(b"allow", b"POST"), (b"content-length", b"0")],
}
_log = logging.getLogger("hostler")


class ToolServer:
    """Answers a program's tool calls with the app's functions. ``timeout`` seconds are given to each call; ``loop``
    tells the event loop that async functions run on; ``on_failure`` hears of functions that raised or took too long.

    It starts with its first request and must be closed on the same loop.
    """

    def __init__(
        self,
        tools: Iterable[HostTool],
        *,
        timeout: float,
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        on_failure: Callable[[CallbackFailed], None],
    ) -> None:
        self.offer(tools)
        self._timeout = timeout
        self._loop = loop
        self._on_failure = on_failure
        self._starting = asyncio.Lock()
        self._manager: StreamableHTTPSessionManager | None = None
        self._run: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()

    def offer(self, tools: Iterable[HostTool]) -> None:
        """Offer these from now on; calls under way go on. ``digest`` changes when a program would have to be told."""
        self._tools = {tool.name: tool for tool in tools}
        self.digest = digest(self._tools.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":  # nothing is ever said unasked, and there is no session to end
            await send(_REFUSED_METHOD)
            await send({"type": "http.response.body", "body": b""})
            return
        manager = await self._started()
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
        """End the calls under way, without an answer."""
        run, self._run, self._manager = self._run, None, None
        ending = [*self._answers, *([run] if run is not None else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

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

    async def _list(self, _context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(name=tool.name, description=tool.description, input_schema=dict(tool.schema))
                for tool in self._tools.values()
            ]
        )

    async def _call(self, _context: Any, params: Any) -> CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            return _refused(f"There is no tool {params.name!r}; there are {', '.join(sorted(self._tools))}.")
        try:
            given = tool.check(params.arguments or {})
        except ValueError as error:
            return _refused(str(error))
        try:
            async with asyncio.timeout(self._timeout) as limit:
                value = await portal.call_back(partial(tool.function, **given), loop=self._loop())
            return CallToolResult(content=[TextContent(type="text", text=answer_text(value))])
        except BaseException as error:
            # The app's function may raise anything, SystemExit too; only our own end is to be let through.
            if isinstance(error, (asyncio.CancelledError, GeneratorExit)) and _is_ending():
                raise
            why = f"it took longer than {self._timeout:g} s" if limit.expired() else f"{type(error).__name__}: {error}"
            _log.warning("The tool %s failed: %s", tool.name, why)
            self._on_failure(CallbackFailed(f"tool {tool.name}", why))
            return _refused(f"The tool failed: {why}")


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


def _is_ending() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _refused(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)
