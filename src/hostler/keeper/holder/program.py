"""The agent program's three streams: whole lines out, whole lines in."""

from __future__ import annotations

import array
import fcntl
import os
import termios
from collections.abc import Callable, Sequence

from .frames import ERR, OUT, PART
from .loop import READ, WRITE, Loop
from .spool import Entry, LongLine

_CHUNK = 1 << 18
_MAX_LINE = 1 << 30


class Lines:
    """Cuts stdout at byte 0x0A only; a line that grows long is moved to disk while it grows."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._tail = bytearray()
        self._long: LongLine | None = None

    def feed(self, data: bytes) -> list[Entry]:
        head, *rest = data.split(b"\n")
        self._tail += head
        if not rest:
            return []
        entries = [self._end(), *((OUT, line) for line in rest[:-1])]
        self._tail += rest[-1]
        return entries

    def finish(self) -> list[Entry]:
        """What is left without a newline is a line too."""
        return [self._end()] if self._tail or self._long else []

    def spill(self) -> list[Entry]:
        """Move a long tail to disk. Raises OSError, changing nothing, when the disk is full."""
        if len(self._tail) < PART:
            return []
        if self._long is None:
            self._long = LongLine(self._folder)
        while len(self._tail) >= PART:
            self._long.add(bytes(self._tail[:PART]))
            del self._tail[:PART]
        return [self._end()] if self._long.size >= _MAX_LINE else []

    def _end(self) -> Entry:
        line, self._tail = bytes(self._tail), bytearray()
        if self._long is None:
            return OUT, line
        long, self._long = self._long, None
        long.last = line
        return long


class Program:
    """Reads stdout and stderr into ``record`` while the gate is open; writes queued lines to stdin."""

    def __init__(
        self,
        loop: Loop,
        pipes: tuple[int, int, int],
        lines: Lines,
        record: Callable[[Sequence[Entry]], None],
        on_first_word: Callable[[], None],
        on_closed: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._stdin, self._stdout, self._stderr = pipes
        self._lines = lines
        self._record = record
        self._on_first_word: Callable[[], None] | None = on_first_word
        self._on_closed = on_closed
        self._queue = bytearray()
        self._closing = False
        for fd in pipes:
            os.set_blocking(fd, False)
        self.stdin_inode = os.fstat(self._stdin).st_ino

    def gate(self, open_: bool) -> None:
        """Whether output is read at all; shut, the program blocks when its pipes are full."""
        for fd, callback in ((self._stdout, self._on_out), (self._stderr, self._on_err)):
            if fd >= 0:
                self._loop.watch(fd, READ if open_ else 0, callback)

    def spill(self) -> None:
        """Raises OSError when the disk is full."""
        if entries := self._lines.spill():
            self._record(entries)

    def drain(self) -> None:
        """Take what the program has written so far, at most what its pipes hold."""
        for fd, read in ((self._stderr, self._read_err), (self._stdout, self._read_out)):
            if fd >= 0:
                waiting = array.array("i", [0])
                fcntl.ioctl(fd, termios.FIONREAD, waiting)
                if waiting[0]:
                    read(waiting[0])

    def finish(self) -> None:
        """The program is gone: the rest of its output. Whoever holds its stdout still is not listened to."""
        self.drain()
        self._close_out()
        self._close_err()
        if entries := self._lines.finish():
            self._record(entries)
        self._queue.clear()
        self.close_stdin()

    def write(self, line: bytes) -> None:
        if self._stdin >= 0:
            self._queue += line + b"\n"
            self._flush()

    def close_stdin(self) -> None:
        """After what is queued."""
        self._closing = True
        self._flush()

    def _on_out(self, ready: int) -> None:
        self._read_out(_CHUNK)

    def _on_err(self, ready: int) -> None:
        self._read_err(_CHUNK)

    def _read_out(self, limit: int) -> None:
        data = _read(self._stdout, limit)
        if data == b"":
            self._close_out()
            self._on_closed("stdout")
        elif data:
            if self._on_first_word is not None:
                self._on_first_word()
                self._on_first_word = None
            # Always recorded, even if nothing is complete: the keeper then looks after a tail grown long.
            self._record(self._lines.feed(data))

    def _read_err(self, limit: int) -> None:
        data = _read(self._stderr, limit)
        if data == b"":
            self._close_err()
        elif data:
            self._record([(ERR, data)])

    def _close_out(self) -> None:
        self._stdout = self._close(self._stdout)

    def _close_err(self) -> None:
        self._stderr = self._close(self._stderr)

    def _close(self, fd: int) -> int:
        if fd >= 0:
            self._loop.unwatch(fd)
            os.close(fd)
        return -1

    def _flush(self, ready: int = WRITE) -> None:
        if self._stdin < 0:
            return
        try:
            while self._queue:
                del self._queue[: os.write(self._stdin, self._queue[: 1 << 16])]
        except BlockingIOError:
            self._loop.watch(self._stdin, WRITE, self._flush)
            return
        except OSError:  # the program closed its stdin or is gone
            self._queue.clear()
            self._closing = True
            self._on_closed("stdin")
        self._loop.unwatch(self._stdin)
        if self._closing:
            self._stdin = self._close(self._stdin)


def _read(fd: int, limit: int) -> bytes | None:
    """None when there is nothing yet, b'' at the end."""
    try:
        return os.read(fd, limit)
    except BlockingIOError:
        return None
    except OSError:
        return b""
