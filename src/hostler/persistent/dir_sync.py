"""One persistent dir of one session: refreshed from the app's storage, and committed to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..types.errors import PersistenceConflict, PersistenceError
from ..workspace import SessionDirs
from .backing import Backing
from .comparison import Row, Version, overlaps
from .dirs import Merge, PersistentDir
from .folder import Folder, Frozen, Look
from .ledger import KEPT_FILE, Ledger, Pending
from .merging import resolved
from .report import Report, report_of
from .taking import Taken, take_in

T = TypeVar("T")
_ATTEMPTS = 5  # when others store at the same time


@dataclass(slots=True)
class Work:
    """A ledger that is open, and what was read of it."""

    ledger: Ledger
    folder: Folder
    frozen: Frozen
    rows: dict[str, Row] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """An uncommitted change of a file that ``existed`` or ``exists``; None for a content that is not kept, or is none."""

    path: str
    existed: bool
    exists: bool
    old: bytes | None
    new: bytes | None


class DirSync:
    """What is done with a dir's checkout, under the session's lease. All of it survives a crash at any moment: what is
    not in the storage for certain is still a change of the session afterwards."""

    def __init__(self, dir: PersistentDir, dirs: SessionDirs) -> None:
        self.dir = dir
        self._persistent = dirs.persistent
        self._own = os.path.join(dirs.private, "persistent", dir.name)

    async def loaded_for(self, turn: str) -> bool:
        """Whether it was refreshed for this turn already."""
        async with self._open() as work:
            return bool(await asyncio.to_thread(work.ledger.get, "loaded") == turn)

    async def known(self) -> bool:
        """Whether it was ever loaded."""
        async with self._open() as work:
            return await asyncio.to_thread(work.ledger.get, "loaded") is not None

    async def note_loaded(self, turn: str) -> None:
        """The turn goes on with what was loaded before."""
        async with self._open() as work:
            await asyncio.to_thread(work.ledger.set, "loaded", turn)

    async def refresh(self, backing: Backing, turn: str | None = None) -> Taken:
        """Bring what the storage has into the checkout, but over no uncommitted change."""
        async with self._open() as work:
            if not await asyncio.to_thread(work.folder.there):
                await asyncio.to_thread(work.ledger.forget)
                await asyncio.to_thread(work.folder.make)
                work.rows = {}
            theirs = await backing.look(work.rows)
            taken = await take_in(work, backing, theirs, read_only=self.dir.read_only)
            loaded = {} if turn is None else {"loaded": turn}
            await asyncio.to_thread(work.ledger.update, {}, meta={"cursor": theirs.cursor, **loaded})
            return taken

    async def uncommitted(self) -> Report:
        """What is changed in the checkout; nothing is stored."""
        async with self._open() as work:
            look = await self._look(work, freeze=False)
            pending = await asyncio.to_thread(work.ledger.pending)
            cut_off = pending.changes if pending is not None else {}  # nobody knows whether that was stored
            changed = {path: look.changed.get(path, work.rows.get(path, Row()).base) for path in cut_off} | look.changed
            return report_of(self.dir, work.rows, changed, "uncommitted" if changed else "clean", look.odd)

    @property
    def path(self) -> str:
        """Where its checkout is."""
        return os.path.join(self._persistent, self.dir.name)

    @property
    def begun(self) -> bool:
        """Whether it was ever checked out."""
        return os.path.exists(os.path.join(self._own, "ledger.db"))

    async def differences(self) -> list[Difference]:
        """What is uncommitted, with the contents as far as they are kept."""
        async with self._open() as work:
            look = await self._look(work, freeze=False)
            found = []
            for path, version in sorted(look.changed.items()):
                row = work.rows.get(path, Row())
                old = await asyncio.to_thread(work.ledger.content, path, row.base)
                new = None if version is None else await asyncio.to_thread(work.folder.read, path, KEPT_FILE)
                found.append(Difference(path, row.base is not None, version is not None, old, new))
            return found

    async def put_back(self, backing: Backing) -> Report:
        """Undo what an agent has changed in a read-only dir; gives what that was."""
        async with self._open() as work:
            look = await self._look(work, freeze=False)
            report = report_of(self.dir, work.rows, look.changed, "clean", look.odd)
        if look.changed or look.odd:
            await self.refresh(backing)
        return report

    async def commit(
        self, backing_of: Callable[[str], Backing], *, turn: str | None, name: str, merge: Merge | None = None
    ) -> Report:
        """Store what is changed in the checkout. ``name`` is the part of the idempotency key that says who commits."""
        async with self._open() as work:
            if (done := await self._done(work, turn)) is not None:
                return done
            try:
                retried = await self._retried(work, backing_of, turn)
            except PersistenceError as error:
                look = await self._look(work, freeze=False)
                return report_of(self.dir, work.rows, look.changed, "failed", look.odd, error=error)
            look = await self._look(work, freeze=True)
            count = await asyncio.to_thread(work.ledger.get, "commits", 0)
            key = f"{turn or name}/{self.dir.name}/{count}"
            report = report_of(self.dir, work.rows, look.changed, "committed", look.odd, key=key)
            if not look.changed:
                return retried or replace(report, status="clean", key=None)
            try:
                sent = await self._send(work, backing_of(key), look, look.changed, key, merge or self.dir.merge, turn)
                return replace(sent, skipped=report.skipped)
            except PersistenceConflict as error:
                paths = tuple(overlaps(look.changed, work.rows))
                return replace(report, status="conflict", error=error, conflicts=paths)
            except PersistenceError as error:
                return replace(report, status="failed", error=error)
            finally:
                if await asyncio.to_thread(work.ledger.pending) is None:
                    await asyncio.to_thread(work.frozen.clear)

    async def _done(self, work: Work, turn: str | None) -> Report | None:
        """What a host before us has committed for the same turn, before it died."""
        last = await asyncio.to_thread(work.ledger.get, "last")
        if turn is None or last is None or last["turn"] != turn or await asyncio.to_thread(work.ledger.pending):
            return None
        return Report.of(last["report"])

    async def _retried(self, work: Work, backing_of: Callable[[str], Backing], turn: str | None) -> Report | None:
        """Try the commit again that a crash has cut off, as it was and under its key."""
        pending = await asyncio.to_thread(work.ledger.pending)
        if pending is None:
            return None
        backing = backing_of(pending.key)
        look = await self._look(work, freeze=False)
        try:
            for version in pending.changes.values():
                if version is not None and await asyncio.to_thread(work.frozen.read, version) is None:
                    raise PersistenceConflict("What was to be stored is damaged.")  # it is still in the checkout
            report = report_of(self.dir, work.rows, pending.changes, "committed", {}, key=pending.key)
            alone = replace(look, entries={})  # the checkout may have gone on since
            of_turn = turn if pending.key.startswith(f"{turn}/") else None
            await self._send(work, backing, alone, pending.changes, pending.key, "fail", of_turn, attempts=1)
            if await asyncio.to_thread(work.ledger.pending) is not None:  # all of it was there already
                await asyncio.to_thread(work.ledger.settle, meta=_last(of_turn, report))
            return report
        except PersistenceConflict:  # it was not stored, or cannot be told: what is changed now is compared anew
            if await asyncio.to_thread(work.ledger.pending) is not None:
                await asyncio.to_thread(work.ledger.settle)
            return None

    async def _send(
        self,
        work: Work,
        backing: Backing,
        look: Look,
        changes: Mapping[str, Version | None],
        key: str,
        merge: Merge,
        turn: str | None,
        attempts: int = _ATTEMPTS,
    ) -> Report:
        give_back = await backing.lock()
        try:
            for attempt in range(attempts):
                if backing.by_file or attempt or overlaps(changes, work.rows):
                    changes = await self._caught_up(work, backing, look, changes, merge)
                report = report_of(self.dir, work.rows, changes, "committed", {}, key=key)
                if not changes:
                    return replace(report, status="clean", key=None)
                last = _last(turn, report)
                try:
                    await self._store(work, backing, look, changes, key, last)
                    return report
                except PersistenceConflict:
                    if attempt == attempts - 1:
                        raise
        finally:
            if give_back is not None:
                give_back()
        raise AssertionError("unreachable")

    async def _caught_up(
        self,
        work: Work,
        backing: Backing,
        look: Look,
        changes: Mapping[str, Version | None],
        merge: Merge,
    ) -> Mapping[str, Version | None]:
        """See what the storage has by now. Gives what is left to be stored; raises PersistenceConflict on an overlap."""
        only = set(changes) if backing.by_file else None
        theirs = await (backing.look_at(work.rows, sorted(changes)) if backing.by_file else backing.look(work.rows))
        await take_in(work, backing, theirs, look=look, mine=changes, only=only)
        if not backing.by_file:
            await asyncio.to_thread(work.ledger.set, "cursor", theirs.cursor)
        changes = _left(changes, work.rows)
        if found := overlaps(changes, work.rows):
            changes = await resolved(work, backing, theirs, look, changes, found, merge, self.dir.path)
        return _left(changes, work.rows)

    async def _store(
        self,
        work: Work,
        backing: Backing,
        look: Look,
        changes: Mapping[str, Version | None],
        key: str,
        meta: dict[str, Any],
    ) -> None:
        def read(path: str, version: Version) -> bytes:
            content = work.frozen.read(version)
            if content is None:
                raise PersistenceError(f"{self.dir.path}: the frozen content of {path!r} is gone; commit again.")
            return content

        def settle(meta: Mapping[str, Any]) -> None:
            rows = {p: Row(changes[p], changes[p], version, look.entries.get(p)) for p, version in done.items()}
            rows = {p: row if row.base else Row() for p, row in rows.items()}
            small = {}
            for path in done:
                version = changes[path]
                if version is not None and (content := work.frozen.small(version, KEPT_FILE)) is not None:
                    small[path] = content
            work.ledger.settle(rows, small, meta)
            work.rows.update(rows)

        done: dict[str, str | None] = {}
        await asyncio.to_thread(work.ledger.begin, Pending(key, changes))
        cursor = await asyncio.to_thread(work.ledger.get, "cursor")
        try:
            new = await backing.store(changes, work.rows, read, cursor, done)
        except PersistenceError:
            await asyncio.to_thread(settle, {})
            raise
        await asyncio.to_thread(settle, {**meta, "cursor": new})

    async def _look(self, work: Work, *, freeze: bool) -> Look:
        """What is in the checkout; what is the base again, or what the storage has, is noted as such."""

        def look() -> Look:
            if not work.folder.there():
                if not work.rows and not os.path.lexists(work.folder.path):
                    return Look()  # nothing was ever in it
                raise PersistenceError(
                    f"{self.dir.path} is no folder any more: something else was put in its place. Nothing was stored; it is "
                    "checked out anew before the next turn."
                )
            found = work.folder.look(work.rows, work.frozen if freeze else None)
            agreed = {path: work.rows[path]._replace(entry=entry) for path, entry in found.touched.items()}
            for path, version in list(found.changed.items()):
                row = work.rows.get(path, Row())
                if version == row.theirs:  # made to be what the storage has
                    agreed[path] = Row(version, version, row.version, found.entries.get(path))
                    del found.changed[path]
            if agreed:
                work.ledger.update(agreed)
                work.rows.update(agreed)
            return found

        return await asyncio.to_thread(look)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Work]:
        ledger = Ledger(os.path.join(self._own, "ledger.db"))
        work = Work(ledger, Folder(self._persistent, self.dir.name), Frozen(os.path.join(self._own, "frozen")))
        try:
            await asyncio.to_thread(ledger.open)
            work.rows = await asyncio.to_thread(ledger.rows)
            yield work
        except (sqlite3.Error, OSError) as error:
            raise PersistenceError(f"The checkout of {self.dir.path} cannot be used: {error}.") from error
        finally:
            with contextlib.suppress(sqlite3.Error, AttributeError):  # it never opened
                ledger.close()


def _last(turn: str | None, report: Report) -> dict[str, Any]:
    """What is remembered of a turn's commit, in case that its host dies before the turn is over."""
    return {} if turn is None else {"last": {"turn": turn, "report": report.to_dict()}}


def _left(changes: Mapping[str, Version | None], rows: Mapping[str, Row]) -> dict[str, Version | None]:
    return {path: version for path, version in changes.items() if rows.get(path, Row()).base != version}
