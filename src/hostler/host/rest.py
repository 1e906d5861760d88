"""What is done to a session at rest: snapshots of its workspace, put back or copied into a new session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import uuid
from collections.abc import AsyncIterator
from time import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row

from ..sandboxes import choice
from ..store import inbox, journal, queries, spoken
from ..store.queries import Lease
from ..types.errors import CapabilityUnsupported, SandboxError, SessionBusy
from ..types.events import Forked, HostEvent, SnapshotRestored, SnapshotTaken
from ..workspace import SessionDirs, layout, snapshots, unfinished
from ..workspace.diffs import printable
from . import retention

if TYPE_CHECKING:
    from .live import LiveSession


async def snapshot(live: LiveSession) -> str:
    """Take a snapshot of the session's workspace; its id."""
    async with _at_rest(live) as lease:
        taken = await asyncio.to_thread(
            snapshots.take, live.sandbox.root, live.dirs.snapshots, live.host.settings.snapshot_limit
        )
        skipped = tuple(printable(f"{path}: {reason}") for path, reason in taken.skipped.items())
        await _note(live, lease, SnapshotTaken(taken.id, taken.entries, taken.bytes, skipped))
    return taken.id


async def restore(live: LiveSession, id: str) -> None:
    """Make the workspace what it was at the snapshot."""
    async with _at_rest(live) as lease:
        try:
            await asyncio.to_thread(snapshots.restore, live.sandbox.root, live.dirs.snapshots, id)
        except KeyError:
            raise SandboxError(f"Session {live.key!r} has no snapshot {id!r}.") from None
        live.dirs.forget_loss()
        await _note(live, lease, SnapshotRestored(id))


async def fork(live: LiveSession, key: str) -> Row[Any]:
    """A new session under ``key`` that goes on from where this one is, in a workspace of its own, as it is stored."""
    host, row = live.host, await live.host.store.read(lambda conn: queries.get_session(conn, live.id))
    if not live.runtime.native_files and row.finished:
        raise CapabilityUnsupported(
            f"{live.runtime.name} keeps its history where hostler does not know it: session {live.key!r} cannot be forked."
        )
    if await host.store.read(lambda conn: queries.find_session(conn, key)) is not None:
        raise ValueError(f"There is a session {key!r} already; fork into a new key.")
    await retention.clear(host, key)
    dirs = SessionDirs.of(host.data_dir, key)
    if dirs.used:
        raise ValueError(
            f"{dirs.root} holds what a lost session {key!r} has left; remove it (hostler gc), or fork elsewhere."
        )
    async with _at_rest(live) as lease, _staged(dirs) as staged:
        row = await host.store.read(lambda conn: queries.get_session(conn, live.id))
        await asyncio.to_thread(_copy, live, staged)
        await asyncio.to_thread(dirs.make)  # a sandbox works on a folder that is there
        sandbox = await asyncio.to_thread(live.sandbox.on, dirs.session)
        rules = {**live.rules, "sandbox": choice.stored(sandbox, own=True)}
        new_id = str(uuid.uuid4())
        history = {
            "native_id": row.native_id or (row.new_id if row.native else None),
            "native": row.native,
            "finished": row.finished,
        }

        def create(conn: Connection) -> tuple[Row[Any], str | None]:
            if queries.find_session(conn, key) is not None:
                raise ValueError(f"There is a session {key!r} by now; fork into a new key.")
            made = queries.create_session(
                conn,
                key=key,
                harness=row.harness,
                new_id=new_id,
                workdir=sandbox.root,
                owned=True,
                rules=rules,
                callables=row.callables,
                now=time(),
                history=history,
            )
            spoken.copy(conn, live.id, made.id)
            empty = dirs.set_aside()
            os.rename(staged.root, dirs.root)
            return made, empty

        made, empty = await host.store.write(create, durable=True)
        await asyncio.to_thread(dirs.settle)
        if empty is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(layout.erase, empty)
        await _note(live, lease, Forked(key))
    return made


@contextlib.asynccontextmanager
async def _staged(dirs: SessionDirs) -> AsyncIterator[SessionDirs]:
    """Folders for a fork, which take the place of ``dirs`` when it is in the store. Until then they may go at any time."""
    staged = dirs.staged()
    try:
        await asyncio.to_thread(staged.make)
        with unfinished.begun(staged.forking):
            yield staged
    finally:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(layout.erase, staged.root)


def _copy(live: LiveSession, dirs: SessionDirs) -> None:
    limit = live.host.settings.snapshot_limit
    for source, target in ((live.sandbox.root, dirs.session), (live.dirs.artifacts, dirs.artifacts)):
        if os.path.isdir(source):
            snapshots.copy(source, target, os.path.join(dirs.private, "fork"), limit)
    with os.scandir(live.dirs.native) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                shutil.copy2(entry.path, dirs.native, follow_symlinks=False)


@contextlib.asynccontextmanager
async def _at_rest(live: LiveSession) -> AsyncIterator[Lease]:
    """Hold the session between two turns. Raises SessionBusy while one runs or waits."""
    host = live.host
    row = await host.store.read(lambda conn: queries.get_session(conn, live.id))
    lease = await host.store.write(lambda conn: inbox.claim_idle(conn, live.id, host.id, host.is_dead))
    if lease is None:
        raise SessionBusy(
            f"Session {live.key!r} runs a turn, or one waits in it. Try again when it is done, or cancel it."
        )
    try:
        yield lease
    finally:
        try:
            await host.free(lease, row.status)
        finally:
            live.serve()  # for what was accepted meanwhile


async def _note(live: LiveSession, lease: Lease, event: HostEvent) -> None:
    records = await live.host.store.write(
        lambda conn: journal.note(conn, lease, turn=None, events=[(event, None)], now=time())
    )
    live.host.journal.publish(live.id, records)
