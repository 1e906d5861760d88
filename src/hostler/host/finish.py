"""The end of a turn: what it left is looked at, committed, summed up and written with its one `Done`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from ..keeper import KeeperError
from ..ladder import Place, Stored
from ..outcome import Outcome, result_of
from ..running import Running
from ..store import files as file_queries
from ..store import journal
from ..store import trace as trace_queries
from ..store.inbox import Turn as StoredTurn
from ..store.journal import Journalled
from ..store.queries import Lease
from ..telemetry.keys import Keys
from ..types.events import FileChange, ModelCall, Notice, Record
from ..types.result import FileRef, Persistence, Result
from ..workspace.artifacts import Collected
from . import loss, transcript
from .hold import forget, masker_of, settled_by
from .persistence import Behalf
from .shelf import blobs_of, shelve
from .transcript import Saying

if TYPE_CHECKING:
    from .live import Call, LiveSession

_CUT_OFF = 0.02  # s in which a model call that the end of the turn cut off is still counted


@dataclass(frozen=True, slots=True)
class Ending:
    """A turn that is over for its program. Without ``place`` it never came that far; ``late`` are model calls that no
    turn has been told of yet, ``stored`` is the session as the last step left it."""

    turn: StoredTurn
    lease: Lease
    running: Running
    outcome: Outcome
    place: Place | None
    said: Saying | None
    stored: Stored
    late: tuple[Journalled, ...]

    @property
    def done(self) -> bool:
        return self.outcome.ended.stop_reason == "done"


@dataclass(frozen=True, slots=True)
class Left:
    """What the turn left in the session's folders: changes, the program's history as it was saved, whether there are
    ``results``, which are then ``collected`` with the files that were ``marked``. ``kept`` are the artifacts from before,
    path to SHA-256; ``known`` is False where changes cannot be told."""

    changes: tuple[FileChange, ...]
    native: dict[str, Any]
    known: bool
    results: bool
    marked: Mapping[str, str | None]
    collected: Collected = field(default_factory=Collected)
    kept: Mapping[str, str] = field(default_factory=dict)


class _MarkedSince(Exception):
    """Other files are artifacts than those that were collected: somebody, maybe in another process, has staged some."""

    def __init__(self, marked: Mapping[str, str | None]) -> None:
        self.marked = marked


@dataclass(frozen=True, slots=True)
class Conclusion:
    """All that is to be written of the end."""

    events: tuple[Journalled, ...]
    result: Result
    native: dict[str, Any]
    program: journal.ProgramAfter


async def finish(
    live: LiveSession,
    turn: StoredTurn,
    lease: Lease,
    running: Running,
    outcome: Outcome,
    place: Place | None,
    said: Saying | None,
    call: Call,
) -> None:
    """Bring a turn that is over for its program to its `Done`."""
    if running.stop and outcome.ended.stop_reason != "done":
        await asyncio.sleep(_CUT_OFF)
    live.tools.end_turn()
    program = live.hold.program if outcome.program_alive else None
    if program is not None:
        program.put_back(outcome.leftover)
    late = tuple((model_call, None) for model_call in live.hold.late_calls())
    ending = Ending(turn, lease, running, outcome, place, said, await live.hold.known(lease), late)
    left = await _look(live, ending)
    persistence, committed = await _commit(live, ending, call)
    while True:
        end = conclude(ending, left, persistence, committed, key=live.key, alive=program is not None)
        try:
            records = await _write(live, ending, left, end)
            break
        except _MarkedSince as since:  # what was marked is seen where it cannot change, so nobody looks before
            left = await _collect(live, replace(left, marked=since.marked))
    live.marked = left.marked
    if loss.is_told(running.events):
        live.dirs.forget_loss()
    settled = replace(settled_by(ending.stored, outcome), finished=ending.stored.finished + 1, native=end.native)
    live.hold.learn(replace(settled, **{name: value for name, value in end.program.items() if name != "status"}))
    live.ended(end.result, settled.native_id)
    live.host.journal.publish(live.id, records)
    if program is not None and outcome.progress is not None:
        with contextlib.suppress(KeeperError):  # it died after its turn: the next one finds out
            await program.close_turn(outcome.progress.frame)
    await asyncio.to_thread(live.watch.save)
    if outcome.progress is not None:
        await live.persistent.told(live.native_id)
    if end.program is journal.GONE:
        await live.hold.end()
        await forget(ending.stored)


async def _look(live: LiveSession, ending: Ending) -> Left:
    """What changed in the workspace, the program's own history saved, and what lies under /artifacts or is marked."""

    def look() -> Left:
        changes = live.watch.changes()
        native = live.hold.save_turn(ending.stored, ending.outcome)
        return Left(changes, native, live.watch.complete, not live.vault.empty(), live.marked)

    return await _collect(live, await asyncio.to_thread(look))


async def _collect(live: LiveSession, left: Left) -> Left:
    if not left.results and not left.marked:
        return replace(left, collected=Collected())
    collected = await asyncio.to_thread(live.vault.collect, left.marked, live.host.settings.artifact_limit)
    kept = await live.host.store.read(lambda conn: file_queries.kept(conn, live.id))
    return replace(left, collected=collected, kept=kept)


async def _commit(live: LiveSession, ending: Ending, call: Call) -> tuple[Persistence, Sequence[Any]]:
    """What the agent did in the persistent dirs, as far as they are committed now; and what is to be told of it."""
    on_error = call.on_persistence_error or live.options.on_persistence_error
    return await live.persistent.end(
        ending.lease,
        Behalf(ending.turn.id, ending.turn.input["extra_body"], call.loop, ending.running.stopping),
        done=ending.done,
        on_error=on_error if callable(on_error) else None,
    )


def conclude(
    ending: Ending, left: Left, persistence: Persistence, committed: Sequence[Any], *, key: str, alive: bool
) -> Conclusion:
    """The last records, the Result and what is known of the program from now on. Pure; ``alive``: it can take another
    turn."""
    outcome, stored, masker = ending.outcome, ending.stored, masker_of(ending.place)
    changes = masker.mask(left.changes)
    notices: list[Journalled] = []
    if not left.known:
        told = "The workspace cannot be read or is too large to tell what changed in it."
        notices.append((Notice("changes_unknown", told), None))
    notices += [(Notice("artifact_not_kept", problem), None) for problem in left.collected.problems]
    notices += [(event, None) for event in committed]
    behind = (*ending.late, *((change, None) for change in changes), *notices)
    happened = [*ending.running.events, *ending.late, *notices]
    result = result_of(outcome.ended, happened, changes, session=key, turn=ending.turn.id)
    result = replace(
        masker.mask(result),
        artifacts=_new(left),
        context=ending.said.context if ending.said else "native",
        persistence=masker.mask(persistence),
    )
    given_up = stored.branch is not None and not ending.done
    known = (stored.native or {}).get("begun")
    called = any(isinstance(event, ModelCall) for event, _ in happened)  # a refused one, too: the prompt is in there
    begun = known or ending.done or (called and not given_up)
    program = journal.GONE
    if given_up:
        pass
    elif outcome.progress is None:
        program = journal.UNTOUCHED
    elif alive:
        program = journal.read_up_to(outcome.progress.frame, outcome.progress.to_dict())
    native = {**left.native, "begun": bool(begun)}  # there is a history, which must not be lost
    return Conclusion((*outcome.events, *behind), result, native, program)


def _new(left: Left) -> tuple[FileRef, ...]:
    return tuple(file for file in left.collected.files if left.kept.get(file.path) != file.sha256)


async def _write(live: LiveSession, ending: Ending, left: Left, end: Conclusion) -> list[Record]:
    """All of it in one transaction; the records that readers get. Raises _MarkedSince."""
    turn, rules = ending.turn, ending.place.rules if ending.place is not None else live.rules
    trace = rules.get("trace", True)
    events = await shelve(end.events, blobs_of(live.dirs)) if trace else end.events
    extra_body = turn.input["extra_body"]
    redacted = Keys(rules.get("redact")).mask(extra_body) is not extra_body
    forget = not trace or redacted or "messages" in turn.input  # the transcript is its caller's

    def write(conn: Connection) -> list[Record]:
        if (marked := file_queries.marked(conn, live.id)) != left.marked:
            raise _MarkedSince(marked)
        records = journal.finish(
            conn,
            ending.lease,
            turn=turn.id,
            events=events,
            result=end.result,
            program=end.program,
            native=end.native,
            native_id=ending.outcome.native_id,
            now=time(),
        )
        if ending.said is not None or ending.running.spoken:
            transcript.note(conn, turn, ending.said, end.result, ending.running.events, ending.outcome.ended.at)
        file_queries.keep(conn, live.id, turn.id, end.result.artifacts)
        live.tools.forget_calls(conn, turn.id)
        if turn.notices and ending.outcome.progress is not None:
            file_queries.forget_notices(conn, live.id, turn.first)
        if forget:
            trace_queries.forget_input(conn, turn.id, turn.input)
        if not trace:
            trace_queries.erase(conn, live.id, turn.id)
        return records

    return await live.host.store.write(write, durable=True)
