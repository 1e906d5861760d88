"""The queries: functions of a connection. Those that write a session name the epoch they hold."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from sqlalchemy import JSON, Connection, Row, and_, bindparam, delete, func, insert, or_, select, update

from ..types.errors import LeaseLost, OptionsMismatch, SessionBusy, SessionLost
from ..types.events import Accepted, Done, Event, Record, event_from_dict, event_to_dict, result_to_dict
from ..types.result import Result, Usage
from .schema import artifacts, attached, hosts, records, sessions, spoken, tool_calls, turns

OPEN = ("queued", "running")
NOBODY = ""  # the owner of a turn whose host has left
Journalled = tuple[Event, str | None]  # an event and its parent
IsDead = Callable[[Row[Any]], bool]
Fetch = Callable[[str, str], str | None]  # session key and SHA-256 to the JSON text that was put elsewhere


@dataclass(frozen=True, slots=True)
class Shelved:
    """An event of which one large field lies elsewhere. ``row`` is the event with the beginning of that field, and says
    under ``shelved`` which ``field`` it is, with the ``sha256`` of its JSON text."""

    event: Event
    row: dict[str, Any]


Writable = tuple[Event | Shelved, str | None]


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
    conn.execute(
        insert(sessions).values(
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
    )
    row = find_session(conn, key)
    assert row is not None
    return row


def find_session(conn: Connection, key: str) -> Row[Any] | None:
    return conn.execute(select(sessions).where(sessions.c.key == key)).first()


_GET_SESSION = select(sessions).where(sessions.c.id == bindparam("s"))


def get_session(conn: Connection, session: int) -> Row[Any]:
    row = conn.execute(_GET_SESSION, {"s": session}).first()
    if row is None:
        raise SessionLost("This session was deleted from the store.")
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
    if (lease := _claimable(conn, row, host, is_dead)) is not None:
        conn.execute(update(sessions).where(sessions.c.id == session).values(holder=host, epoch=lease.epoch, busy=True))
    return lease


def _claimable(conn: Connection, row: Row[Any], host: str, is_dead: IsDead) -> Lease | None:
    if row.busy and (row.holder == host or not is_gone(conn, row.holder, is_dead)):
        return None
    epoch = row.epoch if row.holder == host and row.epoch else row.epoch + 1
    return Lease(row.id, row.key, host, epoch)


def claim_idle(conn: Connection, session: int, host: str, is_dead: IsDead) -> Lease | None:
    """Take the lease of a session that has no turn, accepted or running; else None."""
    return None if open_turns(conn, session) else claim(conn, session, host, is_dead)


def claim_parked(conn: Connection, session: int, host: str, is_dead: IsDead, program: dict[str, Any]) -> Lease | None:
    """Take the lease of a session that still has this program and no turn, accepted or running; else None."""
    row = get_session(conn, session)
    if row.program != program or row.busy or open_turns(conn, session):
        return None
    return claim(conn, session, host, is_dead)


def release(conn: Connection, lease: Lease, status: str) -> None:
    conn.execute(_of(lease).values(busy=False, status=status))


def disown(conn: Connection, session: int, host: str) -> None:
    """Leave this host's lease and accepted turns of the session to whoever comes next."""
    conn.execute(update(sessions).where(sessions.c.id == session, sessions.c.holder == host).values(holder=None))
    conn.execute(
        update(turns)
        .where(turns.c.session == session, turns.c.owner == host, turns.c.status.in_(OPEN))
        .values(owner=NOBODY)
    )


def is_gone(conn: Connection, host: str | None, is_dead: IsDead) -> bool:
    row = conn.execute(select(hosts).where(hosts.c.id == host)).first()
    return row is None or is_dead(row)


def _of(lease: Lease) -> Any:
    return update(sessions).where(
        sessions.c.id == lease.session, sessions.c.epoch == lease.epoch, sessions.c.holder == lease.holder
    )


def held(conn: Connection, lease: Lease) -> Row[Any]:
    row = get_session(conn, lease.session)
    if row.epoch != lease.epoch or row.holder != lease.holder:
        raise LeaseLost(
            f"Session {lease.key!r} was taken over by another host (epoch {row.epoch}, this one held {lease.epoch})."
        )
    return row


# ---- the inbox ------------------------------------------------------------------------------------------------------


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


def _turn(row: Row[Any], session: Row[Any]) -> Turn:
    notices = tuple(notice for notice in session.notices if notice["seq"] < row.first)
    return Turn(
        row.id, row.session, session.key, row.owner, row.status, row.first, row.input, row.stop, row.result, notices
    )


_WAITING = select(func.count()).select_from(turns).where(turns.c.session == bindparam("s"), turns.c.status.in_(OPEN))
_INSERT_TURN = insert(turns)
_ACCEPTED = (
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
    row = get_session(conn, session)
    if (known := get_turn(conn, turn)) is not None:  # the same run_id again
        if known.session != session or (known.input != input and digest(known.input) != digest(input)):
            raise OptionsMismatch(f"This run_id was used for something else in session {known.key!r}.")
        return known, None, []
    waiting = conn.execute(_WAITING, {"s": session}).scalar_one()
    if reject_busy and (waiting or row.busy):
        raise SessionBusy(f"Session {row.key!r} runs a turn already ({waiting} accepted). Try again when it is done.")
    lease = _claimable(conn, row, host, is_dead) if not waiting else None
    conn.execute(
        _INSERT_TURN,
        {
            "id": turn,
            "session": session,
            "owner": host,
            "status": "running" if lease else "queued",
            "accepted": now,
            "first": row.seq + 1,
            "input": input,
        },
    )
    written = write_records(conn, row.key, session, row.seq, turn, [(accepted, None)], now)
    holder, epoch, busy = (lease.holder, lease.epoch, True) if lease else (row.holder, row.epoch, row.busy)
    values = {"seq_": row.seq + 1, "updated_": now, "holder_": holder, "epoch_": epoch, "busy_": busy}
    conn.execute(_ACCEPTED, {"s": session, **values})
    begun = Turn(turn, session, row.key, host, "queued", row.seq + 1, input, None, None, tuple(row.notices))
    return begun, lease, written


def digest(input: dict[str, Any]) -> dict[str, Any]:
    """What stays of an input that is to be forgotten: enough to know it again. ``call`` in it names what its caller said,
    when the rest may differ from one time to the next."""
    if "sha256" in input:
        return input
    return {"sha256": input.get("call") or hashlib.sha256(json.dumps(input, sort_keys=True).encode()).hexdigest()}


def next_turn(conn: Connection, session: int, host: str, is_dead: IsDead) -> tuple[Turn, Lease | None] | None:
    """The turn at the head of the inbox, with the lease if it is this host's to run now (its own, or a dead owner's)."""
    row = conn.execute(
        select(turns).where(turns.c.session == session, turns.c.status.in_(OPEN)).order_by(turns.c.position).limit(1)
    ).first()
    if row is None:
        return None
    held = get_session(conn, session)
    if row.owner != host and not is_gone(conn, row.owner, is_dead):
        return _turn(row, held), None
    lease = claim(conn, session, host, is_dead)
    if lease:
        conn.execute(update(turns).where(turns.c.id == row.id).values(status="running"))
    return _turn(row, held), lease  # the status as it was: "running" means that it must be recovered


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


# ---- the journal ----------------------------------------------------------------------------------------------------


def append(
    conn: Connection,
    lease: Lease,
    *,
    turn: str,
    events: Sequence[Writable],
    frame: int,
    progress: dict[str, Any],
    native_id: str | None,
    now: float,
) -> list[Record]:
    """One step of a turn: what happened, how far the program's log was read, and what is open."""
    values: dict[str, Any] = {"frame": frame, "progress": progress, "updated": now}
    if native_id is not None:
        values |= _named(conn, lease, native_id)
    return _advance(conn, lease, turn, events, values, now)


def _named(conn: Connection, lease: Lease, native_id: str) -> dict[str, Any]:
    row = held(conn, lease)
    if row.branch is not None:  # not the session's own before its turn is done
        return {"branch": {**row.branch, "native_id": native_id}}
    return {"native_id": native_id, "native_ids": _with(row.native_ids, native_id)}


def _with(known: list[str], *ids: str) -> list[str]:
    return [*known, *(id for id in dict.fromkeys(ids) if id not in known)]


def _branched(row: Row[Any], result: Result, native_id: str | None) -> dict[str, Any]:
    """The end of a turn that began a conversation: the session goes on with that one if the turn is done, else with the
    one that it had."""
    values: dict[str, Any] = {"branch": None}
    if result.stop_reason == "done":
        new_id, native_id = row.branch["new_id"], native_id or row.branch.get("native_id")
        ids = _with(row.native_ids, new_id, *([native_id] if native_id else []))
        values |= {"new_id": new_id, "native_id": native_id, "native_ids": ids}
    return values


def note(conn: Connection, lease: Lease, *, turn: str | None, events: Sequence[Writable], now: float) -> list[Record]:
    """Records that change nothing else."""
    return _advance(conn, lease, turn, events, {}, now)


def set_program(
    conn: Connection,
    lease: Lease,
    *,
    program: dict[str, Any] | None,
    frame: int,
    progress: dict[str, Any] | None,
    native: dict[str, Any] | None = None,
    branch: dict[str, Any] | None = None,
) -> None:
    """Say which live program the session has (its keeper's address), or that it has none; maybe what was saved of its
    history then. ``branch``: it is in a new conversation (``new_id``), which is the running turn's until that is done."""
    values: dict[str, Any] = {"program": program, "frame": frame, "progress": progress, "branch": branch}
    if native is not None:
        values["native"] = native
    if not conn.execute(_of(lease).values(status="live" if program else "idle", **values)).rowcount:
        held(conn, lease)


def set_branch(conn: Connection, lease: Lease, branch: dict[str, Any]) -> None:
    """The running turn begins a conversation in the live program."""
    if not conn.execute(_of(lease).values(branch=branch)).rowcount:
        held(conn, lease)


ProgramAfter = dict[str, Any]
GONE: ProgramAfter = {"program": None, "progress": None, "frame": 0, "status": "idle"}
UNTOUCHED: ProgramAfter = {}


def read_up_to(frame: int, progress: dict[str, Any]) -> ProgramAfter:
    """The program lives, and was read so far."""
    return {"frame": frame, "progress": progress}


_FINISHED = (
    update(turns).where(turns.c.id == bindparam("t")).values(status="done", result=bindparam("result_", type_=JSON))
)


def finish(
    conn: Connection,
    lease: Lease,
    *,
    turn: str,
    events: Sequence[Writable],
    result: Result,
    program: ProgramAfter,
    native: dict[str, Any] | None,
    native_id: str | None,
    now: float,
) -> list[Record]:
    """The end of a turn: its last records with the one `Done`, its outcome, the sums, and the lease is free."""
    row = held(conn, lease)
    usage = Usage(**row.usage) + result.usage
    values: dict[str, Any] = {
        **program,
        "busy": False,
        "finished": row.finished + 1,
        "usage": asdict(usage),
        "cost": row.cost + (result.cost or 0.0),
        "unpriced": row.unpriced + (result.cost is None and result.usage.calls > 0),
        "updated": now,
    }
    if native is not None:
        values["native"] = native
    if row.branch is not None:
        values |= _branched(row, result, native_id)
    elif native_id is not None:
        values |= _named(conn, lease, native_id)
    written = _advance(conn, lease, turn, [*events, (Done(result), None)], values, now)
    conn.execute(_FINISHED, {"t": turn, "result_": result_to_dict(result)})
    return written


_ADVANCE = (
    update(sessions)
    .where(sessions.c.id == bindparam("s"), sessions.c.epoch == bindparam("e"), sessions.c.holder == bindparam("h"))
    .returning(sessions.c.seq)
)


@cache
def _advancing(columns: tuple[str, ...]) -> Any:
    """The statement that sets these columns, made once: making it costs more than running it."""
    given = {name: bindparam(name + "_", type_=sessions.c[name].type) for name in columns}
    return _ADVANCE.values(seq=sessions.c.seq + bindparam("count"), **given)


def _advance(
    conn: Connection,
    lease: Lease,
    turn: str | None,
    events: Sequence[Writable],
    values: dict[str, Any],
    now: float,
) -> list[Record]:
    seq = conn.execute(
        _advancing(tuple(values)),
        {
            "s": lease.session,
            "e": lease.epoch,
            "h": lease.holder,
            "count": len(events),
            **{name + "_": value for name, value in values.items()},
        },
    ).scalar()
    if seq is None:
        held(conn, lease)  # raises: gone or taken over
        raise LeaseLost(f"Session {lease.key!r} cannot be written.")
    return write_records(conn, lease.key, lease.session, seq - len(events), turn, events, now)


_INSERT = insert(records)


def write_records(
    conn: Connection,
    key: str,
    session: int,
    seq: int,
    turn: str | None,
    events: Sequence[Writable],
    now: float,
) -> list[Record]:
    """Records with the numbers after ``seq``; the session's row must say so in the same transaction."""
    rows = [
        {"session": session, "seq": seq + n, "at": now, "turn": turn, "parent": parent, "event": _dump(event)}
        for n, (event, parent) in enumerate(events, 1)
    ]
    if rows:
        conn.execute(_INSERT, rows)
    return [
        Record(seq + n, now, key, turn, parent, event.event if isinstance(event, Shelved) else event)
        for n, (event, parent) in enumerate(events, 1)
    ]


_JSON = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=repr)


def _dump(event: Event | Shelved) -> str:
    form = event.row if isinstance(event, Shelved) else event_to_dict(event)
    return _JSON.encode(form)


def load_event(text: str, key: str, fetch: Fetch | None) -> Event:
    """The event of a row. Without ``fetch``, of what lies elsewhere only the beginning."""
    data = json.loads(text)
    shelved = data.pop("shelved", None)
    if shelved is not None and fetch is not None and (whole := fetch(key, shelved["sha256"])) is not None:
        data[shelved["field"]] = json.loads(whole)
    return event_from_dict(data)


def count_records(conn: Connection, session: int) -> tuple[int, int]:
    """How many records a session has, and the highest number."""
    query = select(func.count(), func.coalesce(func.max(records.c.seq), 0)).where(records.c.session == session)
    count, last = conn.execute(query).one()
    return count, last


def read_records(
    conn: Connection,
    session: int,
    after: int,
    *,
    turn: str | None = None,
    limit: int = 1000,
    fetch: Fetch | None = None,
) -> list[Record]:
    """Records with numbers above ``after``, in order. Without ``fetch``, of what lies elsewhere only the beginning."""
    key = get_session(conn, session).key
    query = select(records).where(records.c.session == session, records.c.seq > after).order_by(records.c.seq)
    if turn is not None:
        query = query.where(records.c.turn == turn)
    return [
        Record(row.seq, row.at, key, row.turn, row.parent, load_event(row.event, key, fetch))
        for row in conn.execute(query.limit(limit))
    ]
