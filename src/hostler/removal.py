"""Removal of what an agent may have made: follows no link, however deep it is and whatever its folders permit."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat

_MAX_DEPTH = 100  # one descriptor is open for each level
# O_PATH needs no right to what it opens; other systems list it.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_at(parent: int, name: str) -> None:
    """Remove a file, a link itself, or a folder with all that is in it, from the open folder ``parent``. What cannot be
    removed does not keep the rest; then the first OSError is raised."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    unlock(parent, name)
    top = os.open(name, _LIST, dir_fd=parent)
    try:
        failed = _Removing(top).run()
    finally:
        os.close(top)
    if failed is not None:
        raise failed
    os.rmdir(name, dir_fd=parent)


def remove_path(path: str) -> None:
    """The same by its path; that there is nothing is fine."""
    with contextlib.suppress(FileNotFoundError):
        parent = os.open(os.path.dirname(path) or os.curdir, _PASS & ~os.O_NOFOLLOW)
        try:
            remove_at(parent, os.path.basename(path))
        finally:
            os.close(parent)


def unlock(parent: int, name: str) -> None:
    """Give the owner of a folder, if that is this user, all rights to it."""
    fd = os.open(name, _PASS, dir_fd=parent)
    try:
        mode = os.fstat(fd).st_mode
        if mode & 0o700 != 0o700:
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | 0o700)
    finally:
        os.close(fd)


class _Removing:
    """Empties a folder. What lies deeper than descriptors reach is moved up into it and removed from there."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._moved: list[str] = []
        self._failed: OSError | None = None

    def run(self) -> OSError | None:
        self._empty(self._top, 1)
        while self._moved:
            self._remove(self._top, self._moved.pop(), 1)
        return self._failed

    def _empty(self, fd: int, depth: int) -> None:
        for name in os.listdir(fd):
            self._remove(fd, name, depth)

    def _remove(self, parent: int, name: str, depth: int) -> None:
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)
                return
            unlock(parent, name)
            if depth == _MAX_DEPTH:
                moved = f".{secrets.token_hex(8)}"
                os.rename(name, moved, src_dir_fd=parent, dst_dir_fd=self._top)
                self._moved.append(moved)
                return
            fd = os.open(name, _LIST, dir_fd=parent)
            try:
                self._empty(fd, depth + 1)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._failed = self._failed or error
