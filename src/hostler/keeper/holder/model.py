"""The program's model address: keeps each request until a host has begun to answer it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable

from .http1 import Malformed, Request, Response
from .loop import READ, WRITE, Loop, Timer

_CHUNK = 1 << 16
_MAX_REQUEST = 64 << 20
_MAX_HELD = 256 << 20  # of all requests that are being read or kept
_MAX_CALLS = 128  # connections at a time; more wait in the backlog
_HIGH_WATER = 1 << 20
_RETRY_HOST = 0.2
_SAME_HOST_TRIES = 2  # a host that lives and closes without an answer is asked once more
_SETTLE = 3.0  # s: a busy program has told all that it made of a cut answer by then
_GRACE = 1.0  # s in which a program may ask again on a connection that it was told ends: one runtime's pool does
_LINGER = 2.0
_RESET = struct.pack("ii", 1, 0)


class ModelAddress:
    """Accepts the program's connections and hands their requests to the host of the day."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        hold_limit: float,
        note: Callable[[str], None],
        drain: Callable[[], None],
        frame: Callable[[], int],
    ) -> None:
        self.loop = loop
        self.hold_limit = hold_limit
        self.upstream: str | None = None
        self.held = 0  # bytes of requests
        self._listener = listener
        self._note = note
        self._drain = drain
        self.frame = frame  # the number of the log's next one
        self._calls: set[Call] = set()
        self._full = False
        self._numbers = 0
        self._cut: list[dict[str, object]] = []
        self._settling: Timer | None = None
        loop.listen(listener, self._on_connection)

    def host_came(self, upstream: str) -> None:
        self.upstream = upstream
        for call in list(self._calls):
            call.offer()

    def host_left(self) -> None:
        """Its calls in flight go on: it may have detached and live. If it died, they end by themselves."""
        self.upstream = None
        for call in list(self._calls):
            call.wait()

    def drop_calls(self) -> None:
        """The host was put out: nothing of what it still says reaches the program."""
        for call in list(self._calls):
            call.lose_host()

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def forget(self, call: Call) -> None:
        self._calls.discard(call)
        if self._full:
            self._full = False
            self.loop.listen(self._listener, self._on_connection)

    def note(self, call: int, what: str, size: int) -> None:
        self._note(json.dumps({"call": call, "what": what, "bytes": size}))

    def note_cut(self, call: int, size: int) -> None:
        """Noted a moment later, or when the program asks again: after all that it still makes of the cut answer, and
        before what it makes of the next one."""
        self._cut.append({"call": call, "what": "cut", "bytes": size})
        if self._settling is None:
            self._settling = self.loop.call_later(_SETTLE, self.settle)

    def settle(self) -> None:
        """Note the cuts that wait to be noted."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
            self._drain()
            for note in self._cut:
                self._note(json.dumps(note))
            self._cut.clear()

    def _on_connection(self, sock: socket.socket) -> bool:
        self.take(sock)
        return not self._full

    def take(self, sock: socket.socket) -> Call:
        """The next request that comes on this connection is a call of its own."""
        call = Call(self, sock)
        self._calls.add(call)
        self._full = len(self._calls) >= _MAX_CALLS
        return call


class Call:
    """One request of the program and its answer; the connection ends with it, but for a program that has not heard so."""

    def __init__(self, address: ModelAddress, program: socket.socket) -> None:
        self._address = address
        self._loop = address.loop
        self._program = program
        self._request = Request(_MAX_REQUEST)
        self._kept = b""  # the whole request, until the program has been given some of the answer
        self._held = 0  # what this connection's request counts for in the address's sum
        self._number = 0  # given when the request is whole
        self._host: socket.socket | None = None
        self._response = Response(to_head=False)
        self._to_program = bytearray()
        self._to_host = memoryview(b"")
        self._given = 0  # bytes of the answer's body that the program has been given
        self._begun = False
        self._tries = 0
        self._retry: Timer | None = None
        self._expiry: Timer | None = None
        self._closing = False
        self._ended = False  # the program was shown the end of the connection
        self._more = b""  # of the program's next request
        if program.family in (socket.AF_INET, socket.AF_INET6):
            program.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch()

    # ---- the request -----------------------------------------------------------------------------------------------

    def _on_program(self, ready: int) -> None:
        if ready & WRITE:
            self._flush_program()
        if ready & READ and self._program.fileno() >= 0:
            data = _receive(self._program)
            if data == b"":
                self._on_program_gone()
            elif data and not self._number:
                self.on_request(data)
            elif data and self._closing and self._number > 0 and not self._ended:
                self._more += data
                self._ask_again()

    def on_request(self, data: bytes) -> None:
        try:
            whole = self._request.feed(data)
        except Malformed as error:
            return self._refuse(b"400 Bad Request", str(error))
        self._hold(len(self._request.raw))
        if self._address.held > _MAX_HELD:
            return self._refuse(b"503 Service Unavailable", f"over {_MAX_HELD} bytes of requests are held here")
        if whole:
            self._number = self._address.next_number()
            self._kept = self._request.whole(self._address.frame())
            self._request.raw.clear()
            self._address.settle()
            self.offer()
            self.wait()
        elif self._request.wants_continue:
            self._request.wants_continue = False
            self._to_program += b"HTTP/1.1 100 Continue\r\n\r\n"
            self._flush_program()

    def _hold(self, size: int) -> None:
        self._address.held += size - self._held
        self._held = size

    def _refuse(self, status: bytes, why: str) -> None:
        self._request.raw.clear()
        self._hold(0)
        body = why.encode()
        self._to_program += (
            b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
            % (status, len(body), body)
        )
        self._number = -1
        self._last_words()

    def _on_program_gone(self) -> None:
        if self._number > 0 and not self._closing:
            self._address.note(self._number, "gone", self._given)
        self._close()

    # ---- the host --------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Start the clock of a request that no host has."""
        waits = self._number > 0 and self._host is None and not self._closing and self._address.upstream is None
        if waits and self._expiry is None:
            self._expiry = self._loop.call_later(self._address.hold_limit, self._expire)

    def offer(self) -> None:
        """Send the request to the host, if there is one and nobody has it."""
        if self._number <= 0 or self._host is not None or self._closing or self._address.upstream is None:
            return
        self._stop_timers()
        host = socket.socket(socket.AF_UNIX)
        host.setblocking(False)
        try:
            host.connect(self._address.upstream)
        except OSError:
            host.close()
            self._retry = self._loop.call_later(_RETRY_HOST, self.offer)
            return
        self._host = host
        self._response = Response(to_head=self._request.is_head)
        self._to_host = memoryview(self._kept)
        self._watch()

    def lose_host(self) -> None:
        if self._host is not None:
            self._on_host_gone(put_out=True)

    def _on_host(self, ready: int) -> None:
        if ready & WRITE and self._to_host:
            self._flush_host()
        if ready & READ and self._host is not None:
            data = _receive(self._host)
            if data == b"":
                self._on_host_gone()
            elif data:
                self._on_answer(data)

    def _flush_host(self) -> None:
        assert self._host is not None
        try:
            while self._to_host:
                self._to_host = self._to_host[self._host.send(self._to_host[:_CHUNK]) :]
        except BlockingIOError:
            pass
        except OSError:
            return self._on_host_gone()
        self._watch()

    def _on_answer(self, data: bytes) -> None:
        try:
            out = self._response.feed(data)
        except Malformed:
            return self._on_host_gone()
        if out and not self._begun:
            self._begun = True
            self._kept = b""
            self._hold(0)
        self._given = self._response.body_bytes
        self._to_program += out
        if self._response.done:
            self._drop_host()
            self._last_words()
        elif out:
            self._flush_program()

    def _on_host_gone(self, *, put_out: bool = False) -> None:
        """The end of the host's connection before the end of its answer."""
        self._drop_host()
        if self._begun:
            return self._cut()
        self._tries = 0 if put_out or self._address.upstream is None else self._tries + 1
        if self._tries >= _SAME_HOST_TRIES:
            return self._cut()
        # Not at once: if the host has died, the end of its own connection may come right behind this one.
        self._retry = self._loop.call_later(_RETRY_HOST, self.offer)
        self.wait()

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        """A reset, never an orderly end: an answer that runs to the end of the connection would look whole."""
        self._address.note_cut(self._number, self._given)
        self._close(reset=True)

    def _expire(self) -> None:
        self._address.note(self._number, "expired", 0)
        self._close()

    def _last_words(self) -> None:
        """Write what is left, then close in order."""
        self._closing = True
        self._flush_program()

    def _flush_program(self) -> None:
        try:
            while self._to_program:
                del self._to_program[: self._program.send(self._to_program[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            return self._on_program_gone()
        if self._closing and not self._to_program and self._expiry is None:
            if self._more:
                return self._ask_again()
            self._expiry = self._loop.call_later(_GRACE if self._number > 0 else 0.0, self._end)
        self._watch()

    def _ask_again(self) -> None:
        """The program's next request came behind the whole answer to this one."""
        if self._to_program:
            return
        self._stop_timers()
        self._loop.unwatch(self._program)
        self._address.forget(self)
        self._address.take(self._program).on_request(self._more)

    def _end(self) -> None:
        self._ended = True
        try:
            self._program.shutdown(socket.SHUT_WR)
        except OSError:
            return self._close()
        # The program closes its side when it has read all; closing first could take that from it.
        self._expiry = self._loop.call_later(_LINGER, self._close)

    def _watch(self) -> None:
        self._loop.watch(self._program, READ | (WRITE if self._to_program else 0), self._on_program)
        if self._host is not None:
            mask = READ if len(self._to_program) < _HIGH_WATER else 0
            self._loop.watch(self._host, mask | (WRITE if self._to_host else 0), self._on_host)

    def _stop_timers(self) -> None:
        for timer in (self._retry, self._expiry):
            if timer is not None:
                timer.cancel()
        self._retry = self._expiry = None

    def _drop_host(self) -> None:
        if self._host is not None:
            self._loop.unwatch(self._host)
            self._host.close()
            self._host = None

    def _close(self, *, reset: bool = False) -> None:
        self._stop_timers()
        self._drop_host()
        if self._program.fileno() >= 0:
            self._loop.unwatch(self._program)
            if reset:
                self._program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._program.close()
        self._hold(0)
        self._address.forget(self)


def _receive(sock: socket.socket) -> bytes | None:
    """None when there is nothing yet, b'' at the end."""
    try:
        return sock.recv(_CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""
