"""The frame format that keeper and host share, on the wire and on disk alike."""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any

PROTOCOL = 1
HEADER = struct.Struct(">QcI")  # number (0: not numbered), kind, length of the payload
PART = 1 << 20  # a line longer than this crosses in parts
MAX_CONTROL = 1 << 16
MAX_INPUT = 64 << 20

# Numbered, in the log: one total order over everything that the program said and was told.
OUT = b"o"  # a whole line of stdout without its newline, or the last part of one
LINE_PART = b"p"  # an earlier part of the line that the next OUT ends
ERR = b"e"  # a chunk of stderr
INPUT = b"i"  # an input the program was given: length of the key (u16), key, data
NOTE = b"m"  # JSON about a model call
EXIT = b"x"  # exit code in decimal, always last

# Not numbered: the handshake, and requests on a connection of their own.
ATTACH = b"A"
HELLO = b"H"
REFUSED = b"R"
DONE = b"D"

# From the attached host.
SEND = b"I"
OPEN_TURN = b"T"
ACK = b"a"
ACK_DONE = b"d"

_KEY = struct.Struct(">H")


class FrameTooLong(ValueError):
    """The other side announced a frame over the limit."""


def pack(kind: bytes, payload: bytes = b"", number: int = 0) -> bytes:
    return HEADER.pack(number, kind, len(payload)) + payload


def pack_json(kind: bytes, value: dict[str, Any]) -> bytes:
    return pack(kind, json.dumps(value).encode())


def pack_input(key: str, data: bytes) -> bytes:
    raw = key.encode()
    return _KEY.pack(len(raw)) + raw + data


def unpack_input(payload: bytes) -> tuple[str, bytes]:
    end = 2 + _KEY.unpack_from(payload)[0]
    return payload[2:end].decode(), payload[end:]


class Decoder:
    """Bytes in, whole frames out."""

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[tuple[int, bytes, bytes]]:
        self._buffer += data
        frames: list[tuple[int, bytes, bytes]] = []
        offset, have = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while have - offset >= HEADER.size:
                number, kind, length = HEADER.unpack_from(view, offset)
                if length > self._limit:
                    raise FrameTooLong(f"a frame of {length} bytes, over the limit of {self._limit}")
                end = offset + HEADER.size + length
                if end > have:
                    break
                frames.append((number, kind, bytes(view[offset + HEADER.size : end])))
                offset = end
        del self._buffer[:offset]
        return frames
