"""The persistent dirs of one session as its host keeps them: refreshed before a turn, committed behind it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

from .. import portal
from ..persistent import PersistContext, PersistentDir
from ..persistent.backing import Backing
from ..persistent.brief import brief
from ..persistent.dir_sync import DirSync
from ..persistent.dirs import VIRTUAL, Merge
from ..persistent.memory import index_of
from ..persistent.report import Report
from ..persistent.rules import named
from ..store import inbox, journal, queries
from ..store import trace as trace_queries
from ..store.queries import Lease
from ..types.errors import (
    LeaseLost,
    PathError,
    PersistenceConflict,
    PersistenceError,
    SessionBusy,
)
from ..types.events import CheckedOut, Committed, Event, Notice, PersistenceFailed
from ..types.result import Persistence
from ..workspace import Root, SessionDirs
from ..workspace.confined import split
from ..workspace.roots import Names

if TYPE_CHECKING:
    from .local import Host

_log = logging.getLogger("hostler")
_NAMED = 100  # paths that an event or a Result names of each kind


@dataclass(frozen=True, slots=True)
class Behalf:
    """For whom a dir is refreshed or committed: the turn (None between turns), the app's context of it, and the loop of
    its async callbacks. ``stopping`` is set when somebody wants the turn to end."""

    turn: str | None = None
    extra_body: Any = None
    loop: asyncio.AbstractEventLoop | None = None
    stopping: asyncio.Event | None = None


class Persistent:
    """All methods run on the engine loop; those that touch a checkout are called under the session's lease."""

    def __init__(self, host: Host, id: int, key: str, dirs: SessionDirs, given: Sequence[PersistentDir]) -> None:
        self._host = host
        self._id = id
        self._key = key
        self._dirs = dirs
        self.given = tuple(given)
        self._telling = ""

    # ---- around a turn

    async def begin(self, lease: Lease, behalf: Behalf, *, recovered: bool, strict: bool) -> None:
        """Refresh the dirs before a turn. Raises PersistenceError for one that cannot be loaded and never was; of
        another the turn gets what was loaded last, unless ``strict``."""
        if not self.given:
            return
        syncs = [DirSync(dir, self._dirs) for dir in self.given]
        found = await asyncio.gather(*(self._refreshed(s, behalf, recovered) for s in syncs), return_exceptions=True)
        events: list[Event] = []
        failure: BaseException | None = None
        for sync, outcome in zip(syncs, found, strict=True):
            if not isinstance(outcome, BaseException):
                events += outcome
            elif not isinstance(outcome, PersistenceError):
                raise outcome
            else:
                events.append(_failed(sync.dir, "load", outcome))
                if strict or not await sync.known():
                    failure = failure or outcome
                elif behalf.turn is not None:
                    await sync.note_loaded(behalf.turn)
        if events:
            records = await self._host.store.write(
                lambda conn: journal.note(
                    conn, lease, turn=behalf.turn, events=[(event, None) for event in events], now=time()
                )
            )
            self._host.journal.publish(self._id, records)
        if failure is not None:
            raise failure

    async def _refreshed(self, sync: DirSync, behalf: Behalf, recovered: bool) -> list[Event]:
        assert behalf.turn is not None
        if recovered and await sync.loaded_for(behalf.turn):
            return []  # the program may be at work in it
        taken = await sync.refresh(self._backing(sync.dir, behalf), behalf.turn)
        changed = taken.written or taken.removed
        return [CheckedOut(sync.dir.path, len(taken.written), len(taken.removed))] if changed else []

    async def end(
        self, lease: Lease, behalf: Behalf, *, done: bool, on_error: Callable[[Any], Any] | None
    ) -> tuple[Persistence, list[Event]]:
        """Commit behind a turn that is ``done``, put back what is read-only, and say what became of each dir."""
        if not self.given:
            return Persistence(), []
        await self._check(lease)
        outcomes = await asyncio.gather(*(self._ended(dir, behalf, done) for dir in self.given))
        events = [event for _, said in outcomes for event in said]
        reports = [report for report, _ in outcomes]
        for report in reports:
            if report.error is not None and on_error is not None:
                self._host.spawn(self._tell(on_error, report.error, behalf))
        return summary(reports), events

    async def _ended(self, dir: PersistentDir, behalf: Behalf, done: bool) -> tuple[Report, list[Event]]:
        sync = DirSync(dir, self._dirs)
        try:
            if dir.read_only:
                report = await sync.put_back(self._backing(dir, behalf))
                return Report(dir.path, "clean"), _put_back(report)
            if done and dir.commit == "after-turn":
                report = await self._commit(sync, behalf)
                return report, _told(report, dir)
            return await sync.uncommitted(), []
        except PersistenceError as error:
            failure = error
        except Exception as error:  # not foreseen: the turn's outcome is worth more
            _log.exception("Session %s: %s could not be committed", self._key, dir.path)
            failure = PersistenceError(f"hostler failed to commit {dir.path}: {type(error).__name__}: {error}")
        report = Report(dir.path, "failed", error=failure)
        return report, _told(report, dir)

    async def _commit(self, sync: DirSync, behalf: Behalf, merge: Merge | None = None) -> Report:
        name = hashlib.sha256(self._key.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return await sync.commit(
            lambda key: self._backing(sync.dir, behalf, key), turn=behalf.turn, name=name, merge=merge
        )

    async def _check(self, lease: Lease) -> None:
        """Nothing is stored for a session that is another host's by now."""
        row = await self._host.store.read(lambda conn: queries.get_session(conn, self._id))
        if row.epoch != lease.epoch or row.holder != lease.holder:
            raise LeaseLost(f"Session {self._key!r} was taken over by another host.")

    async def _tell(self, on_error: Callable[[Any], Any], error: PersistenceError, behalf: Behalf) -> None:
        try:
            await portal.call_back(on_error, error, loop=behalf.loop)
        except Exception as raised:
            _log.warning("on_persistence_error of session %s raised: %r", self._key, raised)

    def _backing(self, dir: PersistentDir, behalf: Behalf, key: str | None = None) -> Backing:
        ctx = PersistContext(
            self._key, dir.path, behalf.extra_body, behalf.turn, idempotency_key=key, data_dir=self._host.data_dir
        )
        return Backing(dir, ctx, loop=behalf.loop, stopping=behalf.stopping)

    # ---- between turns

    async def commit(self, path: str | None, behalf: Behalf, merge: Merge | None = None) -> Persistence:
        """Commit one dir, or all. Raises SessionBusy while a turn runs or waits, PathError for a path that is no dir of
        this session, and PersistenceError or PersistenceConflict when one of them is not committed."""
        dirs = self._chosen(path)
        session = self._id
        row = await self._host.store.read(lambda conn: queries.get_session(conn, session))
        lease = await self._host.store.write(
            lambda conn: inbox.claim_idle(conn, session, self._host.id, self._host.is_dead)
        )
        if lease is None:
            raise SessionBusy(f"A turn of session {self._key!r} runs or waits; commit when it is done.")
        try:
            if behalf.extra_body is None:
                extra_body = await self._host.store.read(lambda conn: trace_queries.last_extra_body(conn, session))
                behalf = Behalf(None, extra_body, behalf.loop)
            reports = [await self._committed(dir, behalf, merge) for dir in dirs]
            events = [event for dir, report in zip(dirs, reports, strict=True) for event in _told(report, dir)]
            if events:
                records = await self._host.store.write(
                    lambda conn: journal.note(
                        conn, lease, turn=None, events=[(event, None) for event in events], now=time()
                    ),
                    durable=True,
                )
                self._host.journal.publish(session, records)
        finally:
            try:
                await self._host.free(lease, row.status)
            finally:
                if (live := self._host.sessions.get(session)) is not None:
                    live.serve()  # what was accepted meanwhile waits for the lease
        persistence = summary(reports)
        for report in reports:
            if report.error is not None:
                raise _raised(report.error, persistence=persistence)
        return persistence

    async def _committed(self, dir: PersistentDir, behalf: Behalf, merge: Merge | None) -> Report:
        try:
            return await self._commit(DirSync(dir, self._dirs), behalf, merge)
        except PersistenceError as error:
            return Report(dir.path, "failed", error=error)

    def _chosen(self, path: str | None) -> list[PersistentDir]:
        if path is None:
            return [dir for dir in self.given if not dir.read_only]
        dir = self._of(path)
        if dir is None:
            there = ", ".join(d.path for d in self.given) or "none"
            raise PathError(f"Session {self._key!r} has no persistent dir {path!r}; it has {there}.")
        if dir.read_only:
            raise PersistenceError(f"{dir.path} of session {self._key!r} is read-only; there is nothing to commit.")
        return [dir]

    def check_write(self, virtual: str) -> None:
        """Raise PersistenceError for a path in a dir that is read-only, PathError for one below ``/persistent`` that is
        in no dir of a session that has some: it would not be kept."""
        if not self.given or not (virtual == VIRTUAL or virtual.startswith(VIRTUAL + "/")):
            return
        dir = self._of(virtual)
        if dir is None:
            there = ", ".join(d.path for d in self.given)
            raise PathError(f"{virtual!r} is in no persistent dir of session {self._key!r}; it has {there}.")
        if dir.read_only:
            raise PersistenceError(f"{virtual!r} cannot be changed: {dir.path} of session {self._key!r} is read-only.")

    def _of(self, path: str) -> PersistentDir | None:
        parts = split(path, VIRTUAL)
        return next((dir for dir in self.given if parts and dir.name == parts[0]), None)

    # ---- telling the agent

    async def brief(self, names: Names | None, native_id: str | None) -> str:
        """What is to be said to the agent of its dirs, with its next prompt; empty when it was told the same before."""
        if not self.given:
            return ""

        def text() -> str:
            index = {d.path: index_of(self._dirs.persistent, d) for d in self.given if d.index is not None}
            return brief(self.given, (lambda path: path) if names is None else names.real, index)

        said = await asyncio.to_thread(text)
        self._telling = hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()
        return "" if await asyncio.to_thread(self._told) == [self._telling, native_id] else said

    async def told(self, native_id: str | None) -> None:
        """The agent was told, in the conversation with this id."""
        if self.given and self._telling:
            await asyncio.to_thread(self._note, json.dumps([self._telling, native_id]).encode())

    def _told(self) -> Any:
        try:
            return json.loads(Root(self._dirs.private).read("persistent/told"))
        except (OSError, ValueError):
            return None

    def _note(self, content: bytes) -> None:
        os.makedirs(self._dirs.private, mode=0o700, exist_ok=True)
        Root(self._dirs.private).write("persistent/told", content, mode=0o600)


async def uncommitted(data_dir: str, key: str, rules: Mapping[str, Any]) -> list[Report]:
    """The dirs of a session in which something is changed that is not in the app's storage."""
    dirs = SessionDirs.of(data_dir, key)
    syncs = [DirSync(named(rule), dirs) for rule in rules.get("persistent_dirs", ()) if rule["commit"] != "read-only"]
    found = []
    for sync in syncs:
        if sync.begun:
            with contextlib.suppress(PersistenceError):  # there is no checkout any more
                found.append(await sync.uncommitted())
    return [report for report in found if report.status != "clean"]


_WORST = ("conflict", "failed", "committed", "uncommitted")


def summary(reports: Sequence[Report]) -> Persistence:
    """What the Result says of the dirs."""
    told = [report for report in reports if report.status != "clean" or report.skipped]
    status = next((status for status in _WORST if any(report.status == status for report in told)), "clean")
    return Persistence(status, tuple(_bounded(report.to_dict()) for report in told))  # type: ignore[arg-type]


def _bounded(commit: dict[str, Any]) -> dict[str, Any]:
    """With the first paths of each kind; ``more`` says how many others there are."""
    more = {name: len(value) - _NAMED for name, value in commit.items() if isinstance(value, list)}
    more = {name: count for name, count in more.items() if count > 0}
    cut = {name: value[:_NAMED] if isinstance(value, list) else value for name, value in commit.items()}
    cut["skipped"] = dict(list(commit["skipped"].items())[:_NAMED])
    return {**cut, "more": more} if more else cut


def _told(report: Report, dir: PersistentDir) -> list[Event]:
    if report.error is not None:
        return [_failed(dir, "commit", report.error, report.conflicts)]
    if report.status != "committed" or report.key is None:
        return []
    return [Committed(dir.path, report.key, report.created[:_NAMED], report.updated[:_NAMED], report.deleted[:_NAMED])]


def _failed(dir: PersistentDir, step: str, error: PersistenceError, paths: Sequence[str] = ()) -> PersistenceFailed:
    code = "persistence_conflict" if isinstance(error, PersistenceConflict) else "persistence_error"
    return PersistenceFailed(dir.path, step, code, str(error), tuple(paths[:_NAMED]))


def _put_back(report: Report) -> list[Event]:
    paths = sorted({*report.created, *report.updated, *report.deleted, *(path for path, _ in report.skipped)})
    if not paths:
        return []
    message = f"{report.path} is read-only; what was changed in it was put back: {', '.join(paths[:10])}."
    failed = PersistenceFailed(report.path, "read-only", "read_only_changed", message, tuple(paths[:_NAMED]))
    return [failed, Notice("read_only_changed", message)]


def _raised(error: PersistenceError, **more: Any) -> PersistenceError:
    """It, as the caller gets it."""
    raised = type(error)(str(error), **more) if type(error) in (PersistenceError, PersistenceConflict) else error
    raised.__cause__ = error.__cause__
    return raised


def raise_for_persistence(persistence: Persistence, result: Any) -> None:
    """Raise what kept a turn's changes from being stored, with the turn's Result."""
    for commit in persistence.commits:
        if (error := commit["error"]) is not None:
            kind = PersistenceConflict if error["code"] == "persistence_conflict" else PersistenceError
            raise kind(error["message"], result=result, persistence=persistence)
