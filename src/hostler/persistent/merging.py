"""Files that both sides have changed, resolved as the dir says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from ..types.errors import PersistenceConflict
from .backing import Backing, Theirs
from .comparison import Row, Version, compare
from .dirs import Merge
from .folder import Changed, Look

if TYPE_CHECKING:
    from .dir_sync import Work


async def resolved(
    work: Work,
    backing: Backing,
    theirs: Theirs,
    look: Look,
    changes: Mapping[str, Version | None],
    found: Sequence[str],
    merge: Merge,
    dir: str,
) -> Mapping[str, Version | None]:
    """The changes that are to be stored now that the paths ``found`` are dealt with; the checkout and the rows fit them.

    Raises PersistenceConflict, with nothing changed, when one of them cannot be."""
    rows = {path: work.rows.get(path, Row()) for path in found}
    stuck = [p for p in found if merge == "fail" or compare(rows[p].base, changes[p], rows[p].theirs) != "overlap"]
    if stuck:
        raise _conflict(dir, stuck)
    if merge == "ours":
        agreed = {path: Row(row.theirs, row.theirs, row.version) for path, row in rows.items()}
        await asyncio.to_thread(work.ledger.update, agreed)
        work.rows.update(agreed)
        return changes
    contents: dict[str, bytes | None] = dict.fromkeys(found)
    async with aclosing(backing.contents(theirs, [p for p in found if rows[p].theirs is not None])) as given:
        async for path, content in given:
            contents[path] = content
    results = dict(contents)
    if callable(merge):
        for path in found:
            base, mine = rows[path].base, changes[path]
            old = await asyncio.to_thread(work.ledger.content, path, base)
            ours = None if mine is None else await asyncio.to_thread(work.frozen.read, mine)
            if (base is not None and old is None) or (mine is not None and ours is None):
                raise _conflict(
                    dir, found, f"; what {path!r} was before is not kept (it is too large), so that it cannot be merged"
                )
            results[path] = await backing.merged(path, old, ours, contents[path])

    def apply() -> Mapping[str, Version | None]:
        left = dict(changes)
        agreed = {}
        for path in found:
            row, result, mine = rows[path], results[path], changes[path]
            executable = (mine or row.theirs or Version("")).executable
            version = None if result is None else Version.of(result, executable)
            if not callable(merge):
                version = row.theirs
            if callable(merge) and result is not None:
                work.frozen.put(iter([result]))
            try:
                if version != mine:
                    entry = look.entries.get(path)
                    if version is None:
                        work.folder.remove(path, entry)
                        look.entries.pop(path, None)
                    else:
                        look.entries[path] = work.folder.write(path, result or b"", version.executable, entry)
            except Changed:
                raise _conflict(dir, [path], "; it was changed meanwhile in the session, too") from None
            agreed[path] = Row(
                row.theirs, row.theirs, row.version, look.entries.get(path) if version == row.theirs else None
            )
            left[path] = version
        kept = {path: content for path, content in contents.items() if content is not None}
        work.ledger.update(agreed, kept)
        work.rows.update(agreed)
        return left

    return await asyncio.to_thread(apply)


def _conflict(dir: str, paths: Sequence[str], why: str = "") -> PersistenceConflict:
    named = ", ".join(map(repr, sorted(paths)[:5])) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
    return PersistenceConflict(
        f"{dir}: {named} changed in the session and in the storage{why}. Nothing was stored; the session keeps its version. "
        "Make the two alike and commit again, or commit with merge='ours' or merge='theirs'."
    )
