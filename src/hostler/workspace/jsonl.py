"""The state of a file of JSON lines that a program may have died in the middle of writing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO

_CHUNK = 1 << 16


def whole(file: BinaryIO, size: int) -> tuple[int, bool]:
    """How many of the first ``size`` bytes are whole records, and whether the last of them lacks its newline."""
    start, last = _last_line(file, size)
    if not last:
        return size, False
    return (size, True) if _is_record(last) else (start, False)


def is_sound(file: BinaryIO, size: int) -> bool:
    """Whether the first ``size`` bytes look like records, line by line: no NUL, none that was cut off. There is one at least.

    Only the outside of each line is looked at; to parse 25 MB would keep every resume waiting.
    """
    file.seek(0)
    lines = 0
    while file.tell() < size and (line := file.readline()):
        line = line.strip()
        if line and (b"\0" in line or not line.startswith(b"{") or not line.endswith(b"}")):
            return False
        lines += bool(line)
    return lines > 0


def chunks(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """The bytes from ``start`` to ``end``. Raises EOFError when the file ends before."""
    file.seek(start)
    left = end - start
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise EOFError
        left -= len(chunk)
        yield chunk


def _last_line(file: BinaryIO, size: int) -> tuple[int, bytes]:
    """What follows the last newline, and where it begins."""
    tail = b""
    start = size
    while start:
        step = min(start, _CHUNK)
        file.seek(start - step)
        chunk = file.read(step)
        if (at := chunk.rfind(b"\n")) >= 0:
            return start - step + at + 1, chunk[at + 1 :] + tail
        tail = chunk + tail
        start -= step
    return 0, tail


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
