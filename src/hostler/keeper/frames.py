"""Wire frames to the frames that the rest of hostler knows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ..types.runtime import Frame, FrameKind
from .errors import KeeperError
from .holder import frames as wire
from .holder import spool

DEFAULT_LINE_LIMIT = 256 << 20
_KINDS: dict[bytes, FrameKind] = {wire.OUT: "out", wire.ERR: "err", wire.NOTE: "note", wire.EXIT: "exit"}

WireFrame = tuple[int, bytes, bytes]


class Joiner:
    """Joins the parts of long lines; checks that no number is missing."""

    def __init__(self, after: int | None, line_limit: int = DEFAULT_LINE_LIMIT) -> None:
        self._last = after
        self._line_limit = line_limit
        self._parts: list[bytes] = []
        self._size = 0

    def join(self, frames: Iterable[WireFrame]) -> Iterator[Frame]:
        for number, kind, payload in frames:
            if self._last is not None and number != self._last + 1:
                raise KeeperError(f"frame {number} of the keeper came after frame {self._last}")
            self._last = number
            if kind in (wire.OUT, wire.LINE_PART):
                self._size += len(payload)
                if self._size > self._line_limit:
                    raise KeeperError(
                        f"a line of the program is longer than the limit of {self._line_limit} bytes"
                        f" ({self._size} bytes so far)"
                    )
                self._parts.append(payload)
                if kind == wire.LINE_PART:
                    continue
                payload, self._parts, self._size = b"".join(self._parts), [], 0
            if kind == wire.INPUT:
                key, data = wire.unpack_input(payload)
                yield Frame(number, "in", data, key)
            else:
                yield Frame(number, _KINDS[kind], payload)


def read_spool(dir: str, after: int) -> list[Frame]:
    """The frames after number ``after`` that a dead keeper left in its ``dir``; a torn last one is left out."""
    left = spool.read(os.path.join(dir, "spool"))
    return list(Joiner(None).join(frame for frame in left if frame[0] > after))
