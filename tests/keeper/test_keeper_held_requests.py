"""All requests together that a keeper reads and keeps are bounded."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from hostler.keeper.holder import model
from hostler.keeper.holder.loop import Loop
from hostler.keeper.holder.model import ModelAddress

SIZE = 40_000


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModelAddress, Callable[[], socket.socket]]]:
    """An address without a host that may hold two and a half requests of `SIZE`, and how to connect to it."""
    monkeypatch.setattr(model, "_MAX_HELD", SIZE * 5 // 2)
    loop, ends, opened = Loop(), threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held = ModelAddress(loop, listener, 60.0, lambda _: None, lambda: None, lambda: 7)

        def tick() -> None:
            loop.call_later(0.01, tick)

        def serve() -> None:
            while not ends.is_set():
                loop.run_once()

        def connect() -> socket.socket:
            opened.append(socket.create_connection(listener.getsockname(), 5))
            return opened[-1]

        tick()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield held, connect
        finally:
            for sock in opened:
                sock.close()
            ends.set()
            thread.join(5)
            for call in list(held._calls):
                call._close()
            assert held.held == 0


def request(size: int = SIZE) -> bytes:
    head = b"POST /v1/messages HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    return head % size + b"x" * size


def waits(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    return False


def test_one_too_many_is_refused_and_the_others_wait_on(
    address: tuple[ModelAddress, Callable[[], socket.socket]],
) -> None:
    held, connect = address
    kept = [connect(), connect()]
    for sock in kept:
        sock.sendall(request())
        assert waits(sock)
    late = connect()
    late.sendall(request())
    answer = late.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"are held here" in answer
    assert all(waits(sock) for sock in kept)
    assert 2 * SIZE < held.held < 2 * SIZE + 1000

    kept.pop().close()  # what it held is free again
    another = connect()
    another.sendall(request())
    assert waits(another)


def test_requests_that_are_not_whole_count_too(address: tuple[ModelAddress, Callable[[], socket.socket]]) -> None:
    _, connect = address
    for _ in range(2):
        half = connect()
        half.sendall(request()[:-1])
        assert waits(half)
    late = connect()
    late.sendall(request()[:-1])
    assert late.makefile("rb").read().startswith(b"HTTP/1.1 503 ")
