"""The keeper's socket: who may come in, and the one host that is attached."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable

from .frames import ATTACH, HELLO, MAX_CONTROL, MAX_INPUT, REFUSED, Decoder, FrameTooLong, pack_json
from .loop import READ, WRITE, Loop, Timer, log
from .spool import Cursor

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any

    Admit = Callable[["Visitor", dict[str, Any]], None]  # takes the visitor in, or raises Refusal

_CHUNK = 1 << 18
_BURST = 4 << 20  # sent to the host before the others get their turn
_INTRODUCTION = 2.0
_MAX_VISITORS = 32


class Refusal(Exception):
    """Why a visitor is sent away; ``more`` goes along."""

    def __init__(self, reason: str, **more: int) -> None:
        super().__init__(reason)
        self.message = {"reason": reason, **more}


def same(a: str, b: str) -> bool:
    """Compare secrets in a time that does not tell where they differ."""
    x, y = a.encode(), b.encode()
    difference = len(x) ^ len(y)
    for i, j in zip(x, y, strict=False):
        difference |= i ^ j
    return difference == 0


class Door:
    """Accepts connections; each has two seconds to say who it is."""

    def __init__(self, loop: Loop, listener: socket.socket, admit: Admit) -> None:
        self._loop = loop
        self._admit = admit
        self._visitors: list[Visitor] = []
        loop.listen(listener, self._on_knock)

    def _on_knock(self, sock: socket.socket) -> bool:
        if len(self._visitors) >= _MAX_VISITORS:
            self._visitors[0].leave()
        self._visitors.append(Visitor(self._loop, sock, self._admit, self._visitors.remove))
        return True


class Visitor:
    """A connection that has not yet shown the token, or that waits for the answer to its one command."""

    def __init__(self, loop: Loop, sock: socket.socket, admit: Admit, on_left: Callable[[Visitor], None]) -> None:
        self._loop = loop
        self.sock = sock
        self._admit = admit
        self._on_left: Callable[[Visitor], None] | None = on_left
        self.decoder = Decoder(MAX_CONTROL)
        self._timer: Timer = loop.call_later(_INTRODUCTION, self.leave)
        loop.watch(sock, READ, self._on_ready)

    def leave(self) -> None:
        self.release()
        self.sock.close()

    def release(self) -> None:
        """No longer ours to watch: it has been taken in."""
        self._timer.cancel()
        self._loop.unwatch(self.sock)
        if self._on_left is not None:
            self._on_left(self)
            self._on_left = None

    def say(self, kind: bytes, message: dict[str, Any]) -> None:
        """A small answer fits the empty buffer of the socket; a visitor that is gone does not matter."""
        try:
            self.sock.send(pack_json(kind, message))
        except OSError:
            pass

    def _on_ready(self, ready: int) -> None:
        data = _receive(self.sock)
        if data is None:
            return
        try:
            frames = self.decoder.feed(data)
        except FrameTooLong:
            return self.leave()
        if frames:
            self._introduce(frames[0][1], frames[0][2])
        elif not data:
            self.leave()

    def _introduce(self, kind: bytes, payload: bytes) -> None:
        try:
            request = json.loads(payload) if kind == ATTACH else None
            if not isinstance(request, dict):
                raise ValueError("not an attach frame")
            self._admit(self, request)
        except Refusal as refusal:
            self.say(REFUSED, refusal.message)
            self.leave()
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            log(f"a visitor was sent away: {error!r}")
            self.leave()


class Client:
    """The attached host. The log goes to it straight from the segment files; there is no buffer of its own."""

    def __init__(
        self,
        loop: Loop,
        visitor: Visitor,
        cursor: Cursor,
        hello: dict[str, Any],
        on_frame: Callable[[int, bytes, bytes], None],
        on_left: Callable[[], None],
    ) -> None:
        visitor.release()
        self._loop = loop
        self._sock = visitor.sock
        self.cursor = cursor
        self._decoder = Decoder(MAX_INPUT)
        self._on_frame = on_frame
        self._on_left = on_left
        self.gone = False
        visitor.say(HELLO, hello)

    def pump(self) -> None:
        """Send what is new in the log."""
        if self.gone:
            return
        mask = READ
        try:
            if not self.cursor.send(self._sock.fileno(), _BURST):
                mask |= WRITE
        except BlockingIOError:
            mask |= WRITE
        except OSError:
            return self.drop()
        self._loop.watch(self._sock, mask, self._on_ready)

    def read_all(self) -> None:
        """Take everything that has arrived."""
        while not self.gone and self._read():
            pass

    def flush(self, limit: float) -> None:
        """Last words before the keeper ends: wait a little for the host to take them."""
        room = select.poll()
        room.register(self._sock, select.POLLOUT)
        deadline = time.monotonic() + limit
        while (left := deadline - time.monotonic()) > 0:
            try:
                if self.cursor.send(self._sock.fileno(), _CHUNK):
                    return
            except BlockingIOError:
                room.poll(1000 * left)
            except OSError:
                return

    def close(self) -> None:
        self.gone = True
        self._loop.unwatch(self._sock)
        self._sock.close()

    def drop(self) -> None:
        """It has left, or must."""
        if not self.gone:
            self.close()
            self._on_left()

    def _on_ready(self, ready: int) -> None:
        if ready & READ:
            self._read()
        if ready & WRITE:
            self.pump()

    def _read(self) -> bool:
        data = _receive(self._sock)
        if data is None:
            return False
        if not data:
            self.drop()
            return False
        try:
            frames = self._decoder.feed(data)
            for number, kind, payload in frames:
                self._on_frame(number, kind, payload)
        except (ValueError, IndexError) as error:
            log(f"the host spoke wrongly: {error!r}")
            self.drop()
        return True


def _receive(sock: socket.socket) -> bytes | None:
    """None when there is nothing yet, b'' at the end."""
    try:
        return sock.recv(_CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""
