"""How far a write-ahead log of SQLite goes, told from its bytes (https://www.sqlite.org/fileformat2.html#walformat)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import BinaryIO

_HEADER = struct.Struct(">8I")  # magic, version, page size, checkpoint, two salts, two sums
_FRAME = struct.Struct(">6I")  # page, pages of the database where a transaction ends (else 0), the salts, two sums
_ORDER = {0x377F0682: "<", 0x377F0683: ">"}
_32_BITS = 0xFFFFFFFF


def committed(log: BinaryIO, known: int = 0) -> int:
    """Where the last whole transaction ends, 0 if there is none; at ``known`` one ends for certain.

    The sums run on from frame to frame, so that of the last one is computed and no other: SQLite writes one after the
    other, and computes them all when the log is brought in.
    """
    if (found := _begin(log)) is None:
        return 0
    order, page, salts, seed = found
    ends = []
    at = known or _HEADER.size
    while len(head := os.pread(log.fileno(), _FRAME.size, at)) == _FRAME.size:
        number, pages, *rest = _FRAME.unpack(head)
        if not number or rest[:2] != salts:
            break
        at += _FRAME.size + page
        if pages:
            ends.append(at)
    while ends:
        if _is_whole(log, ends[-1], order, page, seed):
            return ends[-1]
        ends.pop()
    return known


def same(log: BinaryIO, other: BinaryIO, end: int) -> bool:
    """Whether two logs hold the same up to ``end``, where a transaction ends: the sum of the last frame says so."""
    first, second = (os.pread(file.fileno(), _HEADER.size, 0) for file in (log, other))
    if first != second or (found := _begin(log)) is None:
        return False
    last = end - _FRAME.size - found[1]
    first, second = (os.pread(file.fileno(), _FRAME.size, last) for file in (log, other))
    return first == second and len(first) == _FRAME.size


def end_of(log: BinaryIO, frames: int) -> int:
    """Where so many frames end; 0 for none."""
    found = _begin(log)
    return 0 if found is None or frames <= 0 else _HEADER.size + frames * (_FRAME.size + found[1])


def _begin(log: BinaryIO) -> tuple[str, int, list[int], tuple[int, int]] | None:
    """What the header says: the byte order of the sums, the page size, the salts, where the sums begin."""
    head = os.pread(log.fileno(), _HEADER.size, 0)
    if len(head) < _HEADER.size:
        return None
    magic, _, page, _, *rest = _HEADER.unpack(head)
    order = _ORDER.get(magic)
    if order is None or page & (page - 1) or not 512 <= page <= 65536:
        return None
    seed = _summed(struct.unpack(order + "6I", head[:24]), (0, 0))
    return (order, page, rest[:2], seed) if seed == tuple(rest[2:]) else None


def _is_whole(log: BinaryIO, end: int, order: str, page: int, seed: tuple[int, int]) -> bool:
    """Whether the frame that ends there has the sum that it names."""
    start = end - _FRAME.size - page
    data = os.pread(log.fileno(), end - start, start)
    if len(data) != end - start:
        return False
    if start > _HEADER.size:
        seed = _sum_of(os.pread(log.fileno(), _FRAME.size, start - _FRAME.size - page))
    words = struct.unpack(f"{order}2I", data[:8]) + struct.unpack(f"{order}{page // 4}I", data[_FRAME.size :])
    return _summed(words, seed) == _sum_of(data[: _FRAME.size])


def _sum_of(head: bytes) -> tuple[int, int]:
    *_, first, second = _FRAME.unpack(head)
    return first, second


def _summed(words: Iterable[int], seed: tuple[int, int]) -> tuple[int, int]:
    first, second = seed
    pairs = iter(words)
    for x, y in zip(pairs, pairs, strict=True):
        first = (first + x + second) & _32_BITS
        second = (second + y + first) & _32_BITS
    return first, second
