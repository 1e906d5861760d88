"""hostler doctor SESSION: whether a session is sound, and whether it could go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.text import Text
from sqlalchemy import Row

from .. import keeper
from ..host.identity import lock_is_free, machine_id
from ..keeper import KeeperAddress
from ..runtimes import runtime_for
from ..sandbox import auto
from ..store import Store, inbox, journal, queries
from ..store import files as file_queries
from ..types.errors import HarnessError
from ..types.result import FileRef
from ..types.runtime import Runtime, acp_agent
from ..workspace import SessionDirs, native, which
from ..workspace.blobs import Blobs
from . import stored
from .terminal import FAILED, console
from .view import printable

_GOOD, _ODD, _BAD = "green", "yellow", "red"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the store says, all at one time."""

    row: Row[Any]
    turns: list[inbox.Turn]
    hosts: list[Row[Any]]
    artifacts: list[FileRef]
    records: tuple[int, int]  # how many, and the highest number


def examine_command(key: str, data_dir: str | None) -> int:
    """Prints what was found; exit code 1 when something is wrong."""
    home = stored.data_dir_of(data_dir)

    async def work(store: Store) -> _Seen:
        id = (await stored.find(store, key)).id
        return await store.read(lambda conn: _look(conn, id))

    seen = stored.read(home, work)
    out = console()
    out.print(Text(f"session {printable(seen.row.key)}", "bold"), soft_wrap=True)
    worst = 0
    for style, words in _findings(home, seen):
        out.print(
            Text({_GOOD: "  ok  ", _ODD: "  !   ", _BAD: "  bad "}[style], style), printable(words), soft_wrap=True
        )
        worst = max(worst, style == _BAD)
    return FAILED if worst else 0


def _look(conn: Any, id: int) -> _Seen:
    row = queries.get_session(conn, id)
    counted = journal.count_records(conn, id)
    turns = inbox.all_turns(conn, id)
    hosts = list(queries.other_hosts(conn, ""))
    return _Seen(row, turns, hosts, file_queries.list_artifacts(conn, id), counted)


def _findings(home: str, seen: _Seen) -> Iterator[tuple[str, str]]:
    row = seen.row
    dirs = SessionDirs.of(home, row.key)
    yield from _journal(seen)
    yield from _turns(seen)
    yield from _folders(dirs, row)
    yield from _program(dirs, row)
    yield from _artifacts(dirs, seen.artifacts)


def _journal(seen: _Seen) -> Iterator[tuple[str, str]]:
    count, last = seen.records
    if count == last == seen.row.seq:
        yield _GOOD, f"journal: {count} records, none missing"
    else:
        yield _BAD, f"journal: {count} records up to number {last}, but the session counts {seen.row.seq}"


def _turns(seen: _Seen) -> Iterator[tuple[str, str]]:
    row = seen.row
    done = [turn for turn in seen.turns if turn.status == "done"]
    waiting = [turn for turn in seen.turns if turn.status == "queued"]
    failed = [turn.result for turn in done if turn.result and turn.result["error"]]
    yield _GOOD, f"turns: {len(done)} finished, {len(waiting)} waiting"
    if failed:
        error = failed[-1]["error"]
        yield _ODD, f"turns: {len(failed)} failed, the last with {error['code']}: {error['message']}"
    if not row.busy:
        return
    holder = next((host for host in seen.hosts if host.id == row.holder), None)
    if holder is None or (holder.machine == machine_id() and lock_is_free(holder.lock)):
        yield _BAD, "turns: one is open and its app is dead; resume the session and it is brought to its end"
    else:
        yield _GOOD, f"turns: one runs, in the app with pid {holder.pid}"


def _folders(dirs: SessionDirs, row: Row[Any]) -> Iterator[tuple[str, str]]:
    workdir = dirs.session if row.owned else row.workdir
    if which(workdir) is not None:
        yield _GOOD, f"workspace: {workdir}"
    else:
        yield _BAD, f"workspace: {workdir} is gone; put it back, or begin a new session"
    home = os.path.dirname(os.path.dirname(dirs.root))
    if os.stat(home).st_mode & 0o077:
        yield _BAD, f"folder: other users may enter {home}; chmod 700 it"


def _program(dirs: SessionDirs, row: Row[Any]) -> Iterator[tuple[str, str]]:
    alive = False
    if row.program:
        address = KeeperAddress.from_dict(row.program["address"])
        alive = keeper.alive(address)
        if alive and address.protocol != keeper.PROTOCOL:
            yield _BAD, f"program: its keeper is of another version; `hostler kill {row.key}` ends it"
        elif alive:
            yield _GOOD, f"program: it lives under keeper {address.pid}"
        elif remains := keeper.remains(address.mark):
            yield _BAD, f"program: its keeper is dead and {remains} of its processes are left; `hostler gc` ends them"
    try:
        runtime = _runtime(row)
        command = runtime.find(row.rules["options"], auto(os.sep).which)
        yield _GOOD, f"program: {row.harness} is {' '.join(command)}"
    except HarnessError as error:
        yield _BAD, f"program: {error}"
        return
    if not row.finished and row.native_id is None:
        yield _GOOD, "history: the conversation has not begun"
        return
    found = native.check(dirs.home, dirs.native, runtime.native_files, row.native_id or row.new_id, row.native)
    if found == "ok":
        yield _GOOD, f"history: conversation {row.native_id} is in the program's home"
    elif native.restorable(dirs.native, row.native):
        yield _ODD, f"history: {found} in the program's home; the saved one is put back at the next turn"
    else:
        yield (_ODD if alive else _BAD), f"history: {found}, and the saved one is of no use: it cannot be resumed"


def _runtime(row: Row[Any]) -> Runtime:
    return runtime_for(acp_agent(row.rules["command"]) if "command" in row.rules else row.harness)


def _artifacts(dirs: SessionDirs, files: list[FileRef]) -> Iterator[tuple[str, str]]:
    blobs = Blobs(os.path.join(dirs.private, "artifacts"))
    bad = {file.path for file in files if blobs.read(file.sha256) is None}
    for path in sorted(bad):
        yield _BAD, f"artifacts: a version of {path} is gone or was changed"
    if files and not bad:
        yield _GOOD, f"artifacts: {len(files)} versions, all as they were"
