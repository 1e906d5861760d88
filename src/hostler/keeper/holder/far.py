"""A program that runs where this machine's processes are not, in a container: what is said to the process that stands for it."""

from __future__ import annotations

import json
import socket

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any

_START = 5.0


class Far:
    """Of what the program has started there nothing is seen here: it is told when a turn begins, and asked to end what
    the turn, or the program, has started."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._asked = 0

    def begin(self, config: dict[str, Any]) -> None:
        """What to start, and where. Raises OSError."""
        self._control.settimeout(_START)
        self._control.sendall(json.dumps(config).encode() + b"\n")

    def open_turn(self) -> None:
        self._say(b"turn\n")

    def sweep_turn(self, limit: float) -> None:
        self._ask("sweep", "swept", limit)

    def end(self, limit: float) -> None:
        self._ask("end", "ended", limit)

    def _ask(self, wish: str, answer: str, limit: float) -> None:
        """Wait for the answer to this very wish, for ``limit`` seconds at most, and not at all when nobody is there."""
        self._asked += 1
        expected = f"{answer} {self._asked}\n".encode()
        if not self._say(f"{wish} {self._asked}\n".encode()):
            return
        self._control.settimeout(limit)
        said = b""
        try:
            while expected not in said and (more := self._control.recv(64)):
                said += more
        except OSError:
            pass

    def _say(self, wish: bytes) -> bool:
        try:
            self._control.sendall(wish)
        except OSError:
            return False
        return True
