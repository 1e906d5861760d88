"""Three states of a file compared: as it was, as it is here, as it is in the app's storage. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from ..workspace.scan import Entry

# Tuples, not dataclasses: there may be 100,000 of each, and making one takes a third of the time.


class Version(NamedTuple):
    """What a file is: two files that are alike in this are the same to a persistent dir."""

    sha256: str
    executable: bool = False

    @classmethod
    def of(cls, content: bytes, executable: bool) -> Version:
        return cls(hashlib.sha256(content).hexdigest(), executable)


class Row(NamedTuple):
    """What is known of one path. ``base`` is the state that both sides had in common last, ``theirs`` the storage's as
    it was seen last, ``version`` the storage's own name for that (JSON text); None: no file, not known. ``entry`` is the
    stat record of the file in the checkout when it was the base."""

    base: Version | None = None
    theirs: Version | None = None
    version: str | None = None
    entry: Entry | None = None


Verdict = Literal["same", "take", "keep", "alike", "overlap"]


def compare(base: Version | None, mine: Version | None, theirs: Version | None) -> Verdict:
    """``same``: nothing is different. ``take``: only theirs changed. ``keep``: only mine changed. ``alike``: both
    changed to the same. ``overlap``: both changed, and differ."""
    if mine == theirs:
        return "same" if mine == base else "alike"
    if mine == base:
        return "take"
    return "keep" if theirs == base else "overlap"


def overlaps(mine: Mapping[str, Version | None], rows: Mapping[str, Row]) -> list[str]:
    """The paths of ``mine`` (what is changed here) that the storage has changed as well, or that cannot be there beside
    what it has: a file where the other side has a folder of that name."""
    found = set()
    for path, version in mine.items():
        row = rows.get(path, Row())
        if compare(row.base, version, row.theirs) == "overlap":
            found.add(path)
    written = {path for path, version in mine.items() if version is not None}
    for path in written:
        for folder in parents(path):
            row = rows.get(folder, Row())
            if row.theirs is not None and mine.get(folder, row.theirs) is not None:
                found.add(path)
    for path, row in rows.items():
        if row.theirs is not None and row.theirs != row.base and path not in mine:
            found.update(folder for folder in parents(path) if folder in written)
    return sorted(found)


def impossible(paths: Iterable[str]) -> str | None:
    """A path that is both a file and a folder of these, if there is one."""
    files = set(paths)
    return next((folder for path in sorted(files) for folder in parents(path) if folder in files), None)


def parents(path: str) -> Iterator[str]:
    """The folders that hold ``path``."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)
