"""What a turn says to its program: its prompt, or what the caller's transcript has more than the conversation."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection

from .. import messages as transcripts
from ..ladder import Branch, Stored
from ..messages import Append, File, Fork, Message, Seed, Seen
from ..outcome import Outcome
from ..progress import text_of
from ..store import Store, spoken
from ..store.inbox import Turn as StoredTurn
from ..store.journal import Journalled
from ..types.errors import PathError
from ..types.events import ModelCall, Notice
from ..types.result import Result
from ..types.runtime import Capabilities
from ..workspace.roots import Roots


@dataclass(frozen=True, slots=True)
class Saying:
    """What the turn says. ``entries`` are its messages as the store is to recognise them; what turns noted from number
    ``since`` on is then no longer in the conversation; ``branch`` is the one that it begins, if it does."""

    text: str
    entries: list[Any]
    context: Literal["appended", "forked", "seeded", "native"] = "native"
    images: tuple[tuple[str, str], ...] = ()
    branch: Branch | None = None
    since: int | None = None
    notices: tuple[Notice, ...] = ()


async def saying(
    turn: StoredTurn,
    session: int,
    stored: Stored,
    store: Store,
    can: Capabilities,
    roots: Roots,
    *,
    refused: str | None = None,
) -> Saying:
    """Decide, while nobody else can run a turn in the session, how its conversation comes to hold what the turn's caller
    says. A program that ``refused`` to fork it, with these words, is not asked again."""
    notices = tuple(Notice(code, text) for code, text in turn.input.get("notices", ()))
    if refused is not None:
        notices = (Notice("fork_refused", f"The conversation was not forked but told anew. {refused}"),)
    if turn.input.get("messages") is None:
        said = Message("user", (turn.input["prompt"],))
        return Saying(turn.input["prompt"], transcripts.keys([said]), notices=notices)
    messages = transcripts.from_json(turn.input["messages"])
    policy = turn.input["context"]
    rows = await store.read(lambda conn: spoken.spoken_of(conn, session))
    begun = bool((stored.native or {}).get("begun"))
    seen = [Seen(row.entries, row.at, row.sure) for row in rows]
    if not rows and begun:
        seen = [Seen((), None, False)]  # turns from before transcripts were noted
    given = transcripts.keys(messages)
    plan = transcripts.plan(seen, given, policy, fork=can.fork and refused is None)
    out = Saying("", [])
    match plan:
        case Fork(turns, at):
            out = replace(out, context="forked", branch=Branch(str(uuid.uuid4()), at), since=rows[turns].first)
        case Seed() if seen:
            out = replace(out, context="seeded", branch=Branch(str(uuid.uuid4()), None), since=0)
        case Seed():
            out = replace(out, context="seeded")  # nothing was said yet: the conversation that begins now is fresh
        case Append() if policy == "native":
            pass
        case Append():
            brought = not seen and len(messages) > 1 and policy == "auto"
            out = replace(out, context="seeded" if brought else "appended")
    told = transcripts.told(messages[plan.new :], seed=out.context == "seeded", images=can.images)
    images, unread = await asyncio.to_thread(_images, told.images, roots)
    lost = [*unread, *([told.cut] if told.cut else [])]
    notices += tuple(Notice("transcript_cut", text) for text in lost)
    return replace(out, text=told.text, entries=given[plan.new :], images=images, notices=notices)


def _images(files: Sequence[File], roots: Roots) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """The pictures as the program takes them, and what became of those that are no longer what was given."""
    found: list[tuple[str, str]] = []
    problems: list[str] = []
    for file in files:
        assert file.path is not None
        try:
            root, path = roots.resolve(file.path)
            data = root.read(path, file.bytes + 1)
        except (OSError, PathError):
            data = b""
        if hashlib.sha256(data).hexdigest() == file.sha256:
            found.append((str(file.media_type), base64.b64encode(data).decode()))
        else:
            problems.append(f"The picture {file.path} was changed since it was given; it was given by its path only.")
    return tuple(found), problems


def note(
    conn: Connection,
    turn: StoredTurn,
    said: Saying | None,
    result: Result,
    events: Sequence[Journalled],
    at: str | None,
) -> None:
    """After a turn that came to its program, with its `Done`: what the conversation holds now. Of a turn that did not end
    well nobody knows how much of it the program keeps; a conversation that such a turn began is given up."""
    if said is not None and result.stop_reason == "done":
        texts = [result.text, text_of((event for event, parent in events if parent is None), whole=True)]
        if any(parent is not None for _, parent in events):
            texts.append(text_of((event for event, _ in events), whole=True))
        entries = [*said.entries, transcripts.answered(texts, turn.id)]
        spoken.note(conn, turn.session, turn.first, entries, at, since=said.since)
    elif said is None or said.branch is None:
        spoken.note(conn, turn.session, turn.first, None)


def refusal(outcome: Outcome, events: Sequence[Journalled]) -> str | None:
    """The words of a program that cannot go on with its conversation, or fork it there (it may have compacted it, or lost
    it), and has said so before it asked its model anything."""
    error = outcome.ended.error
    if error is None or error.code != "state_incompatible":
        return None
    return None if any(isinstance(event, ModelCall) for event, _ in events) else error.message
