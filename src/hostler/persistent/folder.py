"""The checkout of a persistent dir: what is different in it, and writing into it. Blocks; follows no link."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..types.errors import PathError, PersistenceError
from ..workspace.confined import Root, make_folder, split
from ..workspace.scan import Entry, entry_of, inside, scan, settle
from .comparison import Row, Version, parents
from .dirs import VIRTUAL

_CHUNK = 1 << 20
_UNFINISHED = re.compile(r"(?:.*/)?\.hostler-[0-9a-f]{16}\.tmp", re.DOTALL)  # what `Root` writes beside its target
_LONG = 3600.0  # s
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Look:
    """What is in a checkout. ``changed`` are the paths that are not the base (None: gone), ``entries`` the stat records
    of all files, ``touched`` those of files that are the base all the same, ``odd`` what cannot be kept, and why."""

    changed: dict[str, Version | None] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    touched: dict[str, Entry] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)


class Frozen:
    """Contents of changed files as they were when they were looked at, by hash."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def put(self, chunks: Iterator[bytes]) -> str:
        """Keep a content; gives its SHA-256. Not synced: what a power cut damages is seen by its hash."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        with Root(self._folder).create("incoming", mode=0o400) as writer:
            for chunk in chunks:
                writer.write(chunk)
            return writer.commit(name=lambda sha256: sha256)[1]

    def read(self, version: Version) -> bytes | None:
        """The content; None when it is not here or is not what it was."""
        with contextlib.suppress(OSError, PathError):
            data = Root(self._folder).read(version.sha256)
            if hashlib.sha256(data).hexdigest() == version.sha256:
                return data
        return None

    def small(self, version: Version, limit: int) -> bytes | None:
        """The content of a file that is not larger."""
        with contextlib.suppress(OSError, PathError):
            if Root(self._folder).stat(version.sha256).bytes <= limit:
                return self.read(version)
        return None

    def clear(self) -> None:
        with contextlib.suppress(OSError, PathError):
            Root(os.path.dirname(self._folder)).remove(os.path.basename(self._folder))


class Changed(Exception):
    """The file is not what was looked at any more."""


class Folder:
    """The folder ``name`` of a session's persistent dirs."""

    def __init__(self, persistent: str, name: str) -> None:
        make_folder(persistent)
        self._root = Root(persistent, VIRTUAL)
        self._name = name
        self.path = os.path.join(self._root.path, name)

    def there(self) -> bool:
        """Whether it is a folder still: an agent may have put something in its place."""
        with contextlib.suppress(OSError, PathError):
            return self._root.stat(self._name).kind == "directory"
        return False

    def make(self) -> None:
        """Make it, in place of whatever is there."""
        make_folder(self.path)

    def look(self, rows: Mapping[str, Row], frozen: Frozen | None = None) -> Look:
        """One walk that stats everything and reads what has another stat record than the base; what is changed is kept
        in ``frozen``. Raises PersistenceError when there is too much to look at."""
        seen = scan(self.path, _NOTHING, marks=_NOTHING)
        if not seen.complete:
            raise PersistenceError(f"{VIRTUAL}/{self._name} holds too many files to be looked at.")
        look = Look(odd=dict.fromkeys(seen.skipped, "cannot be read"))
        settle(seen)
        for path, entry in seen.entries.items():
            if is_unfinished(path):
                sweep(self._root, f"{self._name}/{path}", entry)
                continue
            look.entries[path] = entry
            if (reason := _unfit(path, entry)) is not None:
                look.odd[path] = reason
                continue
            row = rows.get(path, _NO_ROW)
            if row.entry == entry:
                continue
            try:
                version = self._version(path, entry, frozen)
            except (OSError, PathError) as error:
                look.odd[path] = f"cannot be read: {error}"
            except Changed:
                look.odd[path] = "was changed while it was read"
            else:
                if version == row.base:
                    look.touched[path] = entry
                else:
                    look.changed[path] = version
        for path, row in rows.items():
            if row.base is not None and path not in seen.entries and not inside(path, seen.skipped):
                look.changed[path] = None
        return look

    def _version(self, path: str, entry: Entry, frozen: Frozen | None) -> Version:
        with self._root.open_read(f"{self._name}/{path}") as file:
            if entry_of(os.fstat(file.fileno())) != entry:
                raise Changed(path)
            chunks = iter(lambda: file.read(_CHUNK), b"")
            if frozen is not None:
                sha256 = frozen.put(chunks)
            else:
                digest = hashlib.sha256()
                for chunk in chunks:
                    digest.update(chunk)
                sha256 = digest.hexdigest()
            if entry_of(os.fstat(file.fileno())) != entry:
                raise Changed(path)
        return Version(sha256, bool(entry[0] & stat.S_IXUSR))

    def read(self, path: str, limit: int) -> bytes | None:
        """The content of a file that is not larger, as it is now."""
        with contextlib.suppress(OSError, PathError):
            data = self._root.read(f"{self._name}/{path}", limit + 1)
            return data if len(data) <= limit else None
        return None

    def write(self, path: str, content: bytes, executable: bool, expected: Entry | None) -> Entry:
        """Put a file there whole, if what is there is still ``expected``; else raises Changed."""
        inner = f"{self._name}/{path}"
        with self._root.create(inner, mode=0o755 if executable else 0o644) as writer:
            writer.write(content)
            self._check(inner, expected)
            writer.commit()
        return entry_of(self._root.lstat(inner))

    def remove(self, path: str, expected: Entry | None) -> None:
        """Remove a file and the folders that are empty without it, if it is still ``expected``; else raises Changed."""
        self._check(f"{self._name}/{path}", expected)
        with contextlib.suppress(FileNotFoundError):
            self._root.remove(f"{self._name}/{path}")
        prune(self._root, path, f"{self._name}/")

    def _check(self, inner: str, expected: Entry | None) -> None:
        try:
            found = entry_of(self._root.lstat(inner))
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found != expected:
            raise Changed(inner)


def is_unfinished(path: str) -> bool:
    """Whether it is a file that is just being written, beside its target."""
    return _UNFINISHED.fullmatch(path) is not None


def sweep(root: Root, path: str, entry: Entry) -> None:
    """Remove an unfinished file that nobody has written for a long time: whoever wrote it was killed."""
    if time.time() - entry[2] / 1e9 > _LONG:
        with contextlib.suppress(OSError, PathError):
            root.remove(path)


def prune(root: Root, path: str, prefix: str = "") -> None:
    """Remove the folders above a file that is gone, as far as they are empty."""
    for folder in sorted(parents(path), reverse=True):
        try:
            root.rmdir(prefix + folder)
        except (OSError, PathError):
            return


def is_text(path: str) -> bool:
    """Whether a path is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unfit(path: str, entry: Entry) -> str | None:
    if not stat.S_ISREG(entry[0]):
        return "is a link" if stat.S_ISLNK(entry[0]) else "is no regular file"
    if not is_text(path):
        return "has a name that is no UTF-8"
    try:
        return None if "/".join(split(path)) == path else "has a name that is no plain path"
    except PathError:  # the storage would refuse it, and with it everybody who loads from there
        return "has a name that is refused as a path"


_NO_ROW = Row()
