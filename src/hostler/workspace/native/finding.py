"""Which files of its private home are the history of a conversation."""

from __future__ import annotations

import fnmatch
import glob
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...types.errors import PathError
from ...types.result import FileEntry
from ...types.runtime import NativeFile
from ..confined import Root

_MAX_LOOKED_AT = 100_000
_MAX_DEPTH = 32


def find(root: Root, files: Iterable[NativeFile], native_id: str) -> dict[str, str]:
    """The regular files below home that match, by path, with their kind; the first pattern counts."""
    found: dict[str, str] = {}
    search = _Search(root, _MAX_LOOKED_AT, {})
    ids = {"{id}": glob.escape(native_id), "{id:8}": glob.escape(native_id[:8])}
    for wanted in files:
        # Each name of the pattern is filled in by itself: an id with a slash in it matches nothing.
        names = [_filled(name, ids) for name in wanted.pattern.split("/")]
        for path in search.matching(names, "", 0):
            found.setdefault(path, wanted.kind)
    return dict(sorted(found.items()))


def _filled(name: str, ids: Mapping[str, str]) -> str:
    for key, value in ids.items():
        name = name.replace(key, value)
    return name


@dataclass(slots=True)
class _Search:
    """Walks through what the patterns of one program name, each folder once; ``left`` entries may still be looked at."""

    root: Root
    left: int
    listed: dict[str, list[FileEntry]]

    def matching(self, names: list[str], folder: str, depth: int) -> Iterator[str]:
        name, rest = names[0], names[1:]
        if not glob.has_magic(name):
            if "/" in name or name in ("", ".", ".."):
                return
            path = f"{folder}/{name}" if folder else name
            if rest:
                yield from self.matching(rest, path, depth)
            elif self._is_file(path):
                yield path
            return
        if name == "**":
            yield from self.matching(rest, folder, depth)
        for entry in self._entries(folder):
            self.left -= 1
            if self.left < 0:
                return
            if name == "**":
                if entry.kind == "directory" and depth < _MAX_DEPTH:
                    yield from self.matching(names, entry.path, depth + 1)
            elif fnmatch.fnmatchcase(entry.path.rpartition("/")[2], name):
                if rest and entry.kind == "directory":
                    yield from self.matching(rest, entry.path, depth)
                elif not rest and entry.kind == "file":
                    yield entry.path

    def _entries(self, folder: str) -> list[FileEntry]:
        if folder not in self.listed:
            try:
                self.listed[folder] = self.root.listdir(folder or ".")
            except (OSError, PathError):
                self.listed[folder] = []
        return self.listed[folder]

    def _is_file(self, path: str) -> bool:
        try:
            return stat.S_ISREG(self.root.lstat(path).st_mode)
        except (OSError, PathError):
            return False
