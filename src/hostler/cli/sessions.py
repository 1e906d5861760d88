"""hostler sessions, show, rm"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from rich.table import Table
from rich.text import Text
from sqlalchemy import Row

from .. import portal
from ..host import Host, retention
from ..host.persistence import uncommitted
from ..host.upkeep import kill
from ..store import Store, inbox, queries
from ..store.inbox import Turn
from ..types.result import Usage
from ..workspace import SessionDirs
from . import stored
from .terminal import FAILED, console
from .view import dollars, printable

_STYLES = {"running": "green", "waiting": "yellow", "live": "cyan"}
_OUTCOMES = {"done": "green", "error": "red"}


def sessions_command(data_dir: str | None) -> int:
    """Prints all sessions, the last used first."""
    path = stored.data_dir_of(data_dir)

    async def work(store: Store) -> tuple[Any, Any]:
        return await store.read(queries.list_sessions), await store.read(inbox.all_open_turns)

    rows, waiting = stored.read(path, work)
    out = console()
    if not rows:
        out.print(f"no sessions in {printable(path)}", soft_wrap=True)
        return 0
    table = Table("session", "program", "status", "turns", "cost", "used", box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
        column.justify = "right" if column.header in ("turns", "cost", "used") else "left"
    for row in rows:
        status = status_of(row, bool(waiting.get(row.id)))
        cost = dollars(None if row.unpriced else row.cost)
        table.add_row(
            printable(row.key).replace("\n", "·"),
            printable(row.harness),
            Text(status, _STYLES.get(status, "dim")),
            str(row.finished),
            cost,
            ago(row.updated),
        )
    out.print(table, soft_wrap=True)
    return 0


def show_command(key: str, data_dir: str | None) -> int:
    """Prints one session and its turns."""
    path = stored.data_dir_of(data_dir)

    async def work(store: Store) -> tuple[Row[Any], list[Turn]]:
        row = await stored.find(store, key)
        return row, await store.read(lambda conn: inbox.all_turns(conn, row.id))

    row, turns = stored.read(path, work)
    out = console()
    usage = Usage(**row.usage)
    facts = {
        "session": printable(row.key),
        "program": f"{row.harness}, conversation {row.native_id or 'not begun'}",
        "model": row.rules.get("model") or "none",
        "permissions": row.rules["permissions"],
        "status": status_of(row, any(t.status == "queued" for t in turns)),
        "works in": stored.workdir_of(path, row),
        "folder": SessionDirs.of(path, row.key).root,
        "made": f"{ago(row.created)} ago" + (", without a key: it is removed after a while" if row.ephemeral else ""),
        "used": f"{ago(row.updated)} ago",
        "journal": f"{row.seq} records",
        "usage": f"{usage.calls} model calls, {usage.input_tokens} tokens in ({usage.cached_tokens} cached), "
        f"{usage.output_tokens} out",
        "cost": dollars(None if row.unpriced else row.cost),
    }
    for report in portal.run(uncommitted(path, row.key, row.rules)):
        count = len(report.created) + len(report.updated) + len(report.deleted)
        facts["uncommitted"] = f"{facts.get('uncommitted', '')} {report.path} ({count} files)".strip()
    for name, value in facts.items():
        out.print(Text(f"{name:12}", "dim"), printable(str(value)), soft_wrap=True)
    if row.notices:
        out.print(
            Text(f"{'to be told':12}", "dim"), *(printable(n["file"]["path"]) for n in row.notices), soft_wrap=True
        )
    if turns:
        out.print()
    for number, turn in enumerate(turns, 1):
        result = turn.result or {}
        outcome = result.get("stop_reason", turn.status)
        said = turn.input.get("prompt") or result.get("text", "")
        line = Text(f"{number:4}  ", "dim")
        line.append(f"{outcome:12}", _OUTCOMES.get(outcome, "yellow"))
        line.append(printable(_first_line(said)))
        out.print(line, soft_wrap=True)
        if error := result.get("error"):
            out.print(Text(f"{'':6}{error['code']}: {printable(error['message'])}", "red"), soft_wrap=True)
    return 0


def rm_command(key: str, data_dir: str | None, yes: bool) -> int:
    """Erases a session: ends its program, removes its records and its folder."""
    path = stored.data_dir_of(data_dir)
    row = stored.read(path, lambda store: stored.find(store, key))
    out = console()
    if not yes:
        if not sys.stdin.isatty():
            raise ValueError("Nobody is there to be asked; say --yes to remove the session.")
        out.print(f"Remove session {printable(row.key)}, {row.finished} turns, with all its files? [y/N] ", end="")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return FAILED

    async def work() -> None:
        host = await Host.open(path)
        try:
            await kill(host, row.key)
            await retention.erase(host, row)
        finally:
            await host.close()

    portal.run(work())
    kept = "" if row.owned else f"; {printable(row.workdir)} is yours and stays"
    out.print(f"session {printable(row.key)} removed{kept}", soft_wrap=True)
    return 0 if not os.path.exists(SessionDirs.of(path, row.key).root) else FAILED


def status_of(row: Row[Any], waiting: bool) -> str:
    """In one word."""
    return "running" if row.busy else "waiting" if waiting else str(row.status)


def ago(then: float) -> str:
    """How long it is since then."""
    seconds = max(0, int(time.time() - then))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _first_line(text: str) -> str:
    line = text.strip().split("\n")[0]
    return line if len(line) <= 100 else line[:99] + "…"
