"""Sessions whose time is over: those that nobody has a key of; closed and keyed ones where the operator says how long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from .. import keeper
from ..keeper import KeeperAddress
from ..store import Store, queries
from ..store.queries import Expired
from ..types.errors import HarnessError, SessionBusy
from ..workspace import SessionDirs, layout, unfinished
from .persistence import uncommitted
from .settings import Settings

if TYPE_CHECKING:
    from .local import Host


@dataclass(frozen=True, slots=True)
class Retired:
    """A session that may be removed, and why."""

    session: Expired
    why: str


async def retired(data_dir: str, store: Store, settings: Settings) -> list[Retired]:
    """The sessions whose time is over and whose program is, too. One with changes that are not committed stays."""
    now = time.time()
    found = await store.read(
        lambda conn: queries.expired_sessions(conn, now - settings.ephemeral_ttl, now - settings.retention)
    )
    return [
        Retired(row, f"{'made without a key, ' if row.ephemeral else ''}last used {_days(now - row.updated)} ago")
        for row in found
        if not row.program or not keeper.alive(KeeperAddress.from_dict(row.program["address"]))
        if not await uncommitted(data_dir, row.key, await store.read(partial(queries.rules_of, session=row.id)))
    ]


async def remove(data_dir: str, store: Store, session: Expired) -> bool:
    """Erase it with all that belongs to it, unless it was used meanwhile. Raises OSError when not all files could be
    removed; `hostler gc` finds what is left."""
    removed = await store.write(lambda conn: queries.delete_unused(conn, session), durable=True)
    if removed and (aside := await asyncio.to_thread(SessionDirs.of(data_dir, session.key).set_aside)) is not None:
        await asyncio.to_thread(layout.erase, aside)
    return removed


async def erase(host: Host, row: Row[Any]) -> None:
    """Erase a session whose program has ended. Raises SessionBusy while another app runs a turn in it."""
    lease = await host.store.write(lambda conn: queries.claim(conn, row.id, host.id, host.is_dead))
    if lease is None:
        raise SessionBusy(
            f"Session {row.key!r} runs a turn in another process, which does not end. Try again, or end that app."
        )
    dirs = SessionDirs.of(host.data_dir, row.key)
    aside = await asyncio.to_thread(dirs.set_aside)  # first: a session that begins anew under this key has its own
    try:
        await host.store.write(lambda conn: queries.delete_session(conn, lease), durable=True)
    except BaseException:
        if aside is not None:
            await asyncio.to_thread(os.rename, aside, dirs.root)
        with contextlib.suppress(HarnessError):
            await host.free(lease, row.status)
        raise
    if aside is not None:
        with contextlib.suppress(OSError):  # the session is gone; gc finds what is left of its files
            await asyncio.to_thread(layout.erase, aside)


async def clear(host: Host, key: str) -> None:
    """Remove what a fork into this key has left that was killed before it was in the store, so that the key can be used."""
    dirs = SessionDirs.of(host.data_dir, key)
    with unfinished.left(dirs.forking) as found:
        if found is None or await host.store.read(lambda conn: queries.find_session(conn, key)) is not None:
            return
        aside = await asyncio.to_thread(dirs.set_aside)
    if aside is not None:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(layout.erase, aside)


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else f"{seconds / 3600:.1f} hours"
