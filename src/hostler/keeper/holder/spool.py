"""The keeper's log on disk: numbered frames in segment files, freed from the front as they are acknowledged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from .frames import HEADER, LINE_PART, OUT

SEGMENT = 8 << 20
SUFFIX = ".seg"
_UNFINISHED = ".tmp"
_KEEP = 1 << 18  # an acknowledged last segment is kept up to this size: no new file for each acknowledgement


class Segment:
    """One file of the log. Its bytes are what goes over the wire, so that a host is served with sendfile."""

    __slots__ = ("fd", "first", "path", "size")

    def __init__(self, path: str, first: int) -> None:
        self.path = path
        self.first = first
        self.size = 0
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def append(self, data: bytes) -> None:
        """All or nothing: after an error (disk full) the segment is as it was."""
        view, offset = memoryview(data), self.size
        try:
            while view:
                written = os.pwrite(self.fd, view, offset)
                view, offset = view[written:], offset + written
        except OSError:
            os.ftruncate(self.fd, self.size)
            raise
        self.size = offset

    def remove(self) -> None:
        os.close(self.fd)
        os.unlink(self.path)


class LongLine:
    """A line over the part size, written to a segment of its own, which joins the log when the line is whole.

    So nothing stands between the parts of one line, and a host that has read up to any frame lacks no part.
    """

    def __init__(self, folder: str) -> None:
        self._segment = Segment(f"{folder}/line{_UNFINISHED}", 0)
        self._offsets: list[int] = []
        self.last: bytes | None = None

    @property
    def size(self) -> int:
        return self._segment.size

    def add(self, part: bytes, kind: bytes = LINE_PART) -> None:
        offset = self._segment.size
        self._segment.append(HEADER.pack(0, kind, len(part)) + part)
        self._offsets.append(offset)

    def number(self, first: int, folder: str) -> tuple[Segment, int]:
        """Number the parts from ``first`` on; the segment, under its final name, and the number after it."""
        if self.last is not None:
            self.add(self.last, OUT)
            self.last = None
        segment = self._segment
        for number, offset in enumerate(self._offsets, first):
            os.pwrite(segment.fd, number.to_bytes(8, "big"), offset)
        path = _path(folder, first)
        os.rename(segment.path, path)
        segment.path, segment.first = path, first
        return segment, first + len(self._offsets)


Entry = tuple[bytes, bytes] | LongLine


def _path(folder: str, first: int) -> str:
    return f"{folder}/{first:020d}{SUFFIX}"


class Spool:
    """``put`` adds, ``free`` forgets, a cursor reads. Numbers begin at 1; what an earlier keeper left is removed."""

    def __init__(self, folder: str, limit: int) -> None:
        os.makedirs(folder, 0o700, exist_ok=True)
        for name in os.listdir(folder):
            if name.endswith((SUFFIX, _UNFINISHED)):
                os.unlink(os.path.join(folder, name))
        self.folder = folder
        self.next = 1
        self._limit = limit
        self._segment_size = min(SEGMENT, max(limit // 8, 1))
        self._segments = [Segment(_path(folder, 1), 1)]

    @property
    def first(self) -> int:
        return self._segments[0].first

    @property
    def full(self) -> bool:
        return sum(segment.size for segment in self._segments) >= self._limit

    def put(self, entries: Sequence[Entry]) -> int:
        """Add entries; how many were added: fewer than given when the disk is full."""
        done = 0
        while done < len(entries):
            entry = entries[done]
            try:
                if isinstance(entry, LongLine):
                    count = 1
                    self._join(entry)
                else:
                    count = self._append(entries, done)
            except OSError:
                return done
            done += count
        return done

    def _append(self, entries: Sequence[Entry], start: int) -> int:
        pieces: list[bytes] = []
        number = self.next
        for entry in entries[start:]:
            if isinstance(entry, LongLine):
                break
            kind, payload = entry
            pieces += (HEADER.pack(number, kind, len(payload)), payload)
            number += 1
        if self._segments[-1].size >= self._segment_size:
            self._segments.append(Segment(_path(self.folder, self.next), self.next))
        self._segments[-1].append(b"".join(pieces))
        count, self.next = number - self.next, number
        return count

    def _join(self, line: LongLine) -> None:
        segment, following = line.number(self.next, self.folder)
        last = self._segments[-1]
        if last.size == 0:  # the same name and number; a cursor may stand in it
            os.close(last.fd)
            last.fd, last.size = segment.fd, segment.size
        else:
            self._segments.append(segment)
        self.next = following

    def free(self, number: int, reader: Cursor | None) -> None:
        """Forget whole segments up to frame ``number``, not the one that ``reader`` is in the middle of."""
        last = self._segments[-1]
        if number >= self.next - 1 and last.size >= min(_KEEP, self._segment_size):
            try:
                self._segments.append(Segment(_path(self.folder, self.next), self.next))
            except OSError:  # disk full: the next acknowledgement will do
                return
        if reader is not None:
            reader.advance()
        while len(self._segments) > 1 and self._segments[1].first <= number + 1:
            if reader is not None and reader.segment is self._segments[0]:
                return
            self._segments.pop(0).remove()

    def cursor(self, number: int) -> Cursor:
        """A cursor before frame ``number`` (first <= number <= next)."""
        segment = [s for s in self._segments if s.first <= number][-1]
        offset, current = 0, segment.first
        while current < number and offset < segment.size:
            offset += HEADER.size + HEADER.unpack(os.pread(segment.fd, HEADER.size, offset))[2]
            current += 1
        return Cursor(self, segment, offset)

    def after(self, segment: Segment) -> Segment | None:
        position = self._segments.index(segment) + 1
        return self._segments[position] if position < len(self._segments) else None


class Cursor:
    """How far one host has been sent the log."""

    def __init__(self, spool: Spool, segment: Segment, offset: int) -> None:
        self._spool = spool
        self.segment = segment
        self._offset = offset

    def send(self, fd: int, limit: int) -> bool:
        """Send at most about ``limit`` bytes; True when there is no more. BlockingIOError when the socket is full."""
        while limit > 0:
            self.advance()
            left = self.segment.size - self._offset
            if not left:
                return True
            sent = os.sendfile(fd, self.segment.fd, self._offset, min(left, limit))
            self._offset += sent
            limit -= sent
        return False

    def advance(self) -> None:
        """Out of segments that are read to their end, unless it is the last."""
        while self._offset == self.segment.size and (following := self._spool.after(self.segment)) is not None:
            self.segment, self._offset = following, 0


def read(folder: str) -> Iterator[tuple[int, bytes, bytes]]:
    """The frames that a dead keeper left in ``folder``; ends before a torn one."""
    expected = 0
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            while len(header := file.read(HEADER.size)) == HEADER.size:
                number, kind, length = HEADER.unpack(header)
                payload = file.read(length)
                if len(payload) < length or (expected and number != expected):
                    return
                expected = number + 1
                yield number, kind, payload
