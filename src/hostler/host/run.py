"""One turn in this process: its program reached, spoken to and heard to the end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any

from .. import ladder
from ..answer import settle
from ..ladder import OtherVersion, Place
from ..outcome import Outcome
from ..output import held
from ..progress import Progress
from ..running import Running, Stop
from ..steps import Journal
from ..store import journal
from ..store.inbox import Turn as StoredTurn
from ..store.queries import Lease
from ..turn import Bounds, run_turn
from ..types.errors import HarnessError, LeaseLost, SandboxError, StoreError
from ..types.events import Answered, Approval, ModelCall, Notice, Record, Started
from ..types.result import ErrorInfo
from ..types.runtime import Ended
from ..workspace import native, snapshots
from . import loss, transcript
from .asking import approver
from .errors import error_code
from .finish import finish
from .hold import masker_of
from .notices import prompt_of
from .persistence import Behalf
from .shelf import blobs_of, shelve
from .transcript import Saying

if TYPE_CHECKING:
    from .live import Call, LiveSession

_log = logging.getLogger("hostler")
_RENEWED = "{} Its private home was set aside ({}) and made anew, with the conversation as it was saved."


async def run(live: LiveSession, turn: StoredTurn, lease: Lease, call: Call) -> None:
    """Bring a turn that this process has the lease for to its `Done`."""
    rules = {**live.rules, **turn.input["rules"]}
    recovered = turn.status == "running"
    running = live.running = Running(turn.id)
    live.host.journal.wake(live.id)
    if recovered:
        await _remember(live, running, turn)
    live.looked.set()
    if turn.stop is not None:
        running.put(Stop(turn.stop))  # type: ignore[arg-type]
    place: Place | None = None
    said: Saying | None = None
    if turn.stop is not None and not recovered:  # nobody wants it any more
        outcome = Outcome(Ended(turn.stop))  # type: ignore[arg-type]
        await finish(live, turn, lease, running, outcome, None, None, call)
        return
    if not await _slot(live, running, recovered):
        assert running.stop is not None
        await finish(live, turn, lease, running, Outcome(Ended(running.stop)), None, None, call)
        return
    try:
        place = live.place_of(rules, call)
        about = (rules, turn.input["extra_body"], call.loop, masker_of(place))
        live.tools.begin_turn(running, lease, *about, asks=place.approvals)
        behalf = Behalf(turn.id, turn.input["extra_body"], call.loop, running.stopping)
        strict = rules.get("on_persistence_error") == "raise"
        await live.persistent.begin(lease, behalf, recovered=recovered, strict=strict)
        had = (await live.hold.known(lease)).finished > 0
        fingerprint = await asyncio.to_thread(_prepared, live, place, had=had)
        looking = live.hold.looking = asyncio.create_task(asyncio.to_thread(_look, live, turn.id))
        try:
            said, outcome = await _speak(live, turn, lease, running, place, fingerprint, call, looking, recovered)
        finally:
            await looking
    except (LeaseLost, StoreError, OtherVersion):
        raise
    except HarnessError as error:
        await _not_in_mid_turn(live, running)
        outcome = Outcome(Ended("error", error=ErrorInfo(error_code(error), str(error))))
    except OSError as error:  # what an agent left in its folders: this turn's fault, not the store's
        await _not_in_mid_turn(live, running)
        failed = SandboxError(f"The folders of session {live.key!r} cannot be used: {error}.")
        outcome = Outcome(Ended("error", error=ErrorInfo(error_code(failed), str(failed))))
    except Exception as error:  # not foreseen: the turn gets its Done all the same, and the program is not trusted
        _log.exception("Session %s: turn %s failed inside hostler", live.key, turn.id)
        await live.hold.end()
        why = f"hostler failed in this turn: {type(error).__name__}: {error}"
        outcome = Outcome(Ended("error", error=ErrorInfo("internal_error", why)))
    await finish(live, turn, lease, running, outcome, place, said, call)


def _prepared(live: LiveSession, place: Place, *, had: bool) -> str:
    """Have the workspace there, of a session that ``had`` turns or not; the fingerprint of a program that can be used."""
    if live.sandbox.root == live.dirs.session:
        live.dirs.make_workspace(had=had)
    return place.fingerprint()


def _look(live: LiveSession, turn: str) -> None:
    # What an app left that was killed is no change of the turn's.
    snapshots.tidy(live.sandbox.root, live.dirs.snapshots)
    live.watch.begin(turn)


async def _not_in_mid_turn(live: LiveSession, running: Running) -> None:
    """The turn failed outside of its program, which may have its prompt: the next turn gets another one."""
    if running.spoken:
        await live.hold.end()


async def _speak(
    live: LiveSession,
    turn: StoredTurn,
    lease: Lease,
    running: Running,
    place: Place,
    fingerprint: str,
    call: Call,
    looking: asyncio.Task[None],
    recovered: bool,
) -> tuple[Saying, Outcome]:
    """Bring the program to the conversation that the turn goes on with, and run the turn. ``looking`` sees what the
    workspace is like before it."""
    refused: str | None = None
    renewed: native.Renewed | None = None
    fork_refused: str | None = None
    output = held(place.rules.get("output"), call.output, live.options.output)
    while True:
        stored = await live.hold.known(lease)
        said = await transcript.saying(
            turn, live.id, stored, live.host.store, live.runtime.capabilities, live.roots, refused=fork_refused
        )
        reached = await live.hold.reach(place, fingerprint, lease, running, recovered and refused is None, said.branch)
        if isinstance(reached, Outcome):
            if output is not None:
                end, _ = await settle(output, reached.ended, running.events, stop=None, last=True)
                reached = replace(reached, ended=end)
            return said, reached
        brief = await live.persistent.brief(live.names, live.native_id if said.branch is None else None)
        if not live.runtime.model_first:
            await looking
        running.spoken = True
        started = Started(reached.resumed, lease.epoch, recovered)
        notices = said.notices if reached.progress.turn != turn.id else ()
        if renewed is not None:
            notices = (Notice("home_renewed", _RENEWED.format(refused, renewed.aside)),)
        outcome = await run_turn(
            running,
            (started, *reached.notices, *notices, *loss.notices(live, running)),
            reached.program,
            reached.progress,
            live.runtime.codec,
            prompt_of(turn, said, reached, place, output, live.names, brief),
            Bounds(
                place.rules["timeout"],
                place.rules["max_turns"],
                place.rules["max_cost"],
                live.host.settings.approval_ttl,
                live.host.settings.start_timeout,
                frozenset(name for name, spec in place.rules["mcp_servers"].items() if spec.get("required")),
            ),
            _journal(live, lease, turn.id, place.rules.get("trace", True)),
            masker_of(place),
            approver(live, running, turn.input["extra_body"], call),
            output,
        )
        if (refused := transcript.refusal(outcome, running.events)) is None:
            return said, outcome
        await live.hold.end()
        if said.branch is not None and said.branch.at is not None:
            fork_refused = refused
            continue
        if renewed is not None:  # it was not for what else is in its home
            await asyncio.to_thread(renewed.undo)
            return said, outcome
        if reached.resumed == "native" and not reached.progress.frame:
            renewed = await asyncio.to_thread(ladder.renew_home, stored, place)
        if renewed is None:
            return said, outcome


async def _slot(live: LiveSession, running: Running, recovered: bool) -> bool:
    """Wait for a slot; False when the turn was stopped before it had one. A recovered one has a program to end."""
    if live.host.slots.take_own(live.hold):
        return True
    taking = asyncio.create_task(live.host.slots.take(live.hold))
    stopping = asyncio.create_task(running.stopping.wait())
    try:
        await asyncio.wait([taking] if recovered else [taking, stopping], return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            await taking
            return True
        return False
    finally:
        stopping.cancel()
        taking.cancel()
        await asyncio.gather(taking, stopping, return_exceptions=True)


async def _remember(live: LiveSession, running: Running, turn: StoredTurn) -> None:
    """Fill in what an earlier host journalled of this turn."""
    after = turn.first - 1
    while found := await _records(live, turn.id, after):
        for record in found:
            running.events.append((record.event, record.parent))
            if isinstance(record.event, ModelCall):
                running.called(record.event)
            if isinstance(record.event, Approval):
                running.approvals[record.event.id] = record.event
            elif isinstance(record.event, Answered):
                running.approvals.pop(record.event.id, None)
        after = found[-1].seq


async def _records(live: LiveSession, turn: str, after: int) -> list[Record]:
    fetch = live.host.journal.fetch
    return await live.host.store.read(lambda conn: journal.read_records(conn, live.id, after, turn=turn, fetch=fetch))


def _journal(live: LiveSession, lease: Lease, turn: str, trace: bool) -> Journal:
    blobs = blobs_of(live.dirs)

    async def append(given: Any, progress: Progress, native_id: str | None) -> Any:
        events = await shelve(given, blobs) if trace else given
        return await live.host.store.write(
            lambda conn: journal.append(
                conn,
                lease,
                turn=turn,
                events=events,
                frame=progress.frame,
                progress=progress.to_dict(),
                native_id=native_id,
                now=time(),
            )
        )

    return Journal(append, lambda records: live.host.journal.publish(live.id, records))
