"""The bridge's event loop: who reads, who writes, and what waits to be written."""

from __future__ import annotations

import os
import selectors
import socket

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HIGH_WATER = 1 << 20  # bytes that wait for one reader before what they come from is no longer read
CHUNK = 1 << 16


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}

    def read(self, fd: int, callback: Callable[[], None] | None) -> None:
        self._set(self._readers, fd, callback)

    def write(self, fd: int, callback: Callable[[], None] | None) -> None:
        self._set(self._writers, fd, callback)

    def forget(self, fd: int) -> None:
        self.read(fd, None)
        self.write(fd, None)

    def run_once(self, timeout: float | None = None) -> None:
        for key, ready in self._selector.select(timeout):
            for mask, callbacks in ((selectors.EVENT_READ, self._readers), (selectors.EVENT_WRITE, self._writers)):
                if ready & mask and (callback := callbacks.get(key.fd)) is not None:
                    # A callback may wait in a loop of its own, in which that was read which is ready here.
                    try:
                        callback()
                    except BlockingIOError:
                        pass

    def _set(self, callbacks: dict[int, Any], fd: int, callback: Callable[[], None] | None) -> None:
        if callback is None:
            callbacks.pop(fd, None)
        else:
            callbacks[fd] = callback
        mask = (selectors.EVENT_READ if fd in self._readers else 0) | (
            selectors.EVENT_WRITE if fd in self._writers else 0
        )
        known = fd in self._selector.get_map()
        if mask and known:
            self._selector.modify(fd, mask)
        elif mask:
            self._selector.register(fd, mask)
        elif known:
            self._selector.unregister(fd)


class Out:
    """Bytes on their way to a pipe or a socket. When nobody reads there any more they are dropped."""

    def __init__(self, loop: Loop, fd: int, connection: socket.socket | None = None) -> None:
        self._loop = loop
        self._fd = fd
        self._connection = connection
        self._buffer = bytearray()
        self._ending = self.gone = False
        self.on_room: Callable[[], None] = lambda: None
        os.set_blocking(fd, False)

    @property
    def full(self) -> bool:
        return len(self._buffer) > HIGH_WATER

    @property
    def waiting(self) -> bool:
        return bool(self._buffer)

    def put(self, data: bytes) -> None:
        if not self.gone and not self._ending:
            self._buffer += data
            self._flush()

    def end(self) -> None:
        """No more will come: the reader sees the end behind what waits."""
        self._ending = True
        self._flush()

    def _flush(self) -> None:
        was_full = self.full
        try:
            while self._buffer and not self.gone:
                del self._buffer[: os.write(self._fd, self._buffer[:CHUNK])]
        except BlockingIOError:
            self._loop.write(self._fd, self._flush)
            if was_full and not self.full:
                self.on_room()
            return
        except OSError:
            self.gone = True
            self._buffer.clear()
        self._loop.write(self._fd, None)
        if self._ending and not self.gone:
            self.gone = True
            if self._connection is None:
                os.close(self._fd)
            else:
                try:
                    self._connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
        if was_full:
            self.on_room()
