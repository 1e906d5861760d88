"""A look at what is in a workspace: one walk that stats everything and reads nothing."""

from __future__ import annotations

import errno
import os
import stat
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import TypeAlias

# Plain tuples: at 20,000 files an object for each would cost more than the system calls.
Entry: TypeAlias = tuple[int, int, int, int, int]
"""Mode, size, mtime_ns, ctime_ns and inode of anything but a directory."""

DEFAULT_SKIP = frozenset(
    {".git", ".hg", ".svn", ".jj", "node_modules", "__pycache__", ".venv", ".tox", ".nox"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".gradle", ".terraform", ".direnv", ".cache"}
)
"""Names of folders whose insides are not looked at."""

# Build tools mark what can be made again: virtual environments, and caches by the Cache Directory Tagging convention.
_MARKS = frozenset({"pyvenv.cfg", "CACHEDIR.TAG"})
_MAX_ENTRIES = 300_000
_MAX_DEPTH = 100  # one descriptor is open for each level
_TICK_NS = 10_000_000  # file times move in steps of at most 10 ms
_INT64 = (1 << 63) - 1
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_fields: Callable[[os.stat_result], Entry] = attrgetter("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a scan saw, by path relative to the root (undecodable bytes as surrogates).

    ``links`` are the targets of symbolic links; ``skipped`` the folders that were found but not entered: marked as a
    cache, unreadable, nested too deeply. ``complete`` is False when there were too many entries to look at all, or the root could not be read.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    complete: bool = True


class _TooMany(Exception):
    pass


def scan(
    root: str,
    skip: frozenset[str] = DEFAULT_SKIP,
    limit: int = _MAX_ENTRIES,
    marks: frozenset[str] = _MARKS,
    last: Snapshot | None = None,
) -> Snapshot:
    """Look at everything below ``root`` but folders named in ``skip`` and those that hold one of ``marks``. Follows no
    link; what vanishes is left out, and a root that is gone is empty. Gives ``last`` itself when nothing is different."""
    before = last.entries if last else {}
    expected = iter(before.items())
    alike = 0  # so many are what was expected; as long as all are, nothing is built
    entries: dict[str, Entry] | None = None
    links: dict[str, str] = {}
    skipped: set[str] = set()
    count = 0

    def visit(fd: int, prefix: str, depth: int) -> None:
        nonlocal count, alike, entries
        names = os.listdir(fd)  # an object for each, as os.scandir makes it, takes longer than the system calls
        if prefix and not marks.isdisjoint(names):
            skipped.add(prefix)
            return
        count += len(names)
        if count > limit:
            raise _TooMany
        folders = []
        for name in names:
            try:
                info = os.lstat(name, dir_fd=fd)
                if not stat.S_ISREG(info.st_mode):
                    if stat.S_ISDIR(info.st_mode):
                        if name not in skip:
                            folders.append(name)
                        continue
                    if stat.S_ISLNK(info.st_mode):
                        links[prefix + name] = os.readlink(name, dir_fd=fd)
            except OSError:
                continue  # vanished, or has become something else meanwhile
            path, entry = prefix + name, entry_of(info)
            if entries is None:
                if next(expected, None) == (path, entry):
                    alike += 1
                    continue
                entries = dict(islice(before.items(), alike))
            entries[path] = entry
        for name in folders:
            path = prefix + name + "/"
            if depth == _MAX_DEPTH:
                skipped.add(path)
                continue
            try:
                child = os.open(name, _OPEN, dir_fd=fd)
            except OSError as error:
                if error.errno not in _GONE:
                    skipped.add(path)
                continue
            try:
                visit(child, path, depth + 1)
            except OSError:
                skipped.add(path)
            finally:
                os.close(child)

    try:
        top = os.open(root, _OPEN)
    except OSError as error:
        return Snapshot(complete=error.errno in _GONE)
    try:
        visit(top, "", 0)
    except (_TooMany, OSError):
        return Snapshot(complete=False)
    finally:
        os.close(top)
    if entries is None:
        if last == Snapshot(before, links, frozenset(skipped)) and alike == len(before):
            return last
        entries = dict(islice(before.items(), alike))
    return Snapshot(entries, links, frozenset(skipped))


def settle(snapshot: Snapshot) -> None:
    """Wait until a file written from now on must get other times than any in ``snapshot`` (10 ms, seldom needed)."""
    newest = max(map(itemgetter(3), snapshot.entries.values()), default=0)
    if 0 <= time.time_ns() - newest < _TICK_NS:
        time.sleep(_TICK_NS / 1e9)


def entry_of(info: os.stat_result) -> Entry:
    """The Entry of a stat record. Odd times and inodes may need more than 63 bits; it only matters that they differ."""
    entry = _fields(info)
    if 0 <= entry[2] <= _INT64 and 0 <= entry[3] <= _INT64 and entry[4] <= _INT64:
        return entry
    mode, size, mtime, ctime, inode = entry
    return mode, size, mtime & _INT64, ctime & _INT64, inode & _INT64


def inside(path: str, folders: frozenset[str]) -> bool:
    """Whether one of ``folders`` (with a slash at the end) holds ``path``."""
    return bool(folders) and any(parent in folders for parent in _parents(path))


def _parents(path: str) -> Iterator[str]:
    end = path.find("/")
    while end >= 0:
        yield path[: end + 1]
        end = path.find("/", end + 1)


# ---- on disk ---------------------------------------------------------------------------------------------------------
# Not JSON, which takes three times as long, and not pickle or marshal, which must not be given to bytes that the
# agent may have written.

_MAGIC = b"hostler snapshot 1\n"


def dump(snapshot: Snapshot) -> bytes:
    """Bytes for `load`, a few milliseconds for 20,000 files."""
    names = [*snapshot.entries, *chain.from_iterable(snapshot.links.items()), *snapshot.skipped]
    text = "\0".join(names).encode("utf-8", "surrogateescape")
    numbers = array("q", chain.from_iterable(snapshot.entries.values())).tobytes()
    counts = (len(snapshot.entries), len(snapshot.links), len(snapshot.skipped), int(snapshot.complete), len(text))
    return _MAGIC + array("q", counts).tobytes() + text + numbers


def load(data: bytes) -> Snapshot:
    """The inverse of `dump`. Raises ValueError for anything else."""
    if not data.startswith(_MAGIC):
        raise ValueError("not a snapshot")
    body = memoryview(data)[len(_MAGIC) :]
    counts, numbers = array("q"), array("q")
    counts.frombytes(body[:40])
    if len(counts) != 5 or min(counts) < 0:
        raise ValueError("damaged snapshot")
    files, links, skipped, complete, size = counts
    numbers.frombytes(body[40 + size :])
    text = bytes(body[40 : 40 + size]).decode("utf-8", "surrogateescape")
    names = text.split("\0") if text else []
    if len(numbers) != 5 * files or len(names) != files + 2 * links + skipped:
        raise ValueError("damaged snapshot")
    fields = iter(numbers)
    pairs = iter(names[files : files + 2 * links])
    return Snapshot(
        dict(zip(names[:files], zip(fields, fields, fields, fields, fields, strict=True), strict=True)),
        dict(zip(pairs, pairs, strict=True)),
        frozenset(names[files + 2 * links :]),
        bool(complete),
    )
