"""A workspace made what it was at a snapshot, with as few writes as possible and through no link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from typing import BinaryIO

from ..removal import remove_at, unlock
from .snapshot_index import File, Index, data, seen

_CHUNK = 1 << 20
_MAX_DEPTH = 100  # no snapshot holds what lies deeper
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def put_back(root: str, index: Index, pack: BinaryIO, temp: str) -> None:
    """Make ``root`` what ``index`` says, with contents from ``pack``. What is as it was is not touched. A file is written
    under the name ``temp`` beside its own. Raises OSError."""
    _Restoring(root, index, pack, temp).run()


def remove_temp(root: str, temp: str) -> None:
    """Remove the file of this name that was not finished, wherever it is in ``root``."""
    with contextlib.suppress(OSError):
        fd = os.open(root, _FOLDER)
        try:
            _found(fd, temp, _MAX_DEPTH)
        finally:
            os.close(fd)


def _found(fd: int, temp: str, depth: int) -> bool:
    """Whether it was here or below, and is removed."""
    with os.scandir(fd) as found:
        entries = list(found)
    for entry in entries:
        if entry.name == temp and entry.is_file(follow_symlinks=False):
            os.unlink(temp, dir_fd=fd)
            return True
    for entry in entries:
        if depth and entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):
                child = os.open(entry.name, _FOLDER, dir_fd=fd)
                try:
                    if _found(child, temp, depth - 1):
                        return True
                finally:
                    os.close(child)
    return False


class _Restoring:
    def __init__(self, root: str, index: Index, pack: BinaryIO, temp: str) -> None:
        self._root, self._index, self._pack, self._temp = root, index, pack, temp
        self._wanted: dict[str, set[str]] = {"": set()}
        for path in (*index.folders, *index.links, *index.files, *index.same, *index.skipped):
            folder, _, name = path.rpartition("/")
            self._wanted.setdefault(folder, set()).add(name)

    def run(self) -> None:
        fd = os.open(self._root, _FOLDER)
        try:
            self._folder(fd, "", self._index.root_mode)
            for path, first in self._index.same.items():
                self._link_again(fd, path, first)
        finally:
            os.close(fd)

    def _folder(self, fd: int, path: str, mode: int) -> None:
        found = stat.S_IMODE(os.fstat(fd).st_mode)
        if found & 0o700 != 0o700:
            os.fchmod(fd, found | 0o700)
        prefix = path + "/" if path else ""
        wanted = self._wanted.get(path, set())
        for name in os.listdir(fd):
            if name not in wanted:
                _remove(fd, name)
        for name in sorted(wanted):
            inner = prefix + name
            if (inner_mode := self._index.folders.get(inner)) is not None:
                child = _made(fd, name)
                try:
                    self._folder(child, inner, inner_mode)
                finally:
                    os.close(child)
            elif (target := self._index.links.get(inner)) is not None:
                _link(fd, name, target)
            elif (file := self._index.files.get(inner)) is not None:
                self._file(fd, name, file)
        if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
            os.fchmod(fd, mode)

    def _file(self, parent: int, name: str, file: File) -> None:
        mode, size, mtime, was, segments = file
        info = _stat(parent, name)
        if info is not None and not stat.S_ISREG(info.st_mode):
            _remove(parent, name)
        elif info is not None and (was == seen(info) or self._is_same(parent, name, info, file)):
            return
        temp = self._temp
        fd = os.open(temp, _CREATE, 0o600, dir_fd=parent)
        try:
            os.ftruncate(fd, size)
            for start, length, at in segments:
                for offset, chunk in self._chunks(start, length, at):
                    _write_at(fd, chunk, offset)
            os.fchmod(fd, mode)
            os.utime(fd, ns=(time.time_ns(), mtime))
            os.replace(temp, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temp, dir_fd=parent)
            raise
        finally:
            os.close(fd)

    def _is_same(self, parent: int, name: str, info: os.stat_result, file: File) -> bool:
        """Whether the content is what it was; then mode and time are, too, after this."""
        mode, size, mtime, _, segments = file
        if info.st_size != size or info.st_nlink > 1:
            return False
        try:
            fd = os.open(name, _READ, dir_fd=parent)
        except OSError:
            return False
        try:
            if [(start, length) for start, length, _ in segments] != list(data(fd, size)):
                return False
            for start, length, at in segments:
                for offset, chunk in self._chunks(start, length, at):
                    if os.pread(fd, len(chunk), offset) != chunk:
                        return False
            if stat.S_IMODE(info.st_mode) != mode:
                os.fchmod(fd, mode)
            if info.st_mtime_ns != mtime:
                os.utime(fd, ns=(info.st_atime_ns, mtime))
            return True
        finally:
            os.close(fd)

    def _chunks(self, start: int, length: int, at: int) -> Iterator[tuple[int, bytes]]:
        self._pack.seek(at)
        while length:
            chunk = self._pack.read(min(_CHUNK, length))
            if not chunk:
                raise OSError(errno.EIO, "the saved contents are cut short")
            yield start, chunk
            start, length = start + len(chunk), length - len(chunk)

    def _link_again(self, root: int, path: str, first: str) -> None:
        """Give a file its further name."""
        with _parent(root, path) as (folder, name), _parent(root, first) as (other, other_name):
            info, there = _stat(other, other_name), _stat(folder, name)
            if info is None or (there is not None and there.st_ino == info.st_ino):
                return
            if there is not None:
                _remove(folder, name)
            os.link(other_name, name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)


@contextlib.contextmanager
def _parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    *folders, name = path.split("/")
    fd = os.dup(root)
    try:
        for folder in folders:
            inner = os.open(folder, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd, name
    finally:
        os.close(fd)


def _stat(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _made(parent: int, name: str) -> int:
    info = _stat(parent, name)
    if info is not None and not stat.S_ISDIR(info.st_mode):
        _remove(parent, name)
        info = None
    if info is None:
        os.mkdir(name, 0o700, dir_fd=parent)
    elif not info.st_mode & stat.S_IRUSR:
        unlock(parent, name)
    return os.open(name, _FOLDER, dir_fd=parent)


def _remove(parent: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove_at(parent, name)


def _link(parent: int, name: str, target: str) -> None:
    info = _stat(parent, name)
    if info is not None and stat.S_ISLNK(info.st_mode) and os.readlink(name, dir_fd=parent) == target:
        return
    _remove(parent, name)
    os.symlink(target, name, dir_fd=parent)


def _write_at(fd: int, chunk: bytes, offset: int) -> None:
    view = memoryview(chunk)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done
