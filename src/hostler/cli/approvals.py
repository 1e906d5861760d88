"""hostler approvals, answer"""

from __future__ import annotations

import json
import time

from rich.text import Text

from ..store import Store, approvals
from ..store.approvals import Left, Question
from . import stored
from .sessions import ago
from .terminal import console
from .view import printable

_INPUT = 200  # characters of a question's input


def approvals_command(key: str | None, data_dir: str | None) -> int:
    """Prints the open questions of one session, or of all."""
    path = stored.data_dir_of(data_dir)

    async def work(store: Store) -> list[Question]:
        session = None if key is None else (await stored.find(store, key)).id
        return await store.read(lambda conn: approvals.open_questions(conn, session))

    found = stored.read(path, work)
    out = console()
    if not found:
        out.print("no open approvals", style="dim")
    for question in found:
        line = Text(printable(question.session), "bold")
        line.append(f"  {question.approval.id}  ", "yellow")
        line.append(question.approval.tool)
        said = json.dumps(question.approval.input, ensure_ascii=False, default=repr)
        line.append(f"  {printable(said[:_INPUT])}{'…' if len(said) > _INPUT else ''}", "dim")
        line.append("  answered, not given yet" if question.answered else f"  {ago(min(question.at, time.time()))} ago")
        out.print(line, soft_wrap=True)
    return 0


def answer_command(key: str, id: str, data_dir: str | None, *, allow: bool, reason: str | None, always: bool) -> int:
    """Leaves the answer for whoever runs the turn."""
    path = stored.data_dir_of(data_dir)

    async def work(store: Store) -> str:
        row = await stored.find(store, key)
        left = Left(id, allow, reason)
        await store.write(lambda conn: approvals.leave_answer(conn, row.id, left, always=always), durable=True)
        return str(row.key)

    name = stored.read(path, work)
    how = ("allowed" if allow else "denied") + (", and so are all alike" if always else "")
    console().print(f"session {printable(name)}: {printable(id)} {how}", soft_wrap=True)
    return 0
