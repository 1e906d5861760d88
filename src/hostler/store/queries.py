"""The queries of hosts, sessions and leases: functions of a connection. Those that write a session name the epoch they hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, insert, literal, or_, select, update

from ..types.errors import LeaseLost, SessionLost
from ..types.result import Usage
from .prepared import Prepared
from .schema import artifacts, attached, hosts, records, sessions, spoken, tool_calls, turns

OPEN = ("queued", "running")  # the status of a turn that has no `Done`
IS_OPEN = turns.c.status.in_([literal(status) for status in OPEN])
DELETED = "This session was deleted from the store."
IsDead = Callable[[Row[Any]], bool]


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one session and to speak to its program."""

    session: int
    key: str
    holder: str
    epoch: int


# ---- hosts ----------------------------------------------------------------------------------------------------------


def put_host(conn: Connection, *, id: str, machine: str, pid: int, lock: str, now: float, uptime: float) -> None:
    conn.execute(insert(hosts).values(id=id, machine=machine, pid=pid, lock=lock, heartbeat=now, uptime=uptime))


def beat(conn: Connection, host: str, now: float, uptime: float) -> None:
    conn.execute(update(hosts).where(hosts.c.id == host).values(heartbeat=now, uptime=uptime))


def remove_host(conn: Connection, host: str) -> None:
    """Forget a host that holds nothing and owes nothing."""
    held = conn.execute(select(sessions.c.id).where(sessions.c.holder == host, sessions.c.busy).limit(1)).first()
    owed = conn.execute(select(turns.c.id).where(turns.c.owner == host, turns.c.status.in_(OPEN)).limit(1)).first()
    if not held and not owed:
        conn.execute(delete(hosts).where(hosts.c.id == host))


def other_hosts(conn: Connection, host: str) -> Sequence[Row[Any]]:
    return conn.execute(select(hosts).where(hosts.c.id != host)).all()


def forget_host(conn: Connection, host: str) -> None:
    """Forget a host that is dead; what it holds and owes is anybody's without its row too."""
    conn.execute(delete(hosts).where(hosts.c.id == host))


# ---- sessions -------------------------------------------------------------------------------------------------------


def create_session(
    conn: Connection,
    *,
    key: str,
    harness: str,
    new_id: str,
    workdir: str,
    owned: bool,
    rules: dict[str, Any],
    callables: list[str],
    now: float,
    ephemeral: bool = False,
    history: Mapping[str, Any] | None = None,
) -> Row[Any]:
    """Make the session; when the key exists already, give that one. ``history`` is what it begins with: the columns
    ``native_id``, ``native`` and ``finished`` of another one."""
    if (found := find_session(conn, key)) is not None:
        return found
    return conn.execute(
        insert(sessions)
        .returning(sessions)
        .values(
            key=key,
            harness=harness,
            new_id=new_id,
            native_ids=[new_id, *([history["native_id"]] if history and history["native_id"] else [])],
            native_id=history["native_id"] if history else None,
            native=history["native"] if history else None,
            workdir=workdir,
            owned=owned,
            rules=rules,
            callables=callables,
            status="idle",
            created=now,
            updated=now,
            epoch=0,
            busy=False,
            seq=0,
            frame=0,
            finished=history["finished"] if history else 0,
            usage=asdict(Usage()),
            cost=0.0,
            unpriced=0,
            ephemeral=ephemeral,
        )
    ).one()


# Made once: making a statement costs more than running it.
_FIND_SESSION = select(sessions).where(sessions.c.key == bindparam("k"))
_GET_SESSION = select(sessions).where(sessions.c.id == bindparam("s"))


def find_session(conn: Connection, key: str) -> Row[Any] | None:
    return conn.execute(_FIND_SESSION, {"k": key}).first()


def get_session(conn: Connection, session: int) -> Row[Any]:
    row = conn.execute(_GET_SESSION, {"s": session}).first()
    if row is None:
        raise SessionLost(DELETED)
    return row


def rules_of(conn: Connection, session: int) -> dict[str, Any]:
    """The stored rules of a session; none when it is gone."""
    return conn.execute(select(sessions.c.rules).where(sessions.c.id == session)).scalar() or {}


def list_sessions(conn: Connection) -> Sequence[Row[Any]]:
    return conn.execute(select(sessions).order_by(sessions.c.updated.desc())).all()


def all_keys(conn: Connection) -> list[str]:
    return list(conn.execute(select(sessions.c.key).order_by(sessions.c.updated.desc())).scalars())


def change_rules(conn: Connection, session: int, rules: dict[str, Any], callables: list[str]) -> None:
    conn.execute(
        update(sessions).where(sessions.c.id == session).values(rules=rules, callables=callables, updated=time.time())
    )


def delete_session(conn: Connection, lease: Lease) -> None:
    """Erase the session and all that belongs to it."""
    held(conn, lease)
    _erase(conn, lease.session)


def _erase(conn: Connection, session: int) -> None:
    for table, column in (
        (tool_calls, tool_calls.c.session),
        (artifacts, artifacts.c.session),
        (attached, attached.c.session),
        (spoken, spoken.c.session),
        (records, records.c.session),
        (turns, turns.c.session),
        (sessions, sessions.c.id),
    ):
        conn.execute(delete(table).where(column == session))


@dataclass(frozen=True, slots=True)
class Expired:
    """A session that nobody has used for a long time, as it was seen."""

    id: int
    key: str
    ephemeral: bool
    updated: float
    program: dict[str, Any] | None


_UNUSED = select(sessions.c.id, sessions.c.key, sessions.c.ephemeral, sessions.c.updated, sessions.c.program).where(
    sessions.c.busy.is_(False),
    ~select(turns.c.id).where(turns.c.session == sessions.c.id, turns.c.status.in_(OPEN)).exists(),
)


def expired_sessions(conn: Connection, ephemeral_before: float, closed_before: float) -> list[Expired]:
    """Sessions without a turn, accepted or running, that were last used before these times: those without a key; those
    that are closed, and those that only a key of the app's leads to."""
    old = or_(
        and_(sessions.c.ephemeral, sessions.c.updated < ephemeral_before),
        and_(
            or_(sessions.c.status == "closed", sessions.c.rules["keyed"].as_boolean()),
            sessions.c.updated < closed_before,
        ),
    )
    return [Expired(*row) for row in conn.execute(_UNUSED.where(old).order_by(sessions.c.id))]


def delete_unused(conn: Connection, session: Expired) -> bool:
    """Erase it if it is still as it was seen; whether that was so."""
    row = conn.execute(_UNUSED.where(sessions.c.id == session.id)).first()
    if row is None or Expired(*row) != session:
        return False
    _erase(conn, session.id)
    return True


# ---- the lease ------------------------------------------------------------------------------------------------------


def claim(conn: Connection, session: int, host: str, is_dead: IsDead) -> Lease | None:
    """Take the session's lease, or None while a living host runs a turn in it."""
    row = get_session(conn, session)
    if (lease := claimable(conn, session, row, host, is_dead)) is not None:
        take(conn, lease)
    return lease


_TAKE = Prepared(
    update(sessions)
    .where(sessions.c.id == bindparam("s"))
    .values(holder=bindparam("holder_"), epoch=bindparam("epoch_"), busy=True)
)


def take(conn: Connection, lease: Lease) -> None:
    """Take a lease that is claimable in this transaction."""
    _TAKE.run(conn, s=lease.session, holder_=lease.holder, epoch_=lease.epoch)


def claimable(conn: Connection, session: int, row: Any, host: str, is_dead: IsDead) -> Lease | None:
    """The lease that this host may take of a session of which ``row`` holds key, holder, epoch and busy; or None."""
    if row.busy and (row.holder == host or not is_gone(conn, row.holder, is_dead)):
        return None
    epoch = row.epoch if row.holder == host and row.epoch else row.epoch + 1
    return Lease(session, row.key, host, epoch)


def release(conn: Connection, lease: Lease, status: str) -> None:
    conn.execute(of(lease).values(busy=False, status=status))


def is_gone(conn: Connection, host: str | None, is_dead: IsDead) -> bool:
    row = conn.execute(select(hosts).where(hosts.c.id == host)).first()
    return row is None or is_dead(row)


def of(lease: Lease) -> Any:
    return update(sessions).where(
        sessions.c.id == lease.session, sessions.c.epoch == lease.epoch, sessions.c.holder == lease.holder
    )


def held(conn: Connection, lease: Lease) -> Row[Any]:
    """The session. Raises LeaseLost when the lease is another's by now."""
    row = get_session(conn, lease.session)
    check_held(row, lease)
    return row


def check_held(row: Any, lease: Lease) -> None:
    """Raise LeaseLost when the session has another lease by now, SessionLost when it is gone."""
    if row is None:
        raise SessionLost(DELETED)
    if row.epoch != lease.epoch or row.holder != lease.holder:
        raise LeaseLost(
            f"Session {lease.key!r} was taken over by another host (epoch {row.epoch}, this one held {lease.epoch})."
        )
