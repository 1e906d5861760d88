"""The journal of a session: the steps of its turns, each with its records, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, func, insert, select, update

from ..types.errors import LeaseLost, SessionLost
from ..types.events import Done, Event, Record, dump, event_from_dict, event_to_json, result_to_dict
from ..types.result import Result, Usage
from .prepared import Prepared
from .queries import DELETED, Lease, check_held, held, of
from .schema import records, sessions, turns

Journalled = tuple[Event, str | None]  # an event and its parent
Fetch = Callable[[str, str], str | None]  # session key and SHA-256 to the JSON text that was put elsewhere


@dataclass(frozen=True, slots=True)
class Shelved:
    """An event of which one large field lies elsewhere. ``row`` is the event with the beginning of that field, and says
    under ``shelved`` which ``field`` it is, with the ``sha256`` of its JSON text."""

    event: Event
    row: dict[str, Any]


Writable = tuple[Event | Shelved, str | None]


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
        values |= _named(_sums(conn, lease), native_id)
    return _advance(conn, lease, turn, events, values, now)


_SUMS = Prepared(
    select(
        *(sessions.c[name] for name in ("epoch", "holder", "usage", "cost", "unpriced", "finished")),
        sessions.c.branch,
        sessions.c.native_ids,
    ).where(sessions.c.id == bindparam("s"))
)


def _sums(conn: Connection, lease: Lease) -> Any:
    """What turns add to. Raises LeaseLost when the lease is another's by now."""
    row = _SUMS.first(conn, s=lease.session)
    check_held(row, lease)
    return row


def _named(row: Any, native_id: str) -> dict[str, Any]:
    if row.branch is not None:  # not the session's own before its turn is done
        return {"branch": {**row.branch, "native_id": native_id}}
    return {"native_id": native_id, "native_ids": _with(row.native_ids, native_id)}


def _with(known: list[str], *ids: str) -> list[str]:
    return [*known, *(id for id in dict.fromkeys(ids) if id not in known)]


def _branched(row: Any, result: Result, native_id: str | None) -> dict[str, Any]:
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
    if not conn.execute(of(lease).values(status="live" if program else "idle", **values)).rowcount:
        held(conn, lease)


def set_branch(conn: Connection, lease: Lease, branch: dict[str, Any]) -> None:
    """The running turn begins a conversation in the live program."""
    if not conn.execute(of(lease).values(branch=branch)).rowcount:
        held(conn, lease)


ProgramAfter = dict[str, Any]
GONE: ProgramAfter = {"program": None, "progress": None, "frame": 0, "status": "idle"}
UNTOUCHED: ProgramAfter = {}


def read_up_to(frame: int, progress: dict[str, Any]) -> ProgramAfter:
    """The program lives, and was read so far."""
    return {"frame": frame, "progress": progress}


_FINISHED = Prepared(
    update(turns).where(turns.c.id == bindparam("t")).values(status="done", result=bindparam("result_"))
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
    row = _sums(conn, lease)
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
        values |= _named(row, native_id)
    written = _advance(conn, lease, turn, [*events, (Done(result), None)], values, now)
    _FINISHED.run(conn, t=turn, result_=result_to_dict(result))
    return written


_ADVANCE = (
    update(sessions)
    .where(sessions.c.id == bindparam("s"), sessions.c.epoch == bindparam("e"), sessions.c.holder == bindparam("h"))
    .returning(sessions.c.seq)
)


@cache
def _advancing(columns: tuple[str, ...]) -> Prepared:
    """The statement that sets these columns."""
    given: dict[str, Any] = {name: bindparam(name + "_") for name in columns}
    return Prepared(_ADVANCE.values(seq=sessions.c.seq + bindparam("count"), **given))


def _advance(
    conn: Connection,
    lease: Lease,
    turn: str | None,
    events: Sequence[Writable],
    values: dict[str, Any],
    now: float,
) -> list[Record]:
    given: dict[str, Any] = {name + "_": value for name, value in values.items()}
    row = _advancing(tuple(values)).first(
        conn, s=lease.session, e=lease.epoch, h=lease.holder, count=len(events), **given
    )
    if row is None:
        held(conn, lease)  # raises: gone or taken over
        raise LeaseLost(f"Session {lease.key!r} cannot be written.")
    return write_records(conn, lease.key, lease.session, row.seq - len(events), turn, events, now)


_INSERT = Prepared(insert(records), ("session", "seq", "at", "turn", "parent", "event"))


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
    rows = [(session, seq + n, now, turn, parent, _dump(event)) for n, (event, parent) in enumerate(events, 1)]
    _INSERT.many(conn, rows)
    return [
        Record(seq + n, now, key, turn, parent, event.event if isinstance(event, Shelved) else event)
        for n, (event, parent) in enumerate(events, 1)
    ]


def _dump(event: Event | Shelved) -> str:
    return dump(event.row) if isinstance(event, Shelved) else event_to_json(event)


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


_KEY = Prepared(select(sessions.c.key).where(sessions.c.id == bindparam("s")))
_RECORDS = (
    select(records)
    .where(records.c.session == bindparam("s"), records.c.seq > bindparam("after"))
    .order_by(records.c.seq)
    .limit(bindparam("limit", type_=Integer))
)
_ABOVE = Prepared(_RECORDS)
_ABOVE_OF = Prepared(_RECORDS.where(records.c.turn == bindparam("t")))


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
    found = _KEY.first(conn, s=session)
    if found is None:
        raise SessionLost(DELETED)
    given = {"s": session, "after": after, "limit": limit}
    rows = _ABOVE.all(conn, **given) if turn is None else _ABOVE_OF.all(conn, **given, t=turn)
    return [
        Record(row.seq, row.at, found.key, row.turn, row.parent, load_event(row.event, found.key, fetch))
        for row in rows
    ]
