"""hostler approvals, answer"""

from __future__ import annotations

import json
import time

from rich.text import Text
from sqlalchemy import Connection

from ..host.asking import left_by
from ..host.shelf import fetcher
from ..store import Store, approvals
from ..store.approvals import Question
from ..types.questions import worded
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
        return await store.read(lambda conn: approvals.open_questions(conn, session, fetcher(path)))

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
        for asked in question.approval.questions:
            choices = f" [{' | '.join(choice.label for choice in asked.choices)}]" if asked.choices else ""
            out.print(Text(printable(f"    {asked.id}: {asked.text}{choices}"), "magenta"), soft_wrap=True)
    return 0


def answer_command(
    key: str, id: str, data_dir: str | None, *, allow: bool | None, reason: str | None, always: bool, texts: list[str]
) -> int:
    """Leaves the answer for whoever runs the turn. ``texts`` answer its questions, as `questions.worded` reads them."""
    path = stored.data_dir_of(data_dir)
    if allow is None and not texts:
        raise ValueError("Say what the answer is: --allow, --deny, or --text for a question that asks for more.")
    yes = allow is None or allow

    async def work(store: Store) -> str:
        row = await stored.find(store, key)
        fetch = fetcher(path)

        def leave(conn: Connection) -> None:
            approval = approvals.open_question(conn, row.id, id, fetch).approval
            left = left_by(approval, yes, reason, worded(approval.questions, texts))
            approvals.leave_answer(conn, row.id, left, always=always)

        await store.write(leave, durable=True)
        return str(row.key)

    name = stored.read(path, work)
    how = ("answered" if texts else "allowed" if yes else "denied") + (", and so are all alike" if always else "")
    console().print(f"session {printable(name)}: {printable(id)} {how}", soft_wrap=True)
    return 0
