"""The store of a data dir, opened from outside: nothing is started or made."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlalchemy import Row

from .. import portal
from ..store import Store, queries
from ..types.errors import SessionLost
from ..types.places import state_dir
from ..workspace import SessionDirs
from ..workspace.roots import Roots
from .view import printable

T = TypeVar("T")
_TIDY = 5.0  # s that the store has to close after Ctrl-C


def path_of(given: str | None) -> str:
    """The data dir that was named, else the implicit host's."""
    return os.path.realpath(os.path.expanduser(given)) if given else state_dir()


def holds_sessions(data_dir: str) -> bool:
    return os.path.exists(os.path.join(data_dir, "store.db"))


def data_dir_of(given: str | None) -> str:
    """The data dir that was named, else the implicit host's. Raises ValueError where there are no sessions."""
    path = path_of(given)
    if not holds_sessions(path):
        raise ValueError(f"There are no sessions in {path}; name their data dir with --data-dir or HOSTLER_STATE_DIR.")
    return path


def read(data_dir: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """What ``work`` gives for the store of this data dir."""

    over = threading.Event()

    async def opened() -> T:
        store = Store.open(os.path.join(data_dir, "store.db"), make=False)
        try:
            return await work(store)
        finally:
            store.close()
            over.set()

    try:
        return portal.run(opened())
    except KeyboardInterrupt:
        over.wait(_TIDY)
        raise


async def find(store: Store, key: str) -> Row[Any]:
    """The session with this key, or the only one whose key begins so. Raises SessionLost naming the ones meant."""
    row = await store.read(lambda conn: queries.find_session(conn, key))
    if row is not None:
        return row
    keys = await store.read(queries.all_keys)
    begin = [k for k in keys if k.startswith(key)] if key else []
    if len(begin) == 1:
        return await find(store, begin[0])
    close = begin[:3] or difflib.get_close_matches(key, keys, n=3)
    meant = f" Did you mean {', '.join(map(printable, close))}?" if close else " `hostler sessions` lists them."
    raise SessionLost(f"There is no session {printable(key)!r}.{meant}")


def workdir_of(data_dir: str, row: Row[Any]) -> str:
    """Where a session works; its own workspace is where its data dir is now."""
    return SessionDirs.of(data_dir, row.key).session if row.owned else str(row.workdir)


def roots_of(data_dir: str, row: Row[Any]) -> Roots:
    """The folders of a session."""
    dirs = SessionDirs.of(data_dir, row.key)
    return Roots(dirs.workspace(workdir_of(data_dir, row)).mounts, make=False)
