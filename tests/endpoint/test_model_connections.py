"""What the server takes from a program's connection, and how upstreams are connected to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from endpoint_door import PATHS, TOKEN, Door, Run, body, script

from hostler.endpoint import price, upstream

HEAD = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {TOKEN}\r\n".encode()
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


async def until_closed(door: Door, *pieces: bytes) -> bytes:
    """What a program gets for these bytes, until the server ends the connection."""
    reader, writer = await asyncio.open_unix_connection(door.endpoint.socket_path)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(8):
            return await reader.read()
    except OSError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "pieces",
    [
        (HEAD, *[b"x-%d: " % n + b"v" * 1000 + b"\r\n" for n in range(400)]),
        (HEAD + b"x-long: ", *[b"v" * 1000] * 400),
        (b"POST /", *[b"a" * 1000] * 400),
        (
            HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n",
            *[b"x-%d: " % n + b"v" * 1000 + b"\r\n" for n in range(400)],
        ),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", *[b"x" * 1000] * 400),
    ],
    ids=["fields", "a field", "the path", "trailers", "a chunk's extension"],
)
def test_a_head_without_an_end_is_not_kept(run: Run, pieces: tuple[bytes, ...]) -> None:
    async def test(door: Door) -> None:
        door.open()
        answer = await until_closed(door, *pieces)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
        assert door.server.calls == []

    run(test)


@pytest.mark.parametrize("raw", [b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9\r\n\r\n", b"a b c d\r\n\r\n"])
def test_what_is_no_request_is_refused(run: Run, raw: bytes) -> None:
    async def test(door: Door) -> None:
        assert (await until_closed(door, raw)).startswith(b"HTTP/1.1 400 ")

    run(test)


def test_a_request_that_comes_byte_by_byte(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open()
        last = REQUEST.replace(b"host: x", b"host: x\r\nconnection: close")
        answer = await until_closed(door, *(bytes([byte]) for byte in last))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"ANSWER" in answer

    run(test)


def test_one_connection_serves_many_calls(run: Run) -> None:
    """Also one whose client would rather speak HTTP/2, and one that sends its requests ahead of the answers."""

    async def test(door: Door) -> None:
        door.open()
        wishes = b"host: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk"
        last = REQUEST.replace(b"host: x", b"host: x\r\nconnection: close")
        answer = await until_closed(door, REQUEST.replace(b"host: x", wishes), REQUEST, last)
        assert answer.count(b"HTTP/1.1 200 ") == 3
        assert [call.status for call in door.calls] == ["ok"] * 3

    run(test)


def test_half_a_request_is_no_call(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open()
        reader, writer = await asyncio.open_unix_connection(door.endpoint.socket_path)
        writer.write(REQUEST[:-10])
        writer.write_eof()
        async with asyncio.timeout(2):
            assert b"200" not in await reader.read()
        writer.close()
        assert door.calls == []
        assert door.server.calls == []

    run(test)


def test_a_large_request_and_a_slow_reader(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open()
        prompt = body("anthropic", "x" * 3_000_000 + script(text="y" * 2_000_000, chunks=4))
        async with door.http.stream("POST", PATHS["anthropic"], json=prompt, headers={"x-api-key": TOKEN}) as answer:
            await asyncio.sleep(0.2)
            size = 0
            async for piece in answer.aiter_bytes():
                size += len(piece)
        assert size > 2_000_000
        assert len(door.server.calls[-1].body["messages"][0]["content"]) > 3_000_000

    run(test)


# ---- to upstreams ---------------------------------------------------------------------------------------------------


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def proxy_of(seen: list[bytes]) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_app_s_proxy_is_asked(run: Run, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    async def test(door: Door) -> None:
        seen: list[bytes] = []
        server = await proxy_of(seen)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(f"{scheme}_proxy", address)
        door.open(base=f"{scheme}://model.invalid")
        assert (await door.ask()).status_code in (403, 503)
        asked = b"POST http://model.invalid/v1/messages " if scheme == "http" else b"CONNECT model.invalid:443 "
        assert seen[0].startswith(asked)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        server.close()

    run(test)


def test_an_app_that_can_connect_nowhere_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(door: Door) -> None:
        monkeypatch.setenv("http_proxy", "gopher://127.0.0.1:1")
        door.open()
        assert (await door.ask()).status_code == 502
        [call] = door.calls
        assert call.error is not None
        assert (call.status, call.cost, call.error.code) == ("refused", 0.0, "model_refused")
        assert "gopher" in call.error.message
        monkeypatch.delenv("http_proxy")
        assert (await door.ask()).status_code == 200

    run(test)


def test_certificates_are_not_loaded_for_a_plain_upstream(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    new_client = upstream.new_client

    def noted(*, secure: bool) -> Any:
        made.append(secure)
        return new_client(secure=secure)

    monkeypatch.setattr(upstream, "new_client", noted)

    async def test(door: Door) -> None:
        door.open()
        await asyncio.gather(door.ask(), door.ask())
        assert made == [False]
        door.open(base="https://127.0.0.1:1")
        assert (await door.ask()).status_code == 503
        assert made == [False, True]

    run(test)


def test_prices_are_loaded_beside_the_first_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    lists = price._price_lists
    monkeypatch.setattr(price, "_in_lists", {})

    async def test(door: Door) -> None:
        def slow() -> Any:
            if not asked:
                asked.append(len(door.server.calls))
                time.sleep(0.3)
            return lists()

        monkeypatch.setattr(price, "_price_lists", slow)
        route = door.open("responses", model="gpt-5", models=frozenset({"m"}))
        await asyncio.sleep(0.05)
        assert asked == []
        await door.ask("responses")
        assert asked == [1]
        assert price.loaded(route)
        assert door.calls[0].cost

    run(test)
