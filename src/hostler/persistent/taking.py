"""Taking in what the app's storage has: compared three ways by path, and never over an uncommitted change."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..types.errors import PathError
from .backing import Backing, Theirs, version_of
from .comparison import Row, Verdict, Version, compare
from .folder import Changed, Look, is_text

if TYPE_CHECKING:
    from .dir_sync import Work

_BATCH = 256  # files
_BYTES = 32 << 20
_ODD = Version("odd")  # the state of what cannot be kept: like no other


@dataclass(slots=True)
class Taken:
    """Paths that were written into the checkout and removed from it, and those that both sides have changed."""

    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    overlapping: list[str] = field(default_factory=list)


async def take_in(
    work: Work,
    backing: Backing,
    theirs: Theirs,
    *,
    look: Look | None = None,
    mine: Mapping[str, Version | None] | None = None,
    only: Collection[str] | None = None,
    read_only: bool = False,
) -> Taken:
    """Compare ``theirs`` with the rows, for all paths or ``only`` some, and bring the checkout and the rows up to date.

    ``look`` is what is in the checkout, looked at when it is needed; ``mine`` is to be compared in place of what it says. With
    ``read_only`` theirs is always right."""
    rows = work.rows
    scope = set(only) if only is not None else theirs.paths() | {p for p, r in rows.items() if r.theirs is not None}
    moved = {p for p in scope if p in theirs.unread or theirs.known.get(p) != rows.get(p, _NONE).base}
    taken = Taken()
    if look is None and (moved or read_only):
        look = await asyncio.to_thread(work.folder.look, rows)
    if look is None:
        return taken
    if read_only:
        moved |= look.changed.keys() | {path for path in look.odd if not path.endswith("/")}
    if not moved:
        return taken
    step = _Step(work, look, theirs, {**look.changed, **(mine or {})}, read_only, taken)
    await asyncio.to_thread(step.begin)
    await asyncio.to_thread(step.without_content, moved)
    batch: list[tuple[str, bytes]] = []
    async with aclosing(backing.contents(theirs, step.wanted)) as contents:
        async for path, content in contents:
            batch.append((path, content))
            if len(batch) >= _BATCH or sum(len(c) for _, c in batch) >= _BYTES:
                await asyncio.to_thread(step.with_content, batch)
                batch = []
    await asyncio.to_thread(step.with_content, batch)
    return taken


_NONE = Row()


class _Step:
    """One run of `take_in`; its methods block. Before a file is touched the ledger says what it is going to be, so that
    a crash in between is not taken for a change of the session's."""

    def __init__(
        self,
        work: Work,
        look: Look,
        theirs: Theirs,
        mine: dict[str, Version | None],
        read_only: bool,
        taken: Taken,
    ) -> None:
        self._work = work
        self._look = look
        self._theirs = theirs
        self._mine = mine
        self._read_only = read_only
        self._taken = taken
        self._ours: dict[str, set[Version | None]] = {}
        self.wanted: set[str] = set()

    def begin(self) -> None:
        self._ours = self._work.ledger.attempts()
        if (pending := self._work.ledger.pending()) is not None:
            for path, version in pending.changes.items():
                self._ours.setdefault(path, set()).add(version)

    def without_content(self, moved: set[str]) -> None:
        """What needs no content: removals first, since a file may come where a folder was. Fills ``wanted``."""
        rows: dict[str, Row] = {}
        gone: dict[str, Row] = {}
        for path in sorted(moved):
            if path in self._theirs.unread:
                self.wanted.add(path)
                continue
            version = self._theirs.known.get(path)
            verdict, base = self._decide(path, version)
            if verdict != "take":
                rows[path] = self._row(path, base, version, verdict)
            elif version is not None:
                self.wanted.add(path)
            else:
                gone[path] = self._row(path, base, None, "keep")
        self._put({**rows, **gone})
        removed = {}
        for path in gone:
            try:
                self._work.folder.remove(path, self._look.entries.get(path))
            except (Changed, OSError, PathError):
                continue  # it is a change of the session's by now
            self._taken.removed.append(path)
            removed[path] = Row()
        self._put(removed)

    def with_content(self, batch: list[tuple[str, bytes]]) -> None:
        """Files with their contents: compared now, when they were not before, and written where nothing of ours is."""
        rows: dict[str, Row] = {}
        contents: dict[str, bytes] = {}
        fresh: list[tuple[str, bytes, Version]] = []
        for path, content in batch:
            version = version_of(content, self._work.rows.get(path))
            verdict, base = self._decide(path, version)
            rows[path] = self._row(path, base, version, verdict)
            if verdict == "take":
                fresh.append((path, content, version))
            elif verdict != "overlap":
                contents[path] = content
        self._put(rows, contents)
        rows, contents = {}, {}
        for path, content, version in fresh:
            try:
                entry = self._look.entries.get(path)
                if path in self._look.odd:
                    self._work.folder.remove(path, entry)
                    entry = None
                entry = self._work.folder.write(path, content, version.executable, entry)
            except (Changed, OSError, PathError) as error:
                if isinstance(error, OSError) and not isinstance(error, _IN_THE_WAY):
                    raise  # the disk is full, say
                self._taken.overlapping.append(path)
                continue
            self._taken.written.append(path)
            rows[path] = Row(version, version, self._theirs.versions.get(path), entry)
            contents[path] = content
        self._put(rows, contents)

    def _decide(self, path: str, theirs: Version | None) -> tuple[Verdict, Version | None]:
        """The verdict, and what both sides had in common in truth."""
        row = self._work.rows.get(path, _NONE)
        mine = _ODD if path in self._look.odd else self._mine.get(path, row.base)
        base = row.base
        if mine == row.theirs:
            base = row.theirs  # a refresh was cut off between the file and the ledger
        if theirs in self._ours.get(path, ()):
            base = theirs  # an earlier commit of ours, of which we did not know whether it was stored
        if self._read_only:
            return ("same" if mine == theirs else "take"), base
        verdict = compare(base, mine, theirs)
        if verdict == "overlap":
            self._taken.overlapping.append(path)
        return verdict, base

    def _row(self, path: str, base: Version | None, theirs: Version | None, verdict: Verdict) -> Row:
        version = self._theirs.versions.get(path)
        if verdict in ("same", "alike"):
            return Row(theirs, theirs, version, self._look.entries.get(path))
        return Row(base, theirs, version)

    def _put(self, rows: Mapping[str, Row], contents: Mapping[str, bytes] | None = None) -> None:
        if rows or contents:
            self._work.ledger.update({path: row for path, row in rows.items() if is_text(path)}, contents)
            self._work.rows.update(rows)


_IN_THE_WAY = (IsADirectoryError, NotADirectoryError, FileExistsError, FileNotFoundError)
