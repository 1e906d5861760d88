"""Whether a write-ahead log is one: SQLite takes what does not begin like one for empty, without a word."""

from __future__ import annotations

import struct
import time

_HEADER = 32  # bytes; a file of no more holds no commit
_MAGIC = 0x377F0682  # its last bit says in which order the bytes are summed
_LOOKS = 4  # another process may begin the log anew while we look
_PAUSE = 0.05


def is_damaged(path: str) -> bool:
    """Whether the log holds more than its header, and the header is none: what was committed to it would be lost."""
    for look in range(_LOOKS):
        time.sleep(_PAUSE if look else 0)
        try:
            with open(path, "rb") as file:
                head = file.read(_HEADER + 1)
        except FileNotFoundError:
            return False
        if len(head) <= _HEADER or _is_header(head[:_HEADER]):
            return False
    return True


def _is_header(head: bytes) -> bool:
    magic = int.from_bytes(head[:4], "big")
    if magic & ~1 != _MAGIC:
        return False
    words = struct.unpack(f"{'>' if magic & 1 else '<'}6I", head[:24])
    first = second = 0
    for odd, even in zip(words[::2], words[1::2], strict=True):
        first = (first + odd + second) & 0xFFFFFFFF
        second = (second + even + first) & 0xFFFFFFFF
    return struct.unpack(">2I", head[24:]) == (first, second)
