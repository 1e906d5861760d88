"""A client of a tool server over HTTP, as an agent program is one."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
from tests.toolserver.desk import MemoryDesk

from hostler.endpoint.serving import serve
from hostler.toolserver import ToolServer, host_tools
from hostler.types.events import CallbackFailed

ACCEPT = {"accept": "application/json, text/event-stream"}


class Client:
    """Speaks JSON-RPC to a tool server as an agent program does."""

    def __init__(self, server: ToolServer, http: httpx.AsyncClient, desk: MemoryDesk) -> None:
        self.server, self.http, self.desk = server, http, desk
        self.ids = itertools.count(1)

    @property
    def failures(self) -> list[CallbackFailed]:
        return self.desk.failures

    async def ask(self, method: str, id: int | None = None, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": next(self.ids) if id is None else id, "method": method, "params": params}
        answer = await self.http.post("/", json=body, headers={**ACCEPT, "mcp-protocol-version": "2025-06-18"})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("application/json")
        return answer.json()["result"]

    async def call(self, name: str, **arguments: Any) -> tuple[str, bool]:
        return await self.called(name, arguments)

    async def called(
        self, name: str, arguments: dict[str, Any], *, id: int | None = None, meta: Any = None
    ) -> tuple[str, bool]:
        """With the id of the request, and its ``_meta``."""
        more = {} if meta is None else {"_meta": meta}
        result = await self.ask("tools/call", id, name=name, arguments=arguments, **more)
        return result["content"][0]["text"], bool(result.get("isError"))


@contextlib.asynccontextmanager
async def client(
    *functions: Callable[..., Any], timeout: float = 5.0, loop: Any = None, objects: bool = False
) -> AsyncIterator[Client]:
    desk = MemoryDesk(loop)
    server = ToolServer(host_tools(functions), desk, timeout=timeout, objects=objects)
    serving = await serve(server, socket.create_server(("127.0.0.1", 0)))
    port = serving._server.sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False) as http:
        try:
            yield Client(server, http, desk)
        finally:
            await server.aclose()
            await serving.aclose()
