"""An endpoint in front of a scripted model server, and a client that speaks to it as a program does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from hostler.endpoint import Endpoint, Route
from hostler.testing.model_server import ModelServer
from hostler.types.events import ModelCall

KEY = "key-of-the-provider-0123456789"
TOKEN = "token-of-the-session"
PATHS = {"anthropic": "/v1/messages", "responses": "/v1/responses", "chat": "/v1/chat/completions"}
WIRES = tuple(PATHS)


def body(wire: str, prompt: str = "hi", *, stream: bool = True, model: str = "m", **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": prompt}]
    return {"model": model, "stream": stream, ("input" if wire == "responses" else "messages"): said, **more}


def script(**step: Any) -> str:
    return f"@@{json.dumps(step)}@@"


@dataclass
class Door:
    """What a program sees, and what the session was told."""

    endpoint: Endpoint
    http: httpx.AsyncClient
    server: ModelServer
    calls: list[ModelCall] = field(default_factory=list)

    def open(self, wire: str = "anthropic", *, gateway: bool = False, model: str = "m", **more: Any) -> Route:
        base = more.pop("base", self.server.url)
        route = Route(base, KEY, model, wire, gateway, more.pop("program", None))  # type: ignore[arg-type]
        self.endpoint.open(more.pop("token", TOKEN), route, on_call=more.pop("on_call", self.calls.append), **more)
        return route

    async def ask(self, wire: str = "anthropic", prompt: str = "hi", **more: Any) -> httpx.Response:
        token = more.pop("token", TOKEN)
        headers = {"authorization": f"Bearer {token}", **more.pop("headers", {})}
        return await self.http.post(PATHS[wire], json=body(wire, prompt, **more), headers=headers)


@contextlib.asynccontextmanager
async def door(server: ModelServer, **given: Any) -> AsyncIterator[Door]:
    endpoint = Endpoint(**{"patience": 0.0, "silence": 5.0, **given})
    with tempfile.TemporaryDirectory(prefix="hostler-") as directory:  # short: a socket's path is bounded
        await endpoint.start(directory)
        transport = httpx.AsyncHTTPTransport(uds=endpoint.socket_path, verify=False)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://endpoint", timeout=10) as client:
                yield Door(endpoint, client, server)
        finally:
            await endpoint.aclose()


Run = Callable[..., None]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[ModelServer]:
    with ModelServer(key=KEY) as server:
        yield server


@pytest.fixture
def run(shared_server: ModelServer) -> Run:
    """Run a test's coroutine function with a `Door`; keyword arguments go to the endpoint."""
    shared_server.clear()

    def go(test: Callable[[Door], Awaitable[None]], **given: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(20), door(shared_server, **given) as opened:
                await test(opened)

        asyncio.run(main())

    return go
