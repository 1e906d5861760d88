"""The inbox of a session: its accepted inputs, in the order of service."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, literal, select, update

from ..types.errors import OptionsMismatch, SessionBusy, SessionLost
from ..types.events import Accepted, Record
from .journal import write_records
from .prepared import Prepared
from .queries import DELETED, IS_OPEN, OPEN, IsDead, Lease, claim, claimable, get_session, is_gone, take
from .schema import sessions, turns

NOBODY = ""  # the owner of a turn whose host has left


@dataclass(frozen=True, slots=True)
class Turn:
    """One accepted input. ``first`` is the number of its first record, ``notices`` the staged files that the agent is
    to be told of with it: those that were there when it was accepted."""

    id: str
    session: int
    key: str
    owner: str
    status: str
    first: int
    input: dict[str, Any]
    stop: str | None
    result: dict[str, Any] | None
    notices: tuple[dict[str, Any], ...] = ()


def _turn(row: Any, session: Any) -> Turn:
    notices = tuple(notice for notice in session.notices if notice["seq"] < row.first)
    return Turn(
        row.id, row.session, session.key, row.owner, row.status, row.first, row.input, row.stop, row.result, notices
    )


_WAITING = select(func.count()).where(turns.c.session == sessions.c.id, IS_OPEN).scalar_subquery()
_SESSION = tuple(sessions.c[name] for name in ("key", "holder", "epoch", "busy", "notices"))
_BEFORE = Prepared(
    select(
        *_SESSION,
        sessions.c.seq,
        _WAITING.label("waiting"),
        select(turns.c.id).where(turns.c.id == bindparam("t")).exists().label("known"),
    ).where(sessions.c.id == bindparam("s"))
)
_INSERT_TURN = Prepared(insert(turns), ("id", "session", "owner", "status", "accepted", "first", "input"))
_ACCEPTED = Prepared(
    update(sessions)
    .where(sessions.c.id == bindparam("s"))
    .values(**{name: bindparam(name + "_") for name in ("seq", "updated", "holder", "epoch", "busy")})
)


def accept(
    conn: Connection,
    session: int,
    *,
    turn: str,
    host: str,
    input: dict[str, Any],
    accepted: Accepted,
    reject_busy: bool,
    is_dead: IsDead,
    now: float,
) -> tuple[Turn, Lease | None, list[Record]]:
    """Put an input into the inbox; when nothing is before it and the lease is free, it is claimed in the same step."""
    row = _BEFORE.first(conn, s=session, t=turn)
    if row is None:
        raise SessionLost(DELETED)
    if row.known and (known := get_turn(conn, turn)) is not None:  # the same run_id again
        if known.session != session or (known.input != input and digest(known.input) != digest(input)):
            raise OptionsMismatch(f"This run_id was used for something else in session {known.key!r}.")
        return known, None, []
    if reject_busy and (row.waiting or row.busy):
        raise SessionBusy(
            f"Session {row.key!r} runs a turn already ({row.waiting} accepted). Try again when it is done."
        )
    lease = claimable(conn, session, row, host, is_dead) if not row.waiting else None
    _INSERT_TURN.run(
        conn,
        id=turn,
        session=session,
        owner=host,
        status="running" if lease else "queued",
        accepted=now,
        first=row.seq + 1,
        input=input,
    )
    written = write_records(conn, row.key, session, row.seq, turn, [(accepted, None)], now)
    holder, epoch, busy = (lease.holder, lease.epoch, True) if lease else (row.holder, row.epoch, row.busy)
    _ACCEPTED.run(conn, s=session, seq_=row.seq + 1, updated_=now, holder_=holder, epoch_=epoch, busy_=busy)
    begun = Turn(turn, session, row.key, host, "queued", row.seq + 1, input, None, None, tuple(row.notices))
    return begun, lease, written


def digest(input: dict[str, Any]) -> dict[str, Any]:
    """What stays of an input that is to be forgotten: enough to know it again. ``call`` in it names what its caller said,
    when the rest may differ from one time to the next."""
    if "sha256" in input:
        return input
    return {"sha256": input.get("call") or hashlib.sha256(json.dumps(input, sort_keys=True).encode()).hexdigest()}


_HEAD = Prepared(
    select(turns, *_SESSION)
    .join_from(turns, sessions, turns.c.session == sessions.c.id)
    .where(turns.c.session == bindparam("s"), IS_OPEN)
    .order_by(turns.c.position)
    .limit(literal(1))
)
_BEGUN = Prepared(update(turns).where(turns.c.id == bindparam("t")).values(status="running"))


def next_turn(conn: Connection, session: int, host: str, is_dead: IsDead) -> tuple[Turn, Lease | None] | None:
    """The turn at the head of the inbox, with the lease if it is this host's to run now (its own, or a dead owner's)."""
    row = _HEAD.first(conn, s=session)
    if row is None:
        return None
    turn = _turn(row, row)
    if row.owner != host and not is_gone(conn, row.owner, is_dead):
        return turn, None
    lease = claimable(conn, session, row, host, is_dead)
    if lease:
        take(conn, lease)
        _BEGUN.run(conn, t=turn.id)
    return turn, lease  # the status as it was: "running" means that it must be recovered


_GET_TURN = select(turns).where(turns.c.id == bindparam("t"))


def get_turn(conn: Connection, turn: str) -> Turn | None:
    row = conn.execute(_GET_TURN, {"t": turn}).first()
    return None if row is None else _turn(row, get_session(conn, row.session))


def running_sessions(conn: Connection) -> set[int]:
    """Sessions with a turn that has begun and has no `Done`."""
    return set(conn.execute(select(turns.c.session).where(turns.c.status == "running")).scalars())


def open_turns(conn: Connection, session: int) -> list[Turn]:
    rows = conn.execute(
        select(turns).where(turns.c.session == session, turns.c.status.in_(OPEN)).order_by(turns.c.position)
    ).all()
    held = get_session(conn, session)
    return [_turn(row, held) for row in rows]


def all_turns(conn: Connection, session: int) -> list[Turn]:
    """Every turn of a session, in the order of service."""
    held = get_session(conn, session)
    rows = conn.execute(select(turns).where(turns.c.session == session).order_by(turns.c.position))
    return [_turn(row, held) for row in rows]


def all_open_turns(conn: Connection) -> dict[int, list[tuple[str, str]]]:
    """Of every session that has some: its accepted turns, (id, status), in order."""
    found: dict[int, list[tuple[str, str]]] = {}
    for row in conn.execute(
        select(turns.c.session, turns.c.id, turns.c.status).where(turns.c.status.in_(OPEN)).order_by(turns.c.position)
    ):
        found.setdefault(row.session, []).append((row.id, row.status))
    return found


def request_stop(conn: Connection, session: int, turn: str | None, reason: str, owner: str | None = None) -> list[str]:
    """Note for whoever runs them that these turns should end; their ids."""
    query = select(turns.c.id).where(turns.c.session == session, turns.c.status.in_(OPEN))
    if turn is not None:
        query = query.where(turns.c.id == turn)
    if owner is not None:
        query = query.where(turns.c.owner == owner)
    ids = list(conn.execute(query).scalars())
    if ids:
        conn.execute(update(turns).where(turns.c.id.in_(ids), turns.c.stop.is_(None)).values(stop=reason))
    return ids


def stops_of(conn: Connection, ids: Sequence[str]) -> list[tuple[str, str]]:
    """Of these turns, those that somebody wants to end, and why."""
    rows = conn.execute(select(turns.c.id, turns.c.stop).where(turns.c.id.in_(ids), turns.c.stop.is_not(None)))
    return [(row.id, row.stop) for row in rows]


# ---- leases where nothing waits, and one that is left to others -----------------------------------------------------


def claim_idle(conn: Connection, session: int, host: str, is_dead: IsDead) -> Lease | None:
    """Take the lease of a session that has no turn, accepted or running; else None."""
    return None if open_turns(conn, session) else claim(conn, session, host, is_dead)


def claim_parked(conn: Connection, session: int, host: str, is_dead: IsDead, program: dict[str, Any]) -> Lease | None:
    """Take the lease of a session that still has this program and no turn, accepted or running; else None."""
    row = get_session(conn, session)
    if row.program != program or row.busy or open_turns(conn, session):
        return None
    return claim(conn, session, host, is_dead)


def disown(conn: Connection, session: int, host: str) -> None:
    """Leave this host's lease and accepted turns of the session to whoever comes next."""
    conn.execute(update(sessions).where(sessions.c.id == session, sessions.c.holder == host).values(holder=None))
    conn.execute(
        update(turns)
        .where(turns.c.session == session, turns.c.owner == host, turns.c.status.in_(OPEN))
        .values(owner=NOBODY)
    )
