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


def is_sound(file: BinaryIO, start: int, end: int) -> bool:
    """Whether the bytes from ``start`` to ``end`` are records and nothing else, at least one."""
    file.seek(start)
    found = False
    while file.tell() < end and (line := file.readline()):
        if line.strip():
            if not _looks_whole(line):
                return False
            found = True
    return found


def records(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The whole records among the first ``size`` bytes, each with its newline; what is between them is left out."""
    file.seek(0)
    while file.tell() < size and (line := file.readline()):
        if _looks_whole(line):
            yield line if line.endswith(b"\n") else line + b"\n"


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


def _looks_whole(line: bytes) -> bool:
    """Only the outside is looked at: to parse 25 MB would keep every resume waiting. NULs are what a power cut leaves."""
    line = line.strip()
    return line.startswith(b"{") and line.endswith(b"}") and b"\0" not in line


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
