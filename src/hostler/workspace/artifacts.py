"""What a session has for results now, and their contents kept for good."""

from __future__ import annotations

import json
import mimetypes
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from ..types.errors import PathError
from ..types.result import FileRef
from .blobs import Blobs
from .confined import Root
from .diffs import printable
from .roots import Roots
from .scan import Entry, Snapshot, entry_of, scan, settle

FOLDER = "/artifacts"
_MAX_FILES = 1000  # new versions of one turn
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Collected:
    """The results as they are now, all with their content kept; and what could not be kept, in words."""

    files: tuple[FileRef, ...] = ()
    problems: tuple[str, ...] = ()


class _TooLarge(Exception):
    pass


class Vault:
    """Keeps the contents of one session's artifacts in ``folder``. Methods block: call them in a worker thread."""

    def __init__(self, roots: Roots, folder: str) -> None:
        self._roots = roots
        self._index = os.path.join(folder, "index.json")
        self.blobs = Blobs(folder)

    def empty(self) -> bool:
        """Whether nothing lies below ``/artifacts``."""
        try:
            return not os.listdir(self._roots.resolve(FOLDER)[0].path)
        except OSError:
            return False  # `collect` says why

    def collect(self, marked: Mapping[str, str | None], limit: int) -> Collected:
        """Look at all files below ``/artifacts`` and at the ``marked`` ones (with their media types), and keep what is
        new, up to ``limit`` bytes. Links and other special files are no results."""
        found, problems = self._found(marked)
        if not found:
            return Collected((), tuple(problems))
        settle(Snapshot({path: entry for path, (entry, _, _) in found.items()}))
        known, index = self._read_index(), {}
        files: list[FileRef] = []
        room, new = limit, 0
        for path, (entry, root, name) in found.items():
            sha256 = known[path][1] if path in known and known[path][0] == list(entry) else None
            if sha256 is None or not self.blobs.has(sha256):
                try:
                    if new == _MAX_FILES or entry[1] > room:
                        raise _TooLarge
                    size, sha256 = self._kept(root, name, room)
                except _TooLarge:
                    problems.append(f"{path} was not kept: more than {_MAX_FILES} files or {limit} bytes are new.")
                    continue
                except (OSError, PathError) as error:
                    problems.append(f"{path} was not kept: {error}")
                    continue
                room, new = room - size, new + 1
            else:
                size = entry[1]
            index[path] = (list(entry), sha256)
            files.append(FileRef(path, size, marked.get(path) or mimetypes.guess_type(path)[0], sha256, True))
        if index != known:
            self._write_index(index)
        return Collected(tuple(files), tuple(problems))

    def _found(self, marked: Mapping[str, str | None]) -> tuple[dict[str, tuple[Entry, Root, str]], list[str]]:
        root, _ = self._roots.resolve(FOLDER)
        look = scan(root.path, frozenset())
        problems = [] if look.complete else [f"{FOLDER} holds too many files to be looked at."]
        found = {
            printable(f"{FOLDER}/{name}"): (entry, root, name)
            for name, entry in sorted(look.entries.items())
            if stat.S_ISREG(entry[0])
        }
        for path in marked:
            try:
                root, name = self._roots.resolve(path)
                info = root.lstat(name)
            except (OSError, PathError):
                continue  # it is gone
            if stat.S_ISREG(info.st_mode):
                found.setdefault(path, (entry_of(info), root, name))
        return found, problems

    def _kept(self, root: Root, name: str, room: int) -> tuple[int, str]:
        def chunks(file: BinaryIO) -> Iterator[bytes]:
            left = room
            while chunk := file.read(_CHUNK):
                left -= len(chunk)
                if left < 0:  # it grows while we read
                    raise _TooLarge
                yield chunk

        with root.open_read(name) as file:
            return self.blobs.put(chunks(file))

    # The index only saves reading what has not changed.

    def _read_index(self) -> dict[str, tuple[list[int], str]]:
        try:
            with open(self._index, encoding="utf-8") as file:
                return {path: (list(entry), str(sha256)) for path, (entry, sha256) in json.load(file).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write_index(self, index: Mapping[str, tuple[list[int], str]]) -> None:
        try:
            Root(os.path.dirname(self._index)).write("index.json", json.dumps(index).encode(), mode=0o600)
        except OSError:
            pass  # then all is read again after the next turn
