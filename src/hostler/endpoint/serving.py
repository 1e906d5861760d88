"""An ASGI application on a listening socket, inside a running loop: no signals, no polling, no log lines."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from hostler.types.errors import HarnessError

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

CUT = "hostler.cut"
PEER = "hostler.peer"

_CREDENTIALS = struct.Struct("3i")  # process, user, group

# uvicorn reports a response that was cut on purpose as an error of the application: ours logs its own faults.
_quiet = logging.getLogger("hostler.endpoint.http")
_quiet.setLevel(logging.CRITICAL + 1)


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with ``scope[CUT]()``: close the connection now, so that the client sees a broken answer; and
    ``scope[PEER]``: the process that has connected, where the kernel says it."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.logger = _quiet
        inner = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope[CUT] = self.transport.close
            scope[PEER] = self.peer
            await inner(scope, receive, send)

        self.app = app

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection: socket.socket = transport.get_extra_info("socket")
        self.peer = _peer(connection)
        if connection.family != socket.AF_UNIX:
            # asyncio does so only where it made the listener: small pieces of a stream would wait 40 ms
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)  # type: ignore[arg-type]


def _peer(connection: socket.socket) -> int | None:
    if connection.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid) or None  # 0: of a process namespace that this one does not see


class Serving:
    """A server that runs on the loop it was started on until it is closed."""

    def __init__(self, server: asyncio.Server, state: ServerState) -> None:
        self._server = server
        self._state = state

    async def aclose(self, *, patience: float = 1.0) -> None:
        """Stop listening, end the connections and, after ``patience`` seconds, the answers still being given."""
        self._server.close()
        tasks = set(self._state.tasks)
        for connection in list(self._state.connections):
            if (transport := connection.transport) is not None:
                transport.close()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def serve(app: App, listener: socket.socket) -> Serving:
    """Serve ``app`` on ``listener`` (TCP or UNIX, bound); the socket belongs to the server from here on."""
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http=_Protocol,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        log_config=None,
        access_log=False,
    )
    config.load()
    state = ServerState()

    def protocol() -> asyncio.Protocol:
        return _Protocol(config=config, server_state=state, app_state={})

    loop = asyncio.get_running_loop()
    if listener.family == socket.AF_UNIX:
        server = await loop.create_unix_server(protocol, sock=listener, backlog=512)
    else:
        server = await loop.create_server(protocol, sock=listener, backlog=512)
    return Serving(server, state)


def listen_private(path: str) -> socket.socket:
    """A listening socket that only this user can reach."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
    except OSError as error:
        listener.close()
        raise HarnessError(f"The model endpoint cannot listen at {path}: {error}. The path may be too long.") from error
    return listener


async def while_connected(work: asyncio.Future[Any], receive: Receive) -> None:
    """Let the answer be made, but not longer than the client waits for it. The request's body has been read."""
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, gone):
            task.cancel()
        outcomes = await asyncio.gather(work, gone, return_exceptions=True)
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
