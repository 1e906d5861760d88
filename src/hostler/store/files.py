"""The queries about files: what the app has staged in a session, and which results of the agent were kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from ..types.events import FileMoved, FileRemoved, FileStaged, Record
from ..types.result import FileRef
from . import journal, queries
from .prepared import Prepared
from .schema import artifacts, sessions, turns

_NOTICES = 1000  # files that wait to be told; beyond that the oldest are not


def stage(conn: Connection, session: int, staged: FileStaged, *, mark: bool, notice: bool, now: float) -> list[Record]:
    """Journal a file that was written, with the turn that runs at this moment. No lease is needed: the number comes
    from the session's row, which gives each only once."""
    row = queries.get_session(conn, session)
    values: dict[str, Any] = {}
    file = staged.file
    if notice:
        others = [told for told in row.notices if told["file"]["path"] != file.path]
        values["notices"] = [
            *others[1 - _NOTICES :],
            {"seq": row.seq + 1, "file": asdict(file), "source": staged.source},
        ]
    if mark or file.path in row.marked:
        marked = {path: kind for path, kind in row.marked.items() if path != file.path}
        values["marked"] = {**marked, file.path: file.media_type} if mark else marked
    return _journal(conn, row, staged, values, now)


def unstage(conn: Connection, session: int, event: FileRemoved | FileMoved, now: float) -> list[Record]:
    """Journal that what was at a path is gone from there, or is elsewhere now, and what was to be said or kept of it."""
    row = queries.get_session(conn, session)
    target = event.target if isinstance(event, FileMoved) else None

    def now_at(path: str) -> str | None:
        if path == event.path or path.startswith(event.path + "/"):
            return None if target is None else target + path[len(event.path) :]
        return None if path == target else path  # what was there has been replaced

    notices = [
        {**notice, "file": {**notice["file"], "path": path}}
        for notice in row.notices
        if (path := now_at(notice["file"]["path"])) is not None
    ]
    marked = {path: kind for old, kind in row.marked.items() if (path := now_at(old)) is not None}
    return _journal(conn, row, event, {"notices": notices, "marked": marked}, now)


def _journal(
    conn: Connection,
    row: Row[Any],
    event: FileStaged | FileRemoved | FileMoved,
    values: dict[str, Any],
    now: float,
) -> list[Record]:
    conn.execute(update(sessions).where(sessions.c.id == row.id).values(seq=row.seq + 1, updated=now, **values))
    running = conn.execute(
        select(turns.c.id).where(turns.c.session == row.id, turns.c.status == "running").limit(1)
    ).scalar()
    return journal.write_records(conn, row.key, row.id, row.seq, running, [(event, None)], now)


def forget_notices(conn: Connection, session: int, before: int) -> None:
    """The agent was told of the files whose records have numbers below ``before``."""
    notices = conn.execute(select(sessions.c.notices).where(sessions.c.id == session)).scalar_one()
    left = [notice for notice in notices if notice["seq"] >= before]
    if left != notices:
        conn.execute(update(sessions).where(sessions.c.id == session).values(notices=left))


_MARKED = Prepared(select(sessions.c.marked).where(sessions.c.id == bindparam("s")))
_NEWEST = select(func.max(artifacts.c.number)).where(artifacts.c.session == bindparam("s")).group_by(artifacts.c.path)
_KEPT = Prepared(select(artifacts.c.path, artifacts.c.sha256).where(artifacts.c.number.in_(_NEWEST)))


def marked(conn: Connection, session: int) -> Mapping[str, str | None]:
    """The staged files that are artifacts, with their media types."""
    row = _MARKED.first(conn, s=session)
    return {} if row is None else row.marked


def kept(conn: Connection, session: int) -> Mapping[str, str]:
    """Of each artifact's path the newest SHA-256."""
    return {row.path: row.sha256 for row in _KEPT.all(conn, s=session)}


def keep(conn: Connection, session: int, turn: str, files: Sequence[FileRef]) -> None:
    """New versions of artifacts."""
    if files:
        conn.execute(
            insert(artifacts),
            [
                {"path": f.path, "bytes": f.bytes, "media_type": f.media_type, "sha256": f.sha256}
                | {"session": session, "turn": turn}
                for f in files
            ],
        )


def list_artifacts(conn: Connection, session: int, turn: str | None = None) -> list[FileRef]:
    """All versions in the order in which they were kept; those of one turn only when it is given."""
    query = select(artifacts).where(artifacts.c.session == session).order_by(artifacts.c.number)
    if turn is not None:
        query = query.where(artifacts.c.turn == turn)
    return [FileRef(row.path, row.bytes, row.media_type, row.sha256, True) for row in conn.execute(query)]
