"""A network namespace with nothing but its own loopback, and the program's model address in it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _UP = 0x8913, 0x8914, 1
_BACKLOG = 128


def enter_own() -> None:
    """This process, and what it starts, sees no other network from here on: no host port, no other machine."""
    try:
        _unshare(_NEWNET)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _unshare(_NEWNET | _NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _UP))


def listen(port: object) -> socket.socket:
    """A listening socket on the loopback. It stays one of this network wherever it is handed to."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(_BACKLOG)
    return listener


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code if code != errno.EINVAL else errno.EPERM, os.strerror(code))
