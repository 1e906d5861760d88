"""What a snapshot of a workspace holds, and where that is kept."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

SUFFIX = ".json"

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


def newest(folder: str) -> Index | None:
    """The last snapshot in a folder that can be read."""
    for id in reversed(ids(folder)):
        with contextlib.suppress(OSError, ValueError, KeyError):
            return read(folder, id)
    return None


def ids(folder: str) -> list[str]:
    """The snapshots in a folder, the oldest first."""
    try:
        names = [name.removesuffix(SUFFIX) for name in os.listdir(folder) if name.endswith(SUFFIX)]
    except FileNotFoundError:
        return []
    return sorted(names, key=lambda name: (len(name), name))


def read(folder: str, id: str) -> Index:
    """One snapshot. Raises KeyError for an id that is none."""
    if not id.startswith("snap_") or not id.isidentifier():
        raise KeyError(id)
    try:
        with open(os.path.join(folder, id + SUFFIX), "rb") as file:
            return Index.load(file.read())
    except FileNotFoundError:
        raise KeyError(id) from None


def write(folder: str, id: str, index: Index) -> None:
    """Keep it; on disk when this returns."""
    name = id + SUFFIX
    temp = os.path.join(folder, name + ".new")
    with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(index.dump())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temp, os.path.join(folder, name))


def seen(info: os.stat_result) -> list[int]:
    """What tells that a file is as it was."""
    return [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]


def data(fd: int, size: int) -> Iterator[tuple[int, int]]:
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
