"""What the server takes from a program's connection, and how upstreams are connected to."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from endpoint_door import PATHS, TOKEN, Door, Run, body, script

from hostler.endpoint import http_client, price, upstream
from hostler.types.result import Usage

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
    """Also one whose client would rather speak HTTP/2 (a keeper does not pass on that it wants the connection changed),
    and one that sends its requests ahead of the answers."""

    async def test(door: Door) -> None:
        door.open()
        wishes = b"host: x\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk"
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


def test_no_proxy_is_heeded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(door: Door) -> None:
        seen: list[bytes] = []
        async with await proxy_of(seen) as server:
            monkeypatch.setenv("all_proxy", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            monkeypatch.setenv("no_proxy", "example.org,127.0.0.1")
            door.open()
            assert (await door.ask()).status_code == 200
            door.open(base="http://model.invalid")
            assert (await door.ask()).status_code == 403
        assert len(seen) == 1

    run(test)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_s_password_is_told_to_the_proxy_alone(run: Run, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    async def test(door: Door) -> None:
        seen: list[bytes] = []
        async with await proxy_of(seen) as server:
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setenv(f"{scheme}_proxy", f"http://me:pass%40word@127.0.0.1:{port}")
            door.open(base=f"{scheme}://model.invalid")
            answer = await door.ask()
        assert b"basic bwu6cgfzc0b3b3jk" in seen[0].lower()  # me:pass@word
        assert "403" in answer.text
        assert "word" not in answer.text
        assert "word" not in str(door.calls)

    run(test)


@contextlib.asynccontextmanager
async def upstream_of(*pieces: bytes, heads: list[bytes] | None = None) -> AsyncIterator[str]:
    """The address of a server that answers a request with these pieces and ends the connection."""

    tasks: list[asyncio.Task[Any] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        if heads is not None:
            heads.append(head)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, tasks))


ANSWER = b'{"type":"message","content":[{"type":"text","text":"ANSWER"}],"usage":{"input_tokens":1,"output_tokens":2}}'


def answer_of(body: bytes, *fields: bytes) -> bytes:
    head = [b"HTTP/1.1 200 OK", b"content-type: application/json", b"content-length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def test_a_request_has_the_headers_that_were_given(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None of the HTTP client's own, and none from a file with passwords."""
    passwords = tmp_path / "netrc"
    passwords.write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(passwords))
    heads: list[bytes] = []

    async def test(door: Door) -> None:
        async with upstream_of(answer_of(ANSWER), heads=heads) as base:
            door.open(base=base)
            assert (await until_closed(door, REQUEST.replace(b"host: x", b"host: x\r\nconnection: close")))[
                9:12
            ] == b"200"
        names = {line.partition(b":")[0].lower() for line in heads[0].split(b"\r\n")[1:] if line}
        assert names == {b"host", b"accept", b"accept-encoding", b"x-api-key", b"content-length"}
        assert b"accept-encoding: identity\r\n" in heads[0]

    run(test)


def test_an_answer_is_given_as_it_was_meant(run: Run) -> None:
    """Compressed though nobody asked for it, with long and many fields, and one that comes twice."""
    fields = [
        b"x-long: " + b"v" * 60_000,
        *(b"x-%d: y" % n for n in range(300)),
        b"Cache-Control: a",
        b"cache-control: b",
    ]

    async def test(door: Door) -> None:
        async with upstream_of(answer_of(gzip.compress(ANSWER), b"Content-Encoding: gzip", *fields)) as base:
            door.open(base=base)
            answer = await door.ask(stream=False)
        assert answer.content == ANSWER
        assert answer.headers["cache-control"] == "a, b"
        assert "content-encoding" not in answer.headers
        assert [call.usage for call in door.calls] == [Usage(1, 2, 0, 1)]

    run(test)


def test_what_came_before_a_connection_broke_is_not_lost(run: Run) -> None:
    """The last event has come, the end of the body has not: all before somebody reads it."""
    events = (
        b'data: {"type":"message_start","message":{"usage":{"input_tokens":5}}}\n\n',
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}\n\n'
        b'data: {"type":"message_stop"}\n\n',
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    async def test(door: Door) -> None:
        async with upstream_of(head, *(b"%x\r\n%s\r\n" % (len(event), event) for event in events)) as base:
            door.open(base=base, ready=lambda: asyncio.sleep(0.3))
            assert (await door.ask()).content == b"".join(events)
        assert [(call.status, call.usage) for call in door.calls] == [("ok", Usage(5, 9, 0, 1))]

    run(test)


def test_an_upstream_that_does_not_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "CONNECT_TIMEOUT", 0.5)

    async def test(door: Door) -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            door.open(base=f"http://127.0.0.1:{deaf.getsockname()[1]}")
            assert (await door.ask(prompt="x" * 20_000_000)).status_code == 503
        assert [call.error.code for call in door.calls if call.error] == ["model_unavailable"]

    run(test, silence=0.2)


def test_certificates_are_not_loaded_for_a_plain_upstream(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    new_client = upstream.new_client

    async def noted(*, secure: bool) -> Any:
        made.append(secure)
        return await new_client(secure=secure)

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
