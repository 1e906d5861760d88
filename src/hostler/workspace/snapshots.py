"""Snapshots of a workspace at rest: exact, incremental, put back with as few writes as possible."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from ..types.errors import SandboxError

_MAX_ENTRIES = 300_000
_MAX_DEPTH = 100  # one descriptor is open for each level
_CHUNK = 1 << 20
_TICK_NS = 20_000_000  # what was changed so shortly before we looked may change again and look the same
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PACK, _INDEX = "pack", ".json"

Segment = tuple[int, int, int]  # offset in the file, length, offset in the pack; what lies between is a hole


File = tuple[int, int, int, list[int] | None, list[Segment]]
"""Mode, size, mtime_ns, ``seen`` and segments of a regular file. ``seen`` are its inode, size and times in the
workspace: while they are the same, it is. A plain tuple (a list, when it was read): at 100,000 files an object for each
would cost more than the system calls."""


@dataclass(slots=True)
class Index:
    """What a snapshot holds, by path relative to the workspace (undecodable bytes as surrogates).

    ``same`` are further names of a file; ``skipped`` what could not be taken, with the reason: it is left alone by a
    restore."""

    root_mode: int = 0o700
    folders: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def dump(self) -> bytes:
        fields = [self.root_mode, self.folders, self.links, self.files, self.same, self.skipped]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes) -> Index:
        return cls(*json.loads(data))


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that was taken: how many entries and bytes it holds, and what it could not take (path to reason)."""

    id: str
    entries: int
    bytes: int
    skipped: dict[str, str]


def refuse(root: str) -> None:
    """Raise SandboxError for a workspace that is, or holds, the user's home: `/` above all."""
    home = os.path.realpath(os.path.expanduser("~"))
    while True:
        with contextlib.suppress(OSError):
            if os.path.samefile(home, root):
                raise SandboxError(
                    f"The workspace {root} is or holds your home directory; it is neither copied nor put back. Give the "
                    "agent a folder of its own."
                )
        if home == "/":
            return
        home = os.path.dirname(home)


def take(root: str, folder: str, limit: int) -> Taken:
    """A snapshot of ``root`` in ``folder``, in which all snapshots together hold at most ``limit`` bytes of contents.

    Follows no link. Raises SandboxError for a workspace that is too large or is the user's home."""
    refuse(root)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    id = f"snap_{time.time_ns():x}{secrets.token_hex(4)}"
    before = _newest(folder)
    with open(os.open(os.path.join(folder, _PACK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as pack:
        end = pack.seek(0, os.SEEK_END)
        try:
            taking = _Taking(root, before.files if before else {}, pack, limit)
            index = taking.run()
        except BaseException:
            pack.truncate(end)
            raise
        pack.flush()
        os.fsync(pack.fileno())
    _write(folder, id + _INDEX, index.dump())
    entries = len(index.folders) + len(index.links) + len(index.files) + len(index.same)
    return Taken(id, entries, sum(file[1] for file in index.files.values()), index.skipped)


def restore(root: str, folder: str, id: str) -> None:
    """Make ``root`` what it was. What is as it was is not touched. Raises KeyError for an id that is none of ``folder``,
    SandboxError for what cannot be put back."""
    refuse(root)
    index = _read(folder, id)
    with open(os.path.join(folder, _PACK), "rb") as pack:
        try:
            _Restoring(root, index, pack).run()
        except OSError as error:
            raise SandboxError(f"The snapshot {id} was not put back as a whole: {error}. Try again.") from error


def copy(source: str, target: str, scratch: str, limit: int) -> Taken:
    """Make ``target`` what ``source`` is, by way of the folder ``scratch``, which is gone afterwards."""
    try:
        taken = take(source, scratch, limit)
        restore(target, scratch, taken.id)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return taken


# ---- taking ---------------------------------------------------------------------------------------------------------


class _Taking:
    def __init__(self, root: str, known: dict[str, File], pack: BinaryIO, limit: int) -> None:
        self._root, self._known, self._pack, self._limit = root, known, pack, limit
        self._index = Index()
        self._inodes: dict[int, str] = {}
        self._count = 0
        self._now = time.time_ns()

    def run(self) -> Index:
        fd = os.open(self._root, _FOLDER)
        try:
            info = os.fstat(fd)
            self._device = info.st_dev
            self._index.root_mode = stat.S_IMODE(info.st_mode)
            self._visit(fd, "", 0)
        finally:
            os.close(fd)
        return self._index

    def _visit(self, fd: int, prefix: str, depth: int) -> None:
        with os.scandir(fd) as found:
            names = sorted(entry.name for entry in found)
        self._count += len(names)
        if self._count > _MAX_ENTRIES:
            raise SandboxError(
                f"The workspace {self._root} holds more than {_MAX_ENTRIES} entries: no snapshot is taken."
            )
        for name in names:
            path = prefix + name
            try:
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    self._folder(fd, name, path, info, depth)
                elif stat.S_ISLNK(info.st_mode):
                    self._index.links[path] = os.readlink(name, dir_fd=fd)
                elif stat.S_ISREG(info.st_mode):
                    self._file(fd, name, path, info)
                else:
                    self._index.skipped[path] = "neither file, folder nor link"
            except FileNotFoundError:
                continue
            except OSError as error:
                self._index.skipped[path] = error.strerror or str(error)

    def _folder(self, parent: int, name: str, path: str, info: os.stat_result, depth: int) -> None:
        if info.st_dev != self._device or depth == _MAX_DEPTH:
            self._index.skipped[path] = "too deep" if depth == _MAX_DEPTH else "on another file system"
            return
        fd = os.open(name, _FOLDER, dir_fd=parent)
        try:
            self._index.folders[path] = stat.S_IMODE(info.st_mode)
            self._visit(fd, path + "/", depth + 1)
        finally:
            os.close(fd)

    def _file(self, parent: int, name: str, path: str, info: os.stat_result) -> None:
        if info.st_nlink > 1 and (first := self._inodes.setdefault(info.st_ino, path)) != path:
            self._index.same[path] = first
            return
        if (old := self._known.get(path)) is not None and old[3] == _seen(info):
            self._index.files[path] = (stat.S_IMODE(info.st_mode), info.st_size, info.st_mtime_ns, old[3], old[4])
            return
        with open(os.open(name, _READ, dir_fd=parent), "rb", buffering=0) as file:
            info = os.fstat(file.fileno())
            segments = list(self._copied(file.fileno(), info.st_size))
        settled = self._now - max(info.st_mtime_ns, info.st_ctime_ns) > _TICK_NS
        seen = _seen(info) if settled else None
        self._index.files[path] = (stat.S_IMODE(info.st_mode), info.st_size, info.st_mtime_ns, seen, segments)

    def _copied(self, fd: int, size: int) -> Iterator[Segment]:
        for start, length in _data(fd, size):
            at = self._pack.tell()
            if at + length > self._limit:
                raise SandboxError(
                    f"The snapshots of the workspace {self._root} would hold more than {self._limit} bytes "
                    "(HOSTLER_SNAPSHOT_LIMIT): none is taken."
                )
            done = 0
            while done < length and (chunk := os.pread(fd, min(_CHUNK, length - done), start + done)):
                self._pack.write(chunk)
                done += len(chunk)
            yield (start, done, at)


def _seen(info: os.stat_result) -> list[int]:
    return [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]


def _data(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are no holes."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            start, at = at, size
        yield start, at - start


# ---- putting back ---------------------------------------------------------------------------------------------------


class _Restoring:
    def __init__(self, root: str, index: Index, pack: BinaryIO) -> None:
        self._root, self._index, self._pack = root, index, pack
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
        mode, size, mtime, seen, segments = file
        info = _stat(parent, name)
        if info is not None and not stat.S_ISREG(info.st_mode):
            _remove(parent, name)
        elif info is not None and (seen == _seen(info) or self._is_same(parent, name, info, file)):
            return
        temp = f".hostler-{secrets.token_hex(8)}.tmp"
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
            if [(start, length) for start, length, _ in segments] != list(_data(fd, size)):
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
        _unlock(parent, name)
    return os.open(name, _FOLDER, dir_fd=parent)


def _unlock(parent: int, name: str) -> None:
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _remove(parent: int, name: str) -> None:
    info = _stat(parent, name)
    if info is None:
        return
    if not stat.S_ISDIR(info.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    if info.st_mode & 0o700 != 0o700:
        _unlock(parent, name)
    fd = os.open(name, _FOLDER, dir_fd=parent)
    try:
        for inner in os.listdir(fd):
            _remove(fd, inner)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def _link(parent: int, name: str, target: str) -> None:
    info = _stat(parent, name)
    if info is not None and stat.S_ISLNK(info.st_mode) and os.readlink(name, dir_fd=parent) == target:
        return
    _remove(parent, name)
    os.symlink(target, name, dir_fd=parent)


def _write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


# ---- the indexes ----------------------------------------------------------------------------------------------------


def _newest(folder: str) -> Index | None:
    names = sorted((name for name in os.listdir(folder) if name.endswith(_INDEX)), key=lambda name: (len(name), name))
    for name in reversed(names):
        with contextlib.suppress(OSError, ValueError, KeyError):
            return _read(folder, name.removesuffix(_INDEX))
    return None


def _read(folder: str, id: str) -> Index:
    if not id.startswith("snap_") or not id.isidentifier():
        raise KeyError(id)
    try:
        with open(os.path.join(folder, id + _INDEX), "rb") as file:
            return Index.load(file.read())
    except FileNotFoundError:
        raise KeyError(id) from None


def _write(folder: str, name: str, data: bytes) -> None:
    temp = os.path.join(folder, name + ".new")
    with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temp, os.path.join(folder, name))
