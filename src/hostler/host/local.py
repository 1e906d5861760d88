"""The host of one process: one data dir, its store, its endpoint, and the sessions that this process has in hand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Coroutine
from functools import partial
from typing import Any

from sqlalchemy import Row

from .. import portal
from ..endpoint import Endpoint
from ..running import Stop
from ..store import Store, approvals, inbox, queries
from ..store.queries import Lease
from ..types.errors import HarnessError, SessionClosed, StoreError
from ..types.places import state_dir
from ..types.runtime import Answer
from ..workspace import holds_sessions, prepare
from . import retention
from .hold import Hold
from .identity import BEAT_EVERY, HostLock, become_unreadable, is_dead, machine_id, uptime
from .journal import Journal
from .live import LiveSession
from .settings import Settings
from .shelf import fetcher
from .slots import Slots

_WISHES = 0.3  # s between looks for what other processes want of our turns


class Host:
    """Keeps the sessions of one data dir. All methods run on the engine loop; make it with `open`."""

    def __init__(self, data_dir: str, store: Store, lock: HostLock) -> None:
        self.data_dir = data_dir
        self.store = store
        self.settings = Settings.read()
        self.id = lock.id
        self.machine = machine_id()
        self.pid = os.getpid()
        self.sessions: dict[int, LiveSession] = {}
        self.journal = Journal(store, self._writes_here, fetcher(data_dir))
        self.endpoint = Endpoint()
        self.slots = Slots(self.settings.max_runtimes)
        self._lock = lock
        self._endpoint_dir: str | None = None
        self.tool_calls: dict[tuple[int, str], asyncio.Task[Any]] = {}  # that run here, by session and key
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closing = False
        self._given_up: set[int] = set()  # sessions whose lease is still to be given back

    @classmethod
    async def open(cls, data_dir: str) -> Host:
        """Open or make the data dir. Raises StoreError when it cannot be used."""
        if Settings.read().nondumpable:
            become_unreadable()
        data_dir = await asyncio.to_thread(prepare, data_dir)
        store = await asyncio.to_thread(_open_store, data_dir)
        host = cls(data_dir, store, HostLock(os.path.join(data_dir, "hosts")))
        await store.write(
            lambda conn: queries.put_host(
                conn,
                id=host.id,
                machine=host.machine,
                pid=os.getpid(),
                lock=host._lock.path,
                now=time.time(),
                uptime=uptime(),
            )
        )
        host.spawn(host._beat())
        host.spawn(host._watch_wishes())
        host.spawn(host._retire())
        return host

    async def close(self) -> None:
        """Close the sessions that are still open here, and let go of the data dir."""
        self.closing = True
        open_here = list(self.sessions.values())
        await asyncio.gather(*(live.part() for live in open_here), return_exceptions=True)
        self.sessions.clear()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._endpoint_dir is not None:
            await self.endpoint.aclose()
            shutil.rmtree(self._endpoint_dir, ignore_errors=True)
        try:
            await self.store.write(lambda conn: queries.remove_host(conn, self.id))
        except HarnessError:
            pass
        await asyncio.to_thread(self.store.close)
        self._lock.release()

    async def endpoint_path(self) -> str:
        """The unix socket of the model endpoint, which is started when the first program needs it."""
        async with self._starting:
            if self._endpoint_dir is None:
                directory = tempfile.mkdtemp(prefix="hostler-")
                await self.endpoint.start(directory)
                self._endpoint_dir = directory
        return self.endpoint.socket_path

    def keep(self, live: LiveSession) -> LiveSession:
        """Have the session in hand in this process; gives the one that is in hand already, if it came first."""
        self.check_open(live.key)
        return self.sessions.setdefault(live.id, live)

    def check_open(self, key: str) -> None:
        """Raise SessionClosed where nothing may begin any more: it would outlive the host."""
        if self.closing:
            raise SessionClosed(f"Session {key!r} cannot be used here any more: its host is closing.")

    def release(self, live: LiveSession) -> bool:
        """Keep it in hand no longer if nobody holds it and it has no turn and no program; whether it was so."""
        if live.holders.any() or live.holders.turns or live.hold.program is not None:
            return False
        if self.sessions.get(live.id) is live:
            del self.sessions[live.id]
        return True

    def idled(self, hold: Hold) -> None:
        """The program of this session was ended to make room."""
        for live in tuple(self.sessions.values()):
            if live.hold is hold:
                self.release(live)

    def is_dead(self, row: Row[Any]) -> bool:
        """Whether the host of this row may be replaced."""
        return row.id != self.id and is_dead(row, self.machine, self.settings.orphan_ttl)

    def new_id(self, kind: str) -> str:
        return f"{kind}_{uuid.uuid4().hex[:24]}"

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it as a task that this host owns."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def give_up(self, session: int) -> None:
        """Leave a turn that cannot be journalled here to whoever can; when not even that can be written, later."""
        self._given_up.add(session)
        with contextlib.suppress(HarnessError):
            await self._give_back()

    def give_up_later(self, session: int) -> None:
        """The same with the next heartbeat."""
        self._given_up.add(session)

    async def given_back(self, session: int) -> None:
        """What was given up of the session is everybody's: from now on it can be ours again. Raises StoreError."""
        if session in self._given_up:
            await self.store.write(partial(inbox.disown, session=session, host=self.id))
            self._given_up.discard(session)

    async def _give_back(self) -> None:
        for session in tuple(self._given_up):
            await self.given_back(session)
            if session in self.sessions:  # soon: its worker may be just ending
                asyncio.get_running_loop().call_soon(self.sessions[session].serve)

    async def free(self, lease: Lease, status: str) -> None:
        """Let go of the lease of a session in which nothing runs. Raises StoreError; then it is let go later."""
        try:
            await self.store.write(lambda conn: queries.release(conn, lease, status), durable=True)
        except StoreError:
            await self.give_up(lease.session)
            raise

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a child of the process that opened it."""
        return os.getpid() != self.pid

    def _writes_here(self, session: int) -> bool:
        live = self.sessions.get(session)
        return live is not None and live.running is not None and not self.forked

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_EVERY)
            try:
                await self.store.write(lambda conn: queries.beat(conn, self.id, time.time(), uptime()))
                await self._give_back()
            except HarnessError:
                pass  # a disk that is full now may have room later

    async def _retire(self) -> None:
        """Remove the sessions whose time is over."""
        with contextlib.suppress(HarnessError):  # the next host that opens the store tries again
            for found in await retention.retired(self.data_dir, self.store, self.settings):
                if found.session.id not in self.sessions:
                    with contextlib.suppress(OSError):  # what is left of one does not keep the others
                        await retention.remove(self.data_dir, self.store, found.session)

    async def _watch_wishes(self) -> None:
        """Tell the turns that run here what other processes want of them: their end, an answer."""
        while True:
            await asyncio.sleep(_WISHES)
            running = {live.running.turn: live.running for live in self.sessions.values() if live.running is not None}
            if not running:
                continue
            try:
                stops, answers = await self._wishes(list(running))
            except HarnessError:
                continue
            for turn, reason in stops:
                if running[turn].stop is None:
                    running[turn].put(Stop(reason))  # type: ignore[arg-type]
            for turn, left in answers.items():
                for answer in left:
                    if answer.id in running[turn].approvals:
                        running[turn].put(Answer(answer.id, answer.allow, answer.reason, answer.answers))

    async def _wishes(self, turns: list[str]) -> tuple[list[tuple[str, str]], dict[str, list[approvals.Left]]]:
        return await self.store.read(lambda conn: (inbox.stops_of(conn, turns), approvals.answers_left(conn, turns)))


def _open_store(data_dir: str) -> Store:
    # Folders without a store that knows them are not taken for a new data dir.
    return Store.open(os.path.join(data_dir, "store.db"), make=not holds_sessions(data_dir))


_hosts: dict[str, Host] = {}
_opening: dict[str, asyncio.Lock] = {}


async def implicit_host(data_dir: str | None) -> Host:
    """The host of this process on a data dir: made when first asked for, closed at the end of the interpreter."""
    path = os.path.realpath(os.path.abspath(data_dir) if data_dir else state_dir())
    async with _opening.setdefault(path, asyncio.Lock()):
        if path not in _hosts:
            _hosts[path] = await Host.open(path)
            if len(_hosts) == 1:
                portal.on_exit(_close_all)
        return _hosts[path]


async def _close_all() -> None:
    hosts = list(_hosts.values())
    _hosts.clear()
    await asyncio.gather(*(host.close() for host in hosts), return_exceptions=True)


def _forked() -> None:
    _hosts.clear()
    _opening.clear()


os.register_at_fork(after_in_child=_forked)
