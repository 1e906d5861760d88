"""The state of a file of JSON lines that a program may have died in the middle of writing, in constant memory."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from ..confined import Root

_CHUNK = 1 << 16
_PARSED = 1 << 24  # bytes of a last line that are parsed; of a longer one only the outside is looked at


def whole(file: BinaryIO, size: int) -> tuple[int, bool]:
    """How many of the first ``size`` bytes are whole records, and whether the last of them lacks its newline."""
    start = _last_line(file, size)
    if start == size:
        return size, False
    return (size, True) if _is_record(file, start, size) else (start, False)


def is_sound(file: BinaryIO, start: int, end: int) -> bool:
    """Whether the bytes from ``start`` to ``end`` are records and nothing else, at least one."""
    found = False
    for _, _, good in _lines(file, start, end):
        if good is False:
            return False
        found = found or good is True
    return found


def records(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The whole records among the first ``size`` bytes, each with its newline, in pieces of any length; what is between
    them is left out."""
    begin = 0
    for start, end, good in _lines(file, 0, size):
        if not good:
            yield from chunks(file, begin, start)
            begin = end
    if begin < size:
        last = b""
        for last in chunks(file, begin, size):
            yield last
        if not last.endswith(b"\n"):
            yield b"\n"


def change_first(root: Root, path: str, field: str, value: str) -> None:
    """Set a field of the first record; a file that begins with no record, or says so already, stays as it is."""
    with root.open_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        line = file.readline(_CHUNK)
        try:
            first = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(first, dict) or first.get(field) == value:
            return
        changed = json.dumps({**first, field: value}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        root.write(path, itertools.chain([changed], chunks(file, len(line), size)), mode=mode)


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


def _lines(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, int, bool | None]]:
    """Where each line begins and ends, its newline included, and whether it looks whole; None for an empty one.

    Only the outside is looked at: to parse 25 MB would keep every resume waiting. NULs are what a power cut leaves."""
    at = begin = start
    first = last = b""
    torn = False
    while at < end:
        file.seek(at)  # whoever takes the lines may read between them
        chunk = file.read(min(_CHUNK, end - at))
        if not chunk:
            break
        done = 0
        while True:
            newline = chunk.find(b"\n", done)
            piece = chunk[done : newline if newline >= 0 else len(chunk)]
            if inside := piece.strip():
                first, last = first or inside[:1], inside[-1:]
                torn = torn or b"\0" in piece
            if newline < 0:
                break
            done = newline + 1
            yield begin, at + done, _looks_whole(first, last, torn)
            begin, first, last, torn = at + done, b"", b"", False
        at += len(chunk)
    if begin < at:
        yield begin, at, _looks_whole(first, last, torn)


def _looks_whole(first: bytes, last: bytes, torn: bool) -> bool | None:
    return (first == b"{" and last == b"}" and not torn) if first else None


def _last_line(file: BinaryIO, size: int) -> int:
    """Where what follows the last newline begins."""
    start = size
    while start:
        step = min(start, _CHUNK)
        file.seek(start - step)
        if (at := file.read(step).rfind(b"\n")) >= 0:
            return start - step + at + 1
        start -= step
    return 0


def _is_record(file: BinaryIO, start: int, end: int) -> bool:
    if end - start > _PARSED:
        return all(good for _, _, good in _lines(file, start, end))
    file.seek(start)
    try:
        return isinstance(json.loads(file.read(end - start)), dict)
    except (ValueError, RecursionError):
        return False
