"""The second front door: a harness with its rules on a host, whose sessions are found by the app's own keys."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakValueDictionary

from sqlalchemy import Row

from .attaching import Fetch
from .host import Host, implicit_host, retention
from .host.journal import Follower
from .incoming import Incoming, ready
from .inputs import InputType
from .opening import again, keyed, make
from .options import options_of
from .rules import check_key, refuse_unheld
from .runtimes import runtime_for
from .session import SessionCore, TurnSource
from .store import inbox, queries
from .types.errors import SessionLost, StateIncompatible
from .types.options import HarnessOptions
from .types.result import Usage
from .types.runtime import AcpAgent, Harness, Runtime, check_harness

if TYPE_CHECKING:
    from .faces import Session, Sessions

_ENDS = 20.0  # s for another app to end its turn; a silent one is replaced before that

_doors: WeakValueDictionary[tuple[str, str], asyncio.Lock] = (
    WeakValueDictionary()
)  # of the sessions that calls stand before
os.register_at_fork(after_in_child=_doors.clear)


@dataclass(frozen=True, slots=True)
class LocalHost:
    """The host on a data dir of this machine; made by `local_host`, opened when it is first used."""

    data_dir: str
    max_concurrent: int | None = None

    async def open(self) -> Host:
        host = await implicit_host(self.data_dir)
        if self.max_concurrent is not None:
            host.slots.resize(self.max_concurrent)
        return host


def local_host(data_dir: str | os.PathLike[str] = ".hostler", *, max_concurrent: int | None = None) -> LocalHost:
    """A host that keeps its sessions in plain folders below ``data_dir`` (made when first used, for this user only).

    ``max_concurrent``: at most so many programs at once in this process, the number that was used last on this data dir;
    further turns wait, first come, first served. None: HOSTLER_MAX_RUNTIMES.
    """
    if max_concurrent is not None and (
        isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int) or max_concurrent < 1
    ):
        raise ValueError(f"max_concurrent must be a positive whole number or None, not {max_concurrent!r}.")
    return LocalHost(os.path.abspath(os.path.expanduser(os.fspath(data_dir))), max_concurrent)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What the store says of a session. ``status``: ``running``, ``waiting`` (a turn is accepted), ``live`` (an idle
    program), ``idle`` or ``closed``. Times are seconds since the epoch, ``cost`` US dollars or None when unknown."""

    id: str
    harness: str
    status: str
    workdir: str
    created: float
    updated: float
    turns: int
    usage: Usage
    cost: float | None
    waiting: tuple[str, ...] = ()


class HarnessProfile:
    """A program and its rules on a host. ``sessions`` finds and lists its sessions."""

    def __init__(
        self,
        host: LocalHost,
        runtime: Harness | AcpAgent | Runtime,
        given: Mapping[str, Any],
        *,
        input_types: Mapping[str, InputType] | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        self.input_types = dict(input_types or {})
        self.fetch = fetch
        self.host = host
        self.runtime = runtime
        self.given = dict(given)
        self.options = options_of(given)
        refuse_unheld(runtime_for(runtime), self.options, confined=True)

    def __repr__(self) -> str:
        name = self.runtime.value if isinstance(self.runtime, Harness) else self.runtime
        return f"<hostler.HarnessProfile {name} on {self.host.data_dir}>"

    @property
    def sessions(self) -> Sessions:
        """The sessions of this harness's host, by key."""
        from .faces import Sessions

        return Sessions(SessionsCore(self))


def create_harness(
    *, host: LocalHost, runtime: Harness | AcpAgent | Runtime, **options: Unpack[HarnessOptions]
) -> HarnessProfile:
    """A program (``runtime``) with its rules, on a host; the options are those of `agent_session`.

    ``input_types`` maps names to what `input_type` gives. ``fetch``, sync or async, gives the bytes at a URL, or (bytes,
    media type), for files of messages that are given by their URL; hostler itself fetches nothing.
    Raises TypeError, ValueError or CapabilityUnsupported for what it cannot hold; starts nothing.
    """
    given: dict[str, Any] = dict(options)
    input_types, fetch = given.pop("input_types", None) or {}, given.pop("fetch", None)
    for name, kind in dict(input_types).items():
        if not isinstance(name, str) or not isinstance(kind, InputType):
            raise TypeError(f"input_types takes {{name: hostler.input_type(...)}}; {name!r} is {kind!r}.")
    if fetch is not None and not callable(fetch):
        raise TypeError(f"fetch must be a function of a URL, not {fetch!r}.")
    if "state_dir" in given:
        raise TypeError("state_dir= does not go with host=: the host's data_dir is where its sessions are.")
    return HarnessProfile(host, check_harness(runtime), given, input_types=input_types, fetch=fetch)


class SessionsCore:
    """The sessions of a host, as one profile reaches them."""

    def __init__(self, profile: HarnessProfile) -> None:
        self._profile = profile

    async def core(
        self, id: str, *, extra_body: Any = None, ephemeral: bool = False, replay: bool = False
    ) -> SessionCore:
        """The session under this key: found, or made. ``replay``: see `opening.again`."""
        host = await self._profile.host.open()
        check_key(id)
        row = await host.store.read(lambda conn: queries.find_session(conn, id))
        options = self._profile.options
        if row is None:
            own = {} if ephemeral else keyed(extra_body)
            return SessionCore(await make(host, id, self._profile.runtime, options, ephemeral=ephemeral, own=own))
        return await self._again(host, row, extra_body, replay=replay)

    async def get_or_create(self, id: str, extra_body: Any = None) -> Session:
        """The session under the app's key ``id`` (any text, 1 to 512 characters), made when there is none.

        ``extra_body`` (JSON) becomes the context of its turns that bring none; it is stored with the session and stays
        until another is given."""
        from .faces import Session

        check_extra_body(extra_body)
        return Session(await self.core(id, extra_body=extra_body))

    async def get(self, id: str) -> Session:
        """The session under this key. Raises SessionLost when there is none."""
        from .faces import Session

        host, row = await self._row(id)
        return Session(await self._again(host, row))

    async def list(self) -> tuple[SessionInfo, ...]:
        """All sessions of the host, the last used first."""
        host = await self._profile.host.open()
        rows = await host.store.read(queries.list_sessions)
        waiting = await host.store.read(inbox.all_open_turns)
        return tuple(_info(row, waiting.get(row.id, ())) for row in rows)

    async def status(self, id: str) -> SessionInfo:
        """What the store says of one session; starts nothing. Raises SessionLost when there is none."""
        host, row = await self._row(id)
        waiting = await host.store.read(lambda conn: inbox.open_turns(conn, row.id))
        return _info(row, tuple((turn.id, turn.status) for turn in waiting))

    async def delete(self, id: str) -> None:
        """End the session and erase all that belongs to it: records, workspace, artifacts, history.

        Raises SessionLost when there is none, SessionBusy when another host runs a turn in it that does not end.
        """
        host, row = await self._row(id)
        core = await self._again(host, row)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDS):
                await core.cancel()
        await asyncio.shield(host.spawn(core.live.close()))  # whoever else has it in hand
        core.live.leave(core)
        await retention.erase(host, row)
        host.sessions.pop(row.id, None)  # other handles of this process find out at their next call

    async def follow(self, id: str, after: int | None = None) -> Follower:
        """Records of the session's journal above ``after`` (None: from now on); starts nothing."""
        host, row = await self._row(id)
        return host.journal.follow_from(row, after)

    async def cancel(self, id: str, turn: str | None = None) -> None:
        """Ask for the end of one accepted turn, or of all; they get their `Done` wherever they run or wait."""
        host, row = await self._row(id)
        await host.store.write(lambda conn: inbox.request_stop(conn, row.id, turn, "cancelled"))
        if (live := host.sessions.get(row.id)) is not None:
            await live.stop_turn(turn, "cancelled")

    async def _row(self, id: str) -> tuple[Host, Row[Any]]:
        host = await self._profile.host.open()
        row = await host.store.read(lambda conn: queries.find_session(conn, id))
        if row is None:
            raise SessionLost(f"There is no session {id!r} on the host {host.data_dir}.")
        return host, row

    async def _again(self, host: Host, row: Row[Any], extra_body: Any = None, *, replay: bool = False) -> SessionCore:
        name = runtime_for(self._profile.runtime).name
        if row.harness != name:
            raise StateIncompatible(f"Session {row.key!r} is one of {row.harness!r}, this harness runs {name!r}.")
        own = keyed(extra_body) if extra_body is not None else {}
        return SessionCore(await again(host, row, self._profile.options, self._profile.given, own=own, replay=replay))


async def begin(
    profile: HarnessProfile,
    *,
    incoming: Incoming,
    session: str | None,
    extra_body: Any,
    run_id: str | None,
    restage: bool,
    loop: asyncio.AbstractEventLoop | None,
    overrides: Mapping[str, Any],
) -> TurnSource:
    """Accept one turn of the session with this key, or of a new one that nobody comes back to."""
    check_extra_body(extra_body)
    if run_id is not None and not isinstance(run_id, str):
        raise TypeError(f"A run_id is a string, not {type(run_id).__name__}.")
    ephemeral = hashlib.sha256(run_id.encode()).hexdigest()[:32] if run_id is not None else uuid.uuid4().hex
    key = session if session is not None else f"ephemeral-{ephemeral}"
    turn = None if run_id is None else "run_" + hashlib.sha256(f"{key}\0{run_id}".encode()).hexdigest()[:32]
    # Finding or making a session takes a different time each time: calls that were made one after the other are
    # accepted one after the other.
    async with _doors.setdefault((profile.host.data_dir, key), asyncio.Lock()):
        replay = incoming.context == "replay"
        core = await SessionsCore(profile).core(key, ephemeral=session is None, replay=replay)
        core.ephemeral, core.lent = session is None, True
        try:
            store = core.live.host.store
            known = await store.read(lambda conn: inbox.get_turn(conn, turn)) if turn is not None else None
            said = await ready(
                incoming,
                core,
                fetch=profile.fetch,
                extra_body=extra_body,
                restage=restage,
                overrides=overrides,
                known=known is not None,
                loop=loop,
            )
            return await core.begin(**said, loop=loop, extra_body=extra_body, turn_id=turn)
        except BaseException:
            if core.ephemeral:
                await core.close()
            raise
        finally:
            core.lend()


def check_extra_body(extra_body: object) -> None:
    """Raise TypeError for what is not JSON."""
    try:
        json.dumps(extra_body)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"extra_body must be a JSON value: {error}.") from None


def _info(row: Row[Any], waiting: Sequence[tuple[str, str]]) -> SessionInfo:
    status = "running" if row.busy else "waiting" if waiting else row.status
    return SessionInfo(
        row.key,
        row.harness,
        status,
        row.workdir,
        row.created,
        row.updated,
        row.finished,
        Usage(**row.usage),
        None if row.unpriced else row.cost,
        tuple(id for id, state in waiting if state == "queued"),
    )
