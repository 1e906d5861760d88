"""What nobody owns any more, found and removed: keepers, processes, sockets, rows of hosts, folders."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from .. import keeper
from ..keeper import KeeperAddress
from ..removal import remove_path
from ..sandboxes.docker.unused import unused
from ..store import Store, queries
from ..workspace import SessionDirs, layout, native, unfinished
from . import retention
from .identity import lock_is_free, machine_id
from .settings import Settings

_YOUNG = 60.0  # s: what is younger may be in the making
_ENDPOINT = "endpoint.sock"


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that nobody owns: what it is, and how to remove it."""

    what: str
    remove: Callable[[], Awaitable[object]]


async def unowned(data_dir: str, store: Store | None) -> list[Leftover]:
    """What may be removed, of this data dir and of this user's hostlers on this machine. Nothing is changed yet.

    ``store`` is None where there is none: then the data dir holds no sessions."""
    keepers = keeper.running()  # before the rows are read: what starts in between is not seen
    found = [*_keepers_without_a_folder(keepers), *_sockets(), *_endpoint_dirs()]
    found += [Leftover(each.what, _call(each.remove)) for each in await asyncio.to_thread(unused)]
    if store is not None:
        sessions = await store.read(queries.list_sessions)
        hosts = await store.read(lambda conn: queries.other_hosts(conn, ""))
        found += _keepers_without_a_session(keepers, sessions, data_dir)
        found += _processes_of_dead_keepers(sessions)
        found += _logs(sessions, data_dir, keepers)
        found += _homes(sessions, data_dir)
        found += _dead_hosts(hosts, store)
        found += _locks(hosts, data_dir)
        found += _folders(sessions, data_dir)
        found += [
            Leftover(f"session {r.session.key}: {r.why}", _removal(data_dir, store, r.session))
            for r in await retention.retired(data_dir, store, Settings.read())
        ]
    return found


# ---- processes ------------------------------------------------------------------------------------------------------


def _keepers_without_a_folder(keepers: Sequence[keeper.Found]) -> Iterator[Leftover]:
    for found in keepers:
        if not os.path.exists(found.dir):
            yield _dismissal(found, f"its folder {found.dir} was deleted")


def _keepers_without_a_session(
    keepers: Sequence[keeper.Found], sessions: Sequence[Row[Any]], data_dir: str
) -> Iterator[Leftover]:
    rows = {SessionDirs.of(data_dir, row.key).keepers: row for row in sessions}
    for found in keepers:
        above = os.path.dirname(found.dir)
        if not above.startswith(os.path.join(os.path.realpath(data_dir), "sessions") + os.sep):
            continue
        row = rows.get(above)
        if row is None:
            if os.path.exists(found.dir) and not _is_young(os.path.dirname(os.path.dirname(above))):
                yield _dismissal(found, f"its session was deleted ({found.dir})")
        elif not row.busy and (not row.program or row.program["address"]["mark"] != found.mark):
            yield _dismissal(found, f"session {row.key} has another program, or none")


def _dismissal(found: keeper.Found, why: str) -> Leftover:
    return Leftover(f"program under keeper {min(found.pids)}: {why}", _call(keeper.dismiss, found))


def _processes_of_dead_keepers(sessions: Sequence[Row[Any]]) -> Iterator[Leftover]:
    for row in sessions:
        if row.program and not keeper.alive(address := KeeperAddress.from_dict(row.program["address"])):
            mark = address.mark
            if count := keeper.remains(mark):
                what = f"{count} process{'es' if count > 1 else ''} of session {row.key}: the keeper is dead"
                yield Leftover(what, _call(keeper.sweep, mark))


# ---- sockets --------------------------------------------------------------------------------------------------------


def _sockets() -> Iterator[Leftover]:
    for path in keeper.stale_sockets(keeper.runtime_dir(), _YOUNG):
        yield Leftover(f"socket of a dead keeper: {path}", _call(os.unlink, path))


def _endpoint_dirs() -> Iterator[Leftover]:
    """Of hosts that were killed. They lie where `tempfile` puts them and hold nothing but a socket."""
    with os.scandir(tempfile.gettempdir()) as found:
        entries = list(found)
    for entry in entries:
        with contextlib.suppress(OSError):
            if (
                entry.name.startswith("hostler-")
                and entry.is_dir(follow_symlinks=False)
                and entry.stat().st_uid == os.geteuid()
                and os.listdir(entry.path) == [_ENDPOINT]
                and not _is_young(entry.path)
                and not _answers(os.path.join(entry.path, _ENDPOINT))
            ):
                yield Leftover(f"endpoint folder of a dead app: {entry.path}", _call(remove_path, entry.path))


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            pass  # too many are before its door
    return True


# ---- rows and folders -----------------------------------------------------------------------------------------------


def _dead_hosts(hosts: Sequence[Row[Any]], store: Store) -> Iterator[Leftover]:
    """By their kernel lock only: one that is merely silent may wake up, and must then still find its row."""
    machine = machine_id()
    for row in hosts:
        if row.machine == machine and lock_is_free(row.lock):
            yield Leftover(f"entry of a dead app: pid {row.pid}, host {row.id}", _forgetting(store, row.id))


def _forgetting(store: Store, host: str) -> Callable[[], Awaitable[object]]:
    return lambda: store.write(lambda conn: queries.forget_host(conn, host))


def _removal(data_dir: str, store: Store, session: queries.Expired) -> Callable[[], Awaitable[object]]:
    return lambda: retention.remove(data_dir, store, session)


def _locks(hosts: Sequence[Row[Any]], data_dir: str) -> Iterator[Leftover]:
    machine = machine_id()
    elsewhere = {row.lock for row in hosts if row.machine != machine}
    for path in _entries(os.path.join(data_dir, "hosts")):
        if path.endswith(".lock") and path not in elsewhere and not _is_young(path) and lock_is_free(path):
            yield Leftover(f"lock file of a dead app: {path}", _call(os.unlink, path))


def _logs(sessions: Sequence[Row[Any]], data_dir: str, keepers: Sequence[keeper.Found]) -> Iterator[Leftover]:
    """Logs of keepers that are over, unless a turn is still to be read from them."""
    running = {found.dir for found in keepers}
    for row in sessions:
        if row.busy:
            continue
        own = row.program["address"]["dir"] if row.program else None
        for path in _entries(SessionDirs.of(data_dir, row.key).keepers):
            if path != own and path not in running:
                yield Leftover(f"log of a program that is over: {path}", _call(remove_path, path))


def _homes(sessions: Sequence[Row[Any]], data_dir: str) -> Iterator[Leftover]:
    """What was in a program's home when it refused to go on with that."""
    for row in sessions:
        for path in native.set_aside(SessionDirs.of(data_dir, row.key).home) if not row.busy else ():
            yield Leftover(f"home of session {row.key} that was set aside: {path}", _call(remove_path, path))


def _folders(sessions: Sequence[Row[Any]], data_dir: str) -> Iterator[Leftover]:
    known = {SessionDirs.of(data_dir, row.key).root for row in sessions}
    for path in _entries(os.path.join(os.path.realpath(data_dir), "sessions")):
        if path not in known and not _is_young(path) and not unfinished.is_made(os.path.join(path, layout.FORKING)):
            what = (
                "a deleted session"
                if os.path.basename(path).startswith(".")
                else "a session that the store does not know"
            )
            yield Leftover(f"folder of {what}: {path}", _call(layout.erase, path))


def _entries(folder: str) -> list[str]:
    try:
        return sorted(os.path.join(folder, name) for name in os.listdir(folder))
    except FileNotFoundError:
        return []


def _is_young(path: str) -> bool:
    try:
        return time.time() - os.lstat(path).st_mtime < _YOUNG
    except OSError:
        return True


def _call(function: Callable[..., object], *args: object) -> Callable[[], Awaitable[object]]:
    return lambda: asyncio.to_thread(function, *args)
