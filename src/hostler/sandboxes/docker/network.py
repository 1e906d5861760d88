"""The model's address in a container's network: bound from outside, where this process may."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading

_NEWNET = 0x40000000
_BACKLOG = 128


def listen_in(pid: int) -> socket.socket | None:
    """A listening socket on the loopback of a process's network; None where that cannot be entered from here. A socket
    stays one of the network that it was made in, whoever uses it."""
    made: list[socket.socket] = []
    if pid <= 0:
        return None
    # A thread of its own: it stays in the other network, and ends there.
    thread = threading.Thread(target=_listen, args=(pid, made), daemon=True)
    thread.start()
    thread.join()
    return made[0] if made else None


def _listen(pid: int, made: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(network, _NEWNET) == 0:
                made.append(socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG))
        finally:
            os.close(network)
