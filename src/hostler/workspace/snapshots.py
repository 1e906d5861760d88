"""Snapshots of a workspace at rest: exact, incremental, put back with as few writes as possible."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ..types.errors import SandboxError
from . import snapshot_index, unfinished
from .snapshot_index import File, Index, Segment, data, seen
from .snapshot_restore import put_back, remove_temp

_MAX_ENTRIES = 300_000
_MAX_DEPTH = 100  # one descriptor is open for each level
_CHUNK = 1 << 20
_TEMP = re.compile(r"\.hostler-[0-9a-f]{16}\.tmp")
_TICK_NS = 20_000_000  # what was changed so shortly before we looked may change again and look the same
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PACK = "pack"
_RESTORING = "restoring"  # holds the name of the file that a restore writes beside others; see `unfinished`


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
    tidy(root, folder)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    id = f"snap_{time.time_ns():x}{secrets.token_hex(4)}"
    before = snapshot_index.newest(folder)
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
    snapshot_index.write(folder, id, index)
    entries = len(index.folders) + len(index.links) + len(index.files) + len(index.same)
    return Taken(id, entries, sum(file[1] for file in index.files.values()), index.skipped)


def restore(root: str, folder: str, id: str) -> None:
    """Make ``root`` what it was. What is as it was is not touched. Raises KeyError for an id that is none of ``folder``,
    SandboxError for what cannot be put back."""
    refuse(root)
    index = snapshot_index.read(folder, id)
    tidy(root, folder)
    note, temp = os.path.join(folder, _RESTORING), f".hostler-{secrets.token_hex(8)}.tmp"
    try:
        with open(os.path.join(folder, _PACK), "rb") as pack, unfinished.begun(note, temp):
            try:
                put_back(root, index, pack, temp)
            finally:
                os.unlink(note)
    except OSError as error:
        raise SandboxError(f"The snapshot {id} was not put back as a whole: {error}. Try again.") from error


def tidy(root: str, folder: str) -> None:
    """Remove the file that a restore of a killed app has left half written in ``root``."""
    note = os.path.join(folder, _RESTORING)
    with unfinished.left(note) as temp:
        if temp is not None:
            if _TEMP.fullmatch(temp):  # under no other name: it may be anybody's
                remove_temp(root, temp)
            os.unlink(note)


def copy(source: str, target: str, scratch: str, limit: int) -> Taken:
    """Make ``target`` what ``source`` is, by way of the folder ``scratch``, which is gone afterwards."""
    try:
        taken = take(source, scratch, limit)
        restore(target, scratch, taken.id)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return taken


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
        if (old := self._known.get(path)) is not None and old[3] == seen(info):
            self._index.files[path] = (stat.S_IMODE(info.st_mode), info.st_size, info.st_mtime_ns, old[3], old[4])
            return
        with open(os.open(name, _READ, dir_fd=parent), "rb", buffering=0) as file:
            info = os.fstat(file.fileno())
            segments = list(self._copied(file.fileno(), info.st_size))
        settled = self._now - max(info.st_mtime_ns, info.st_ctime_ns) > _TICK_NS
        mark = seen(info) if settled else None
        self._index.files[path] = (stat.S_IMODE(info.st_mode), info.st_size, info.st_mtime_ns, mark, segments)

    def _copied(self, fd: int, size: int) -> Iterator[Segment]:
        for start, length in data(fd, size):
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
