"""The host's side of a keeper: attached, it reads the program's frames and speaks to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from ..types.runtime import Frame, Send
from .address import Hello, KeeperAddress
from .errors import KeeperError, KeeperGone, KeeperRefused, KeeperReplaced
from .frames import DEFAULT_LINE_LIMIT, Joiner
from .holder import frames as wire
from .launch import alive, destroy

_BATCH = 1 << 18
_READ = 1 << 16  # bytes that are taken at a time: what else the loop has to do waits for them
_UNSENT = 1 << 16  # bytes that may wait for the keeper to take them
_WAIT = 5.0
_SWEEP = 2.0
_MAX_GRACE = 2.0
_GRACE = 1.0


async def attach(
    address: KeeperAddress,
    *,
    epoch: int,
    holder: str,
    after: int,
    upstream: str | None,
    timeout: float = _WAIT,
    line_limit: int = DEFAULT_LINE_LIMIT,
) -> Held:
    """Become the keeper's one host. ``after`` is the number of the last frame already committed; ``upstream`` the path
    of the unix socket that answers the program's model calls.

    KeeperGone when it is dead; KeeperRefused when it does not let us in.
    """
    introduction = {"after": after, "upstream": upstream}
    reader, writer, kind, message = await _introduce(address, epoch, holder, introduction, timeout)
    if kind != wire.HELLO:
        writer.close()
        raise _refused(address, message)
    return Held(address, holder, Hello(**message), reader, writer, Joiner(after, line_limit))


async def attached(address: KeeperAddress, *, epoch: int, holder: str) -> bool:
    """Whether a host is attached to the keeper now. ``epoch`` and ``holder`` are those of the session's lease; nobody is
    disturbed. KeeperGone when it is dead, KeeperRefused when they are out of date."""
    _, writer, kind, message = await _introduce(address, epoch, holder, {"command": "probe"}, _WAIT)
    writer.close()
    if kind != wire.DONE:
        raise _refused(address, message)
    return bool(message["attached"])


async def end(address: KeeperAddress, *, epoch: int, holder: str, grace: float = _GRACE) -> None:
    """End a program that this host is not attached to, its whole tree and the keeper; politely while the keeper
    understands us, else at once. KeeperRefused when a host with a newer epoch holds it."""
    request = {"command": "end", "grace": grace}
    with contextlib.suppress(KeeperGone):
        _, writer, kind, message = await _introduce(address, epoch, holder, request, 2 * grace + 3.0)
        writer.close()
        if kind != wire.DONE and message.get("reason") == "stale":
            raise _refused(address, message)
    await _destroyed(address)


async def _destroyed(address: KeeperAddress) -> None:
    """It has said that it ends: wait a little for that, then see to it."""
    for _ in range(100):
        if not alive(address):
            break
        await asyncio.sleep(0.005)
    await asyncio.to_thread(destroy, address)


class Held:
    """A program that this host holds through its keeper. To be used on one event loop."""

    def __init__(
        self,
        address: KeeperAddress,
        holder: str,
        hello: Hello,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        joiner: Joiner,
    ) -> None:
        self.address = address
        self.hello = hello
        self._holder = holder
        self._reader = reader
        self._writer = writer
        self._decoder = wire.Decoder(wire.MAX_INPUT + wire.MAX_CONTROL)
        self._joiner = joiner
        self._left = False
        self._exited = False
        self._ending = False

    def batches(self) -> AsyncIterator[list[Frame]]:
        """The frames in order, all that have arrived at a time. Ends after `detach`, `end`, `kill`, and after the
        program's exit frame when the keeper ends. A wait for the next batch may be cancelled and begun again."""
        return _Batches(self._next_batch)

    async def _next_batch(self) -> list[Frame]:
        batch: list[Frame] = []
        while not batch:
            if self._left:
                raise StopAsyncIteration
            try:
                data = await self._reader.read(_READ)
            except OSError:
                data = b""
            if not data:
                if not (self._left or self._exited or self._ending):
                    raise await self._lost()
                self._writer.close()
                raise StopAsyncIteration
            batch = list(self._joiner.join(self._decoder.feed(data)))
        self._exited = batch[-1].kind == "exit"
        return batch

    async def send(self, key: str, data: bytes) -> None:
        """One line for the program's stdin, without its newline. A key that was delivered before is dropped."""
        await self.send_all([Send(key, data)])

    async def send_all(self, sends: Iterable[Send]) -> None:
        """Several, in one go."""
        if frames := [_input(send) for send in sends]:
            await self._write(b"".join(frames))

    async def open_turn(self) -> None:
        """A turn begins: what runs now is the program, what comes is the turn's."""
        await self._write(wire.pack(wire.OPEN_TURN))

    async def ack(self, no: int, *, turn_done: bool = False) -> None:
        """Everything up to frame ``no`` is committed and need not be kept."""
        await self._write(wire.pack(wire.ACK_DONE if turn_done else wire.ACK, number=no))

    async def sweep_turn(self) -> None:
        """Kill what was started since `open_turn`, grandchildren in their own sessions included; not the program."""
        await self._command({"command": "sweep"}, _SWEEP + 1.0)

    async def end(self, grace: float = _GRACE) -> None:
        """End the program, its whole tree and the keeper: close stdin, after ``grace`` SIGTERM, then SIGKILL. What the
        program said meanwhile stays in the log on disk."""
        await self._end(min(grace, _MAX_GRACE))

    async def kill(self) -> None:
        """The same without grace."""
        await self._end(0.0)

    async def detach(self) -> None:
        """Leave the program running under its keeper."""
        self._left = True
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass

    async def _end(self, grace: float) -> None:
        self._ending = True
        try:
            # Replies when nothing is left but itself. The bound holds for a keeper that no longer answers, too.
            await self._command({"command": "end", "grace": grace}, 2 * grace + 3.0)
        except KeeperReplaced:
            self._ending = False
            raise
        except KeeperError:
            pass
        await _destroyed(self.address)
        await self.detach()

    async def _write(self, frames: bytes) -> None:
        if self._left:
            raise KeeperError("this host has detached from the keeper")
        try:
            if self._writer.is_closing():
                raise ConnectionError
            self._writer.write(frames)
            if self._writer.is_closing() or self._writer.transport.get_write_buffer_size() > _UNSENT:
                async with asyncio.timeout(_WAIT):
                    await self._writer.drain()
        except TimeoutError:
            raise KeeperGone(f"the keeper of run {self.address.mark} takes nothing for {_WAIT:g} s") from None
        except OSError:
            raise await self._lost() from None

    async def _command(self, command: dict[str, Any], timeout: float) -> dict[str, Any]:
        """On a connection of its own: the answer need not wait behind frames that nobody reads."""
        introduced = await _introduce(self.address, self.hello.epoch, self._holder, command, timeout)
        _, writer, kind, message = introduced
        writer.close()
        if kind != wire.DONE:
            refusal = _refused(self.address, message)
            raise self._replaced() if refusal.reason == "stale" else refusal
        return message

    async def _lost(self) -> KeeperError:
        """Why the connection has ended."""
        self._writer.close()
        try:
            answer = await self._command({"command": "probe"}, _WAIT)
        except KeeperReplaced as error:
            return error
        except KeeperError:
            return KeeperGone(f"the keeper of run {self.address.mark} is gone; what it logged is in {self.address.dir}")
        if answer["attached"]:
            return self._replaced()
        return KeeperGone(f"the keeper of run {self.address.mark} has closed the connection; attach again")

    def _replaced(self) -> KeeperReplaced:
        return KeeperReplaced(
            f"another host has taken over run {self.address.mark} (ours was epoch {self.hello.epoch})"
        )


def _input(send: Send) -> bytes:
    if b"\n" in send.data:
        raise ValueError("an input is one line: it may not contain a newline")
    payload = wire.pack_input(send.key, send.data)
    if len(payload) > wire.MAX_INPUT:
        raise ValueError(f"an input of {len(send.data)} bytes is over the limit of {wire.MAX_INPUT}")
    return wire.pack(wire.SEND, payload)


class _Batches(AsyncIterator[list[Frame]]):
    """Not a generator: that would be at its end after a cancelled wait."""

    def __init__(self, next_batch: Callable[[], Awaitable[list[Frame]]]) -> None:
        self._next_batch = next_batch

    async def __anext__(self) -> list[Frame]:
        return await self._next_batch()


async def _introduce(
    address: KeeperAddress, epoch: int, holder: str, request: dict[str, Any], timeout: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes, dict[str, Any]]:
    """Connect, say who we are and what we want, read the answer."""
    message = {"protocol": wire.PROTOCOL, "token": address.token, "epoch": epoch, "holder": holder, **request}
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_unix_connection(sock=await _connect(address.socket), limit=_BATCH)
            writer.write(wire.pack_json(wire.ATTACH, message))
            header = await reader.readexactly(wire.HEADER.size)
            _, kind, length = wire.HEADER.unpack(header)
            answer = json.loads(await reader.readexactly(length))
    except TimeoutError:
        _close(writer)
        raise KeeperGone(f"the keeper of run {address.mark} does not answer within {timeout:g} s") from None
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        _close(writer)
        where = f"; what it logged is in {address.dir}" if os.path.isdir(address.dir) else ""
        raise KeeperGone(f"the keeper of run {address.mark} is not there ({error}){where}") from None
    except BaseException:
        _close(writer)
        raise
    return reader, writer, kind, answer


async def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        while True:
            try:
                sock.connect(path)
                return sock
            except BlockingIOError:  # a crowd is before the door; a unix socket then does not go on by itself
                await asyncio.sleep(0.01)
    except BaseException:
        sock.close()
        raise


def _close(writer: asyncio.StreamWriter | None) -> None:
    if writer is not None:
        writer.close()


def _refused(address: KeeperAddress, message: dict[str, Any]) -> KeeperRefused:
    reason = str(message.get("reason"))
    first, next = int(message.get("first", 0)), int(message.get("next", 0))
    words = {
        "stale": f"a host with epoch {message.get('epoch')} holds it",
        "token": "the token is not its own",
        "gap": f"it has frames {first} to {next - 1} only",
        "protocol": f"it speaks protocol {message.get('protocol')}, this host {wire.PROTOCOL}: another version of hostler",
    }
    return KeeperRefused(
        f"the keeper of run {address.mark} refuses: {words.get(reason, reason)}", reason, first=first, next=next
    )
