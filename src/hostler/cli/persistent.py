"""hostler diff KEY /persistent/x, hostler commit"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import Row

from .. import portal
from ..host import Host
from ..host.persistence import Behalf, Persistent, uncommitted
from ..persistent.dir_sync import Difference, DirSync
from ..persistent.dirs import virtual_path
from ..persistent.rules import completed, named
from ..types.errors import PathError, PersistenceError
from ..types.result import Persistence
from ..workspace import SessionDirs
from ..workspace.diffs import is_text, unified
from . import stored
from .browse import print_diffs
from .terminal import FAILED, console
from .view import printable


def diff_dir_command(key: str, path: str, data_dir: str | None) -> int:
    """Prints what is changed in a persistent dir of a session and not committed."""
    home = stored.data_dir_of(data_dir)
    row = stored.read(home, lambda store: stored.find(store, key))
    rule = _rule(row, path)
    sync = DirSync(named(rule), SessionDirs.of(home, row.key))
    if not sync.begun:
        console(stderr=True).print(f"{rule['path']} was never checked out into this session")
        return FAILED
    print_diffs([_printed(difference) for difference in portal.run(sync.differences())])
    return 0


def commit_command(
    key: str, path: str | None, merge: Literal["fail", "ours", "theirs"] | None, data_dir: str | None
) -> int:
    """Commits what can be reached without the app; exit code 1 when something stays uncommitted."""
    home = stored.data_dir_of(data_dir)
    row = stored.read(home, lambda store: stored.find(store, key))
    rules = [_rule(row, path)] if path is not None else row.rules.get("persistent_dirs", [])
    ours = [rule["path"] for rule in rules if rule["spec"] is not None]
    out = console()
    failed = False

    async def work() -> None:
        nonlocal failed
        host = await Host.open(home)
        try:
            dirs = completed([], row.rules.get("persistent_dirs", ()))
            persistent = Persistent(host, row.id, row.key, SessionDirs.of(host.data_dir, row.key), dirs)
            for name in ours:
                if path is None and next(dir for dir in dirs if dir.path == name).read_only:
                    continue
                try:
                    done = await persistent.commit(name, Behalf(), merge)
                except PersistenceError as error:
                    failed = True
                    out.print(printable(str(error)), soft_wrap=True)
                else:
                    out.print(_words(name, done), soft_wrap=True)
        finally:
            await host.close()

    portal.run(work())
    changed = {report.path for report in portal.run(uncommitted(home, row.key, row.rules))}
    for rule in rules:
        if rule["spec"] is None and (path is not None or rule["path"] in changed):
            failed = True
            out.print(
                f"{rule['path']} is kept by functions of the app; commit it there: session.commit({rule['path']!r})",
                soft_wrap=True,
            )
    if not rules:
        out.print(f"session {printable(row.key)} has no persistent dirs", soft_wrap=True)
    return FAILED if failed else 0


def _rule(row: Row[Any], path: str) -> Mapping[str, Any]:
    rules = row.rules.get("persistent_dirs", [])
    found = next((rule for rule in rules if rule["path"] == virtual_path(path.rstrip("/"))), None)
    if found is None:
        there = ", ".join(rule["path"] for rule in rules) or "none"
        raise PathError(f"Session {row.key!r} has no persistent dir {path!r}; it has {there}.")
    return found  # type: ignore[no-any-return]


def _words(path: str, done: Persistence) -> str:
    if not done.commits or done.commits[0]["status"] != "committed":
        return f"{path}: nothing to commit"
    (commit,) = done.commits
    counts = [f"{len(commit[kind])} {kind}" for kind in ("created", "updated", "deleted") if commit[kind]]
    return f"{path}: committed, {', '.join(counts)}"


def _printed(change: Difference) -> tuple[str, str, str | None]:
    kind = "created" if not change.existed else "modified" if change.exists else "deleted"
    old = b"" if not change.existed else change.old
    new = b"" if not change.exists else change.new
    if old is None or new is None or not is_text(old) or not is_text(new) or old == new:
        return kind, change.path, None
    return kind, change.path, unified(old, new, change.path, change.existed, change.exists)
