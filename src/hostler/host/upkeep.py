"""The programs of a store from outside their sessions: which there are, ending one, and how many may stay parked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Connection, Row

from .. import keeper
from ..keeper import KeeperAddress, KeeperError, KeeperGone
from ..store import Store, inbox, journal, queries
from ..store.queries import Lease
from ..types.errors import SessionBusy, SessionLost

if TYPE_CHECKING:
    from .local import Host

_REACTS = 20.0  # s for the app that runs a turn to end it; a silent one is replaced before that
_LOOK = 0.05

ProgramState = Literal["running", "idle", "parked", "orphaned"]


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """A living program of a session. ``pid`` is its keeper's, ``memory`` the bytes of all its processes. ``running``: a
    turn with its app; ``orphaned``: a turn whose app is gone; ``idle``: an app holds it; ``parked``: nobody does."""

    session: str
    program: str
    pid: int
    state: ProgramState
    age: float
    memory: int


async def programs(store: Store) -> list[KeptProgram]:
    """The programs that live on this machine, the oldest first."""
    rows = [row for row in await store.read(queries.list_sessions) if row.program]
    in_turn = await store.read(inbox.running_sessions)
    living = [row for row in rows if keeper.alive(_address(row))]
    found = await asyncio.gather(*(_described(row, row.id in in_turn) for row in living))
    return sorted(found, key=lambda program: program.age, reverse=True)


async def kill(host: Host, key: str) -> bool:
    """End the turn and the program of a session, whoever has them; whether there was anything to end.

    A turn that a living app runs gets its `Done` there, before this returns; one whose app is gone gets it, as
    "cancelled", when the session is resumed. Raises SessionLost, and SessionBusy when an app does not let go.
    """
    row = await host.store.read(lambda conn: queries.find_session(conn, key))
    if row is None:
        raise SessionLost(f"Session {key!r} is not in the store {host.data_dir}.")
    session = row.id
    stopped = await host.store.write(lambda conn: inbox.request_stop(conn, session, None, "cancelled"), durable=True)
    lease = await _claimed(host, session)
    if lease is None:
        raise SessionBusy(
            f"Session {key!r}: the app that runs its turn was asked to end it and has not within {_REACTS:g} s. "
            "Try again, or end that app."
        )
    return await _end(host, lease) or bool(stopped)


async def limit_parked(host: Host) -> None:
    """End the programs that have been parked for the longest time, down to ``max_parked``."""
    rows = [row for row in await host.store.read(queries.list_sessions) if row.program and not row.busy]
    living = [row for row in rows if keeper.alive(_address(row))]
    if len(living) <= host.settings.max_parked:
        return
    held = await asyncio.gather(*(_is_held(row) for row in living))
    parked = [row for row, by_a_host in zip(living, held, strict=True) if not by_a_host]  # the latest used first
    await asyncio.gather(*(_end_parked(host, row) for row in parked[host.settings.max_parked :]))


# ---- one program ----------------------------------------------------------------------------------------------------


async def _described(row: Row[Any], in_turn: bool) -> KeptProgram:
    address = _address(row)
    held = await _is_held(row)
    state: ProgramState = ("running" if held else "orphaned") if in_turn else ("idle" if held else "parked")
    return KeptProgram(row.key, row.harness, address.pid, state, keeper.age(address.pid), keeper.size(address.pid))


async def _is_held(row: Row[Any]) -> bool:
    """Whether a host is attached to the program. Asks its keeper, which disturbs nobody."""
    if row.holder is None:  # its last host has let go of it
        return False
    try:
        return await keeper.attached(_address(row), epoch=row.epoch, holder=row.holder)
    except KeeperGone:
        return False
    except KeeperError:  # a newer host than the row says; or a keeper of another version, which is not ours to judge
        return True


async def _end_parked(host: Host, row: Row[Any]) -> None:
    lease = await host.store.write(
        lambda conn: inbox.claim_parked(conn, row.id, host.id, host.is_dead, row.program),
    )
    if lease is not None:
        await _end(host, lease)


async def _claimed(host: Host, session: int) -> Lease | None:
    deadline = time.monotonic() + _REACTS
    while True:
        lease = await host.store.write(lambda conn: queries.claim(conn, session, host.id, host.is_dead))
        if lease is not None or time.monotonic() > deadline:
            return lease
        await asyncio.sleep(_LOOK)


async def _end(host: Host, lease: Lease) -> bool:
    """End the session's program under a lease, which is free again afterwards; whether a program lived."""
    try:
        row = await host.store.read(_get(lease.session))
        lived = bool(row.program) and keeper.alive(_address(row))
        if row.program:
            await keeper.end(_address(row), epoch=lease.epoch, holder=lease.holder)
        in_turn = lease.session in await host.store.read(inbox.running_sessions)
        if not in_turn:  # else the log of the dead keeper is still to be read by whoever brings the turn to its Done
            await host.store.write(
                lambda conn: journal.set_program(conn, lease, program=None, frame=0, progress=None), durable=True
            )
        return lived
    finally:
        await host.free(lease, "idle")


def _get(session: int) -> Callable[[Connection], Row[Any]]:
    return lambda conn: queries.get_session(conn, session)


def _address(row: Row[Any]) -> KeeperAddress:
    return KeeperAddress.from_dict(row.program["address"])
