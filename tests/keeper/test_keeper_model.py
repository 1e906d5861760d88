"""The model address: requests are held, sent again, cut and forgotten as they should be."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from keeper_support import Reader, Starter, below, hold, program, run

from hostler.keeper import Held, KeeperAddress
from hostler.keeper.holder.http1 import Body, Malformed, Request, Response

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5\r\n\r\n"
HELLO = CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"
Behaviour = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Upstream:
    """The host's endpoint: answers each request with the next behaviour, the last one for ever."""

    def __init__(self, path: str, *behaviours: Behaviour | bytes) -> None:
        self.path = path
        self.requests: list[bytes] = []
        self.ended = 0
        self._behaviours = list(behaviours)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
            if b"chunked" in head.lower():
                end = Body(length=None, chunked=True)
                while not end.done:
                    body += (data := await reader.readexactly(1))
                    end.feed(data)
            self.requests.append(head + body)
            behaviour = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]
            if isinstance(behaviour, bytes):
                writer.write(behaviour)
                await writer.drain()
            else:
                await behaviour(head + body, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            writer.close()
            self._tasks.discard(task)

    async def open(self) -> Upstream:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def close(self) -> None:
        assert self._server
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        Path(self.path).unlink(missing_ok=True)


@asynccontextmanager
async def upstream(folder: Path, name: str, *behaviours: Behaviour | bytes) -> AsyncIterator[Upstream]:
    server = await Upstream(str(folder / name), *behaviours).open()
    try:
        yield server
    finally:
        await server.close()


async def silent(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def stalls(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begins to answer and goes no further."""
    writer.write(CHUNKED + b"5\r\nhello\r\n")
    await reader.read()


async def breaks(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CHUNKED + b"5\r\nhello\r\n")
    await writer.drain()
    await asyncio.sleep(0.05)


async def only_head(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CHUNKED)
    await reader.read()


async def whole_answer(reader: asyncio.StreamReader, *, to_head: bool = False) -> bytes:
    """Up to its own end, as real programs read one; that of the connection comes later."""
    answer, end = b"", Response(to_head=to_head)
    while not end.done and (data := await reader.read(1 << 16)):
        answer += data
        end.feed(data)
    return answer


class Address:
    """The program's model address, used by the test in the program's place."""

    def __init__(self, listener: socket.socket) -> None:
        self._name = listener.getsockname()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._name)

    async def ask(self, body: bytes = b"{}", method: bytes = b"POST", head: bytes = b"") -> bytes:
        """The whole answer; raises ConnectionResetError when it is cut."""
        reader, writer = await self.connect()
        try:
            length = b"" if method == b"GET" else b"Content-Length: %d\r\n" % len(body)
            writer.write(method + b" /v1/x HTTP/1.1\r\nHost: m\r\nConnection: keep-alive\r\n" + length + head + b"\r\n")
            writer.write(body if method != b"GET" else b"")
            return await whole_answer(reader, to_head=method == b"HEAD")
        finally:
            writer.close()


@pytest.fixture
def model() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


async def notes(held: Held, what: str) -> dict[str, Any]:
    frame = await Reader(held).until(lambda f: f.kind == "note" and json.loads(f.data)["what"] == what)
    return dict(json.loads(frame.data))


async def kept(keep: Starter, folder: Path, model: socket.socket, **changes: Any) -> tuple[KeeperAddress, Address]:
    address = await keep(program(folder, **changes), model)
    return address, Address(model)


def test_answer_goes_through(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        async with upstream(tmp_path, "u", HELLO) as server:
            await hold(address, upstream=server.path)
            answer = await to.ask(b"question")
            assert answer == CHUNKED.replace(b"Keep-Alive: timeout=5", b"Connection: close") + HELLO[len(CHUNKED) :]
            (request,) = server.requests
            assert request.endswith(b"\r\n\r\nquestion")
            assert b"Connection: close" in request
            assert b"keep-alive" not in request

    run(work())


@pytest.mark.parametrize(
    ("method", "response", "body"),
    [
        (b"POST", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd", b"abc"),
        (b"POST", b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", b""),
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", b""),
        (b"GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (b"POST", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"POST", b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", b"busy"),
    ],
)
def test_ends_of_answers(
    tmp_path: Path, keep: Starter, model: socket.socket, method: bytes, response: bytes, body: bytes
) -> None:
    async def answers(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        await reader.read()  # the upstream's end of the connection stays open

    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        async with upstream(tmp_path, "u", answers) as server:
            await hold(address, upstream=server.path)
            answer = await to.ask(method=method)
            assert answer.partition(b"\r\n\r\n")[2] == body
            assert b"Connection: close" in answer

    run(work())


def test_a_program_that_asks_again_on_a_connection_that_ends_is_answered(
    tmp_path: Path, keep: Starter, model: socket.socket
) -> None:
    """Bun's pool gives a connection out again after an answer without a body, whatever the answer says of it."""
    bodies = [b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n", HELLO, HELLO]

    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        async with upstream(tmp_path, "u", *bodies) as server:
            await hold(address, upstream=server.path)
            reader, writer = await to.connect()
            for number, answer in enumerate((b"405 No", b"hello", b"hello")):
                request = b"POST /%d HTTP/1.1\r\nContent-Length: 4\r\n\r\n" % number
                writer.write(request)
                await writer.drain()
                await asyncio.sleep(0.05)
                writer.write(b"body")
                assert answer in await whole_answer(reader)
            assert [request.split(b" ")[1] for request in server.requests] == [b"/0", b"/1", b"/2"]
            assert await reader.read() == b""  # in the end it is told so
            writer.close()

    run(work())


def test_each_request_says_when_it_came(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    """By the number of the log's next frame; what the program says of it itself is dropped."""

    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        async with upstream(tmp_path, "u", HELLO) as server:
            held = await hold(address, upstream=server.path)
            reader = Reader(held)
            await to.ask(head=b"X-Hostler-Frame: 99\r\n")
            await held.send("one", b"{}")
            await reader.until(lambda frame: frame.key == "one")
            await to.ask()
        stamps = [
            int(line.split(b":")[1])
            for request in server.requests
            for line in request.split(b"\r\n")
            if line.startswith(b"x-hostler-frame:")
        ]
        (given,) = [frame.no for frame in reader.frames if frame.key == "one"]
        assert len(stamps) == 2
        assert stamps[0] <= given < stamps[1]

    run(work())


def test_chunked_request_and_expect_continue(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        async with upstream(tmp_path, "u", HELLO) as server:
            await hold(address, upstream=server.path)
            reader, writer = await to.connect()
            writer.write(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            for part in (b"3\r\nab", b"c\r\n", b"5;x=y\r\n0\r\n\r\n\r\n", b"0\r\n", b"\r\n"):
                assert not server.requests
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
            assert (await reader.read()).endswith(b"hello\r\n0\r\n\r\n")
            writer.close()
            assert server.requests[0].endswith(b"3\r\nabc\r\n5;x=y\r\n0\r\n\r\n\r\n0\r\n\r\n")
            assert b"Expect" not in server.requests[0]

    run(work())


def test_no_host_holds_the_request(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        asks = [asyncio.create_task(to.ask(b"%d" % i)) for i in range(5)]
        await asyncio.sleep(0.3)
        assert not any(ask.done() for ask in asks)
        async with upstream(tmp_path, "u", HELLO) as server:
            await hold(address, upstream=server.path)
            for answer in await asyncio.gather(*asks):
                assert b"hello" in answer
            assert sorted(request[-1:] for request in server.requests) == [b"0", b"1", b"2", b"3", b"4"]

    run(work())


@pytest.mark.parametrize("behaviour", [silent, only_head])
def test_host_dies_before_the_answer(tmp_path: Path, keep: Starter, model: socket.socket, behaviour: Behaviour) -> None:
    """The next host gets the same request; the program sees nothing of it."""

    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        async with upstream(tmp_path, "one", behaviour) as one, upstream(tmp_path, "two", HELLO) as two:
            held = await hold(address, upstream=one.path)
            ask = asyncio.create_task(to.ask(b"question"))
            while not one.requests:
                await asyncio.sleep(0.005)
            await one.close()
            await held.detach()
            await asyncio.sleep(0.3)
            assert not ask.done()
            await hold(address, epoch=2, upstream=two.path)
            assert b"hello" in await ask
            assert two.requests == one.requests

    run(work())


def test_host_put_out_before_the_answer(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        async with upstream(tmp_path, "one", silent) as one, upstream(tmp_path, "two", HELLO) as two:
            await hold(address, upstream=one.path)
            ask = asyncio.create_task(to.ask(b"question"))
            while not one.requests:
                await asyncio.sleep(0.005)
            await hold(address, epoch=2, upstream=two.path)
            assert b"hello" in await ask
            while not one.ended:
                await asyncio.sleep(0.005)

    run(work())


def test_host_put_out_in_mid_answer(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    """Its call in flight is cut: a host that lost its lease no longer speaks to the program."""

    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        async with upstream(tmp_path, "one", stalls) as one, upstream(tmp_path, "two", HELLO) as two:
            await hold(address, upstream=one.path)
            reader, writer = await to.connect()
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"hello\r\n")
            held = await hold(address, epoch=2, upstream=two.path)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
            assert await notes(held, "cut") == {"call": 1, "what": "cut", "bytes": 10}
            assert not two.requests

    run(work())


def test_cut_stream(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        close_delimited = b"HTTP/1.1 200 OK\r\n\r\nseems whole"
        short = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"
        async with upstream(tmp_path, "u", breaks, close_delimited, short, HELLO) as server:
            held = await hold(address, upstream=server.path)
            for call, size in ((1, 10), (2, 11), (3, 5)):
                with pytest.raises(ConnectionResetError):
                    await to.ask()
                assert await notes(held, "cut") == {"call": call, "what": "cut", "bytes": size}
            assert b"hello" in await to.ask()

    run(work())


def test_cut_is_noted_between_the_attempts(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    """After all that the program made of the cut answer, before what it makes of the next one."""
    code = """
import socket, sys
for attempt in range(2):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as s:
        s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        try:
            while data := s.recv(1 << 16): got = data
        except ConnectionError: pass
        for i in range(2000): print(attempt, i)
        sys.stdout.flush()
"""

    async def work() -> None:
        from keeper_support import PYTHON

        name, port = model.getsockname()
        address, _ = await kept(keep, tmp_path, model, argv=[*PYTHON, code, name, str(port)])
        async with upstream(tmp_path, "u", breaks, HELLO) as server:
            reader = Reader(await hold(address, upstream=server.path))
            await reader.exit()
            order = [f.data[:1] if f.kind == "out" else f.kind for f in reader.frames if f.kind in ("out", "note")]
            assert order == [b"0"] * 2000 + ["note"] + [b"1"] * 2000

    run(work())


def test_living_host_without_an_answer(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    """Asked once more, then the program is told; it is not for the keeper to repeat paid calls for ever."""

    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        async with upstream(tmp_path, "u", b"") as server:
            held = await hold(address, upstream=server.path)
            with pytest.raises(ConnectionResetError):
                await to.ask()
            assert len(server.requests) == 2
            assert (await notes(held, "cut"))["bytes"] == 0

    run(work())


def test_host_whose_endpoint_is_late(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        await hold(address, upstream=str(tmp_path / "u"))
        ask = asyncio.create_task(to.ask())
        await asyncio.sleep(0.3)
        async with upstream(tmp_path, "u", HELLO):
            assert b"hello" in await ask

    run(work())


def test_program_gives_up(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        _, writer = await to.connect()
        writer.write(b"GET /1 HTTP/1.1\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()  # while it is held
        async with upstream(tmp_path, "u", stalls, HELLO) as server:
            held = await hold(address, upstream=server.path)
            assert await notes(held, "gone") == {"call": 1, "what": "gone", "bytes": 0}
            reader, writer = await to.connect()
            writer.write(b"GET /2 HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"hello\r\n")
            writer.close()  # in mid-answer
            assert await notes(held, "gone") == {"call": 2, "what": "gone", "bytes": 10}
            while not server.ended:
                await asyncio.sleep(0.005)
            assert b"hello" in await to.ask()
            assert [r.split()[1] for r in server.requests] == [b"/2", b"/v1/x"]

    run(work())


def test_hold_limit(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model, hold_limit=0.3)
        begin = time.monotonic()
        assert await to.ask() == b""  # closed without an answer, never an error answer
        assert 0.25 < time.monotonic() - begin < 2
        async with upstream(tmp_path, "u", silent) as server:
            held = await hold(address, upstream=server.path)
            ask = asyncio.create_task(to.ask())
            await asyncio.sleep(0.6)
            assert not ask.done()  # with a host the time is the host's affair
            await server.close()
            await held.detach()
            assert await ask == b""

    run(work())


def test_not_http(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        _, to = await kept(keep, tmp_path, model)
        for junk in (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01" * 50_000,
            b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        ):
            reader, writer = await to.connect()
            writer.write(junk)
            async with asyncio.timeout(5):
                try:
                    assert (await reader.read())[:12] in (b"HTTP/1.1 400", b"")
                except ConnectionError:
                    pass
            writer.close()

    run(work())


def test_big_bodies_and_a_slow_program(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    size = 20_000_000

    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        big = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"y" * size
        async with upstream(tmp_path, "u", big) as server:
            await hold(address, upstream=server.path)
            reader, writer = await to.connect()
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.3)
            from keeper_support import rss

            assert rss(address.pid) < 40  # the answer is not taken in faster than the program reads it
            assert await reader.readexactly(size) == b"y" * size
            assert await reader.read() == b""
            writer.close()
            assert len(server.requests[0]) > size

    run(work())


def test_crowd_of_connections_does_not_lock_the_host_out(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        idle = [await to.connect() for _ in range(200)]
        async with upstream(tmp_path, "u", HELLO) as server:
            held = await hold(address, upstream=server.path)
            await held.send("k", b"echo fine")
            await Reader(held).out(b"fine")
            for _, writer in idle:
                writer.close()
            assert b"hello" in await to.ask()

    run(work())


def test_nothing_is_kept_of_calls_that_are_over(tmp_path: Path, keep: Starter, model: socket.socket) -> None:
    async def work() -> None:
        address, to = await kept(keep, tmp_path, model)
        fds = Path(f"/proc/{address.pid}/fd")
        async with upstream(tmp_path, "u", HELLO) as server:
            await hold(address, upstream=server.path)
            await to.ask()
            before = len(list(fds.iterdir()))
            for _ in range(20):
                await asyncio.gather(*(to.ask(b"x" * 1000) for _ in range(10)))
            async with asyncio.timeout(5):
                while len(list(fds.iterdir())) > before:
                    await asyncio.sleep(0.01)

    run(work())


def test_model_address_ends_with_the_keeper(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = await keep(program(tmp_path), listener)
            to = Address(listener)
        held = await hold(address)
        ask = asyncio.create_task(to.ask())
        await asyncio.sleep(0.1)
        assert below(address)
        await held.kill()
        assert await ask == b""
        with pytest.raises(ConnectionRefusedError):
            await to.connect()

    run(work())


# ---- HTTP alone ----------------------------------------------------------------------------------------------------------


def test_bodies_however_they_are_cut() -> None:
    chunked = b"4\r\nab\r\n\r\n1e;ext\r\n" + b"z" * 30 + b"\r\n0\r\nTrailer: x\r\n\r\n"
    for raw, body in ((chunked, Body(length=None, chunked=True)), (b"x" * 9, Body(length=9))):
        for size in range(1, len(raw) + 1):
            body = Body(length=None, chunked=True) if raw is chunked else Body(length=9)
            extra = raw + b"next"
            used = 0
            for i in range(0, len(extra), size):
                used += body.feed(extra[i : i + size])
            assert (used, body.done) == (len(raw), True)
        assert body.done


@pytest.mark.parametrize("raw", [b"zz\r\n", b"-1\r\n", b"2\r\nabc\r\n", b"1" * 5000])
def test_bad_chunks(raw: bytes) -> None:
    with pytest.raises(Malformed):
        Body(length=None, chunked=True).feed(raw)


def test_request_and_response_however_they_are_cut() -> None:
    raw = b"POST /a HTTP/1.1\r\nHost: b\r\nContent-Length: 4\r\n\r\nbody"
    answer = b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"
    for size in range(1, len(answer) + 1):
        request = Request(1000)
        whole = [request.feed(raw[i : i + size]) for i in range(0, len(raw), size)]
        assert whole == [False] * (len(whole) - 1) + [True]
        assert request.raw == raw.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        response = Response(to_head=False)
        out = b"".join(response.feed(answer[i : i + size]) for i in range(0, len(answer), size))
        assert response.done
        assert response.body_bytes == 4
        assert out == b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
    with pytest.raises(Malformed):
        Request(10).feed(raw)
    with pytest.raises(Malformed):
        Request(1000).feed(b"GET / HTTP/1.1\r\nContent-Length: +4\r\n\r\n")
