"""The program's model calls where nobody can listen in its network from outside: through a forwarder in the container."""

from __future__ import annotations

import socket
import struct

from .engine import OUT, Stream
from .forward import CUT, HEADER
from .loop import CHUNK, Loop, Out

_RESET = struct.pack("ii", 1, 0)


class Tunnel:
    """``stream`` leads to the forwarder, ``port`` is the program's model address on this side."""

    def __init__(self, loop: Loop, stream: Stream, port: int) -> None:
        self._loop = loop
        self._stream = stream
        self._port = port
        self._out = Out(loop, stream.socket.fileno(), stream.socket)
        self._buffer = bytearray()
        self._connections: dict[int, tuple[socket.socket, Out]] = {}
        self._ended: set[int] = set()
        self.words = b""  # on its stderr
        self.ready = self.gone = False
        loop.read(stream.socket.fileno(), self._hear)

    def _hear(self) -> None:
        found = self._stream.read()
        if found is None:
            self.gone = True
            self._loop.forget(self._stream.socket.fileno())
            for number in tuple(self._connections):
                self._drop(number, reset=True)
            return
        for kind, data in found:
            if kind == OUT:
                self._buffer += data
            else:
                self.words += data[: 1 << 12]
        while len(self._buffer) >= HEADER.size:
            number, size = HEADER.unpack_from(self._buffer)
            length = 0 if size == CUT else size
            if len(self._buffer) < HEADER.size + length:
                break
            data = bytes(self._buffer[HEADER.size : HEADER.size + length])
            del self._buffer[: HEADER.size + length]
            if number == 0:
                self.ready = True
            else:
                self._take(number, size, data)

    def _take(self, number: int, size: int, data: bytes) -> None:
        if size == CUT:
            return self._drop(number, reset=True)
        if number not in self._connections:
            if not data:
                return
            try:
                connection = socket.create_connection(("127.0.0.1", self._port), 5.0)
            except OSError:
                return self._out.put(HEADER.pack(number, CUT))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[number] = connection, Out(self._loop, connection.fileno(), connection)
            self._loop.read(connection.fileno(), lambda: self._read(number))
        connection, out = self._connections[number]
        if data:
            out.put(data)
        else:
            out.end()
            self._end(number)

    def _read(self, number: int) -> None:
        connection, _ = self._connections[number]
        try:
            data = connection.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self._drop(number, reset=True)
            return self._out.put(HEADER.pack(number, CUT))
        self._out.put(HEADER.pack(number, len(data)) + data)
        if not data:
            self._loop.read(connection.fileno(), None)
            self._end(number)

    def _end(self, number: int) -> None:
        """One direction is over; the connection is when both are."""
        if number in self._ended:
            self._drop(number)
        else:
            self._ended.add(number)

    def _drop(self, number: int, *, reset: bool = False) -> None:
        self._ended.discard(number)
        found = self._connections.pop(number, None)
        if found is not None:
            connection, _ = found
            self._loop.forget(connection.fileno())
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.close()
