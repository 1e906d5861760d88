"""What this process knows of one session: its program, its workspace, its callables, and the worker that serves its inbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row

from .. import portal
from ..answer import settle
from ..endpoint import Route, price, route_for
from ..keeper import KeeperError
from ..ladder import OtherVersion, Place, Stored
from ..output import Output, held
from ..progress import Progress
from ..store import approvals, queries
from ..store import files as file_queries
from ..store import trace as trace_queries
from ..store.queries import Journalled, Lease
from ..store.queries import Turn as StoredTurn
from ..telemetry.keys import Keys
from ..turn import Bounds, Journal, Outcome, Running, Stop, result_of, run_turn
from ..types.errors import CapabilityUnsupported, HarnessError, LeaseLost, SandboxError, StoreError
from ..types.events import (
    Accepted,
    Answered,
    Approval,
    FileChange,
    Notice,
    Record,
    Started,
)
from ..types.options import Options
from ..types.result import ErrorInfo, Usage
from ..types.runtime import Answer, Ended, Runtime, Steer
from ..types.sandbox import Sandbox
from ..workspace import SessionDirs, Watch
from ..workspace.artifacts import Collected, Vault
from ..workspace.roots import VIRTUAL, Roots
from . import transcript, upkeep
from .errors import error_code
from .hold import Hold, masker_of, settled_by
from .notices import prompt_of, told
from .persistence import Behalf, Persistent
from .shelf import blobs_of, shelve
from .tools import Reach, SessionTools
from .transcript import Saying

if TYPE_CHECKING:
    from ..toolserver import HostTool
    from .local import Host

_log = logging.getLogger("hostler")
_TAKES_UP = 5.0  # s that a question about the turn waits for the worker
_LOOK = 0.05  # s between looks at the inbox while another host's turn is before ours


@dataclass(frozen=True, slots=True)
class Call:
    """What belongs to one call in this process: its callbacks and the loop they run on."""

    on_approval: Callable[[Any], Any] | None = None
    on_persistence_error: Callable[[Any], Any] | None = None
    on_event: Callable[[Any], Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    api_key: str | None = None
    output: Output | None = None


class LiveSession:
    """One session in this process. All methods run on the engine loop."""

    def __init__(
        self,
        host: Host,
        row: Row[Any],
        runtime: Runtime,
        sandbox: Sandbox,
        dirs: SessionDirs,
        options: Options,
        tools: tuple[HostTool, ...],
        reach: Reach,
    ) -> None:
        self.host = host
        self.id: int = row.id
        self.key: str = row.key
        self.rules: dict[str, Any] = dict(row.rules)
        self.runtime = runtime
        self.sandbox = sandbox
        self.dirs = dirs
        self.options = options
        self.handles = 0
        self.native_id: str | None = row.native_id
        self.usage = Usage(**row.usage)
        self.cost: float | None = None if row.unpriced else row.cost
        self.running: Running | None = None
        self.hold = Hold(host, row, runtime, dirs, lambda: self.running)
        self._calls: dict[str, Call] = {}
        self._joined: dict[str, Call] = {}  # of accepted turns that somebody else accepted
        self._granted: tuple[StoredTurn, Lease] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._looked = asyncio.Event()  # the worker has seen what is before it; what was open in that is remembered
        self._accepting: set[asyncio.Task[Any]] = set()
        self._watch = Watch(sandbox.root, dirs.private)
        self.roots = Roots(dirs.workspace(sandbox.root).mounts)
        self.persistent = Persistent(host, row.id, row.key, dirs, options.persistent_dirs)
        self.vault = Vault(self.roots, os.path.join(dirs.private, "artifacts"))
        self.tools = SessionTools(self, reach)
        self.tools.offer(tools)
        self.hold.tools = lambda: self.tools.server

    # ---- in ---------------------------------------------------------------------------------------------------------

    def listen(self, callback: Callable[[Any], Any], turn: StoredTurn, loop: asyncio.AbstractEventLoop | None) -> None:
        """Have ``callback`` called with each Record of the turn. It reads the journal on its own, so that one that
        raises or blocks never holds the turn up."""
        follower = self.host.journal.follow(self.id, turn.first - 1, turn.id)

        async def tell() -> None:
            while records := await follower.batch():
                for record in records:
                    try:
                        await portal.call_back(callback, record, loop=loop)
                    except Exception as error:
                        _log.warning("on_event of session %s raised: %r", self.key, error)

        self.host.spawn(tell())

    async def accept(
        self,
        prompt: str,
        rules: dict[str, Any],
        call: Call,
        *,
        reject_busy: bool,
        extra_body: Any,
        turn_id: str | None = None,
        transcript: Mapping[str, Any] | None = None,
    ) -> StoredTurn:
        """Put a prompt into the inbox; it is safe when this returns. With the id of an accepted turn: that turn."""
        place = self._place({**self.rules, **rules}, call)  # refuse what cannot be held before anything is stored
        if place.rules["max_cost"] is not None and not await price.known(place.route):
            raise CapabilityUnsupported(
                f"max_cost needs a price, and none is known for the model {place.route.model!r}. Leave max_cost out, or use "
                "a model that the gateway or the price list knows."
            )
        self.host.check_open(self.key)
        # Whole or not at all: a caller who goes away in the middle leaves no turn that nobody serves.
        input = {"prompt": prompt, "rules": rules, "extra_body": extra_body, **(transcript or {})}
        put = self._put(place, input, call, turn_id or self.host.new_id("turn"), reject_busy)
        putting = self.host.spawn(put)
        self._accepting.add(putting)
        return await asyncio.shield(putting)

    async def _put(
        self,
        place: Place,
        input: dict[str, Any],
        call: Call,
        id: str,
        reject_busy: bool,
    ) -> StoredTurn:
        redacted = Keys(place.rules.get("redact")).mask(input["extra_body"])
        joins = id in self._calls
        self._calls.setdefault(id, call)
        try:
            turn, lease, records = await self.host.store.write(
                lambda conn: queries.accept(
                    conn,
                    self.id,
                    turn=id,
                    host=self.host.id,
                    input=input,
                    accepted=Accepted(redacted, input["prompt"][:200]),
                    reject_busy=reject_busy,
                    is_dead=self.host.is_dead,
                    now=time(),
                ),
                durable=True,
            )
        except BaseException:
            if not joins:
                self._calls.pop(id, None)
            self._nudge.set()
            raise
        finally:
            self._accepting -= {asyncio.current_task()}
        if not records and not joins:
            self._calls.pop(id, None)
            if turn.status in queries.OPEN:  # it may be another process's to run, as long as that lives
                self._joined[id] = call
        self.host.journal.publish(self.id, records)
        if (on_event := call.on_event or self.options.on_event) is not None:
            self.listen(on_event, turn, call.loop)
        if lease is not None:
            self._granted = (turn, lease)
        self.serve()
        return turn

    def serve(self) -> None:
        """Have the worker look at the inbox."""
        self._nudge.set()
        if self._worker is None or self._worker.done():
            self._looked.clear()
            self._worker = asyncio.create_task(self._serve(), name=f"hostler-session-{self.id}")

    async def stop_turn(self, turn: str | None, reason: str, *, owner: str | None = None) -> None:
        """Ask for the end of one turn, or of all that are accepted (by ``owner``), wherever they run."""
        ids = await self.host.store.write(lambda conn: queries.request_stop(conn, self.id, turn, reason, owner))
        if self.running is not None and self.running.turn in ids:
            self.running.put(Stop(reason))  # type: ignore[arg-type]

    async def interrupt(self) -> None:
        """Ask for the end of the turn that runs; those that wait go on waiting."""
        accepted = await self.host.store.read(lambda conn: queries.open_turns(conn, self.id))
        for turn in accepted:
            if turn.status == "running":
                await self.stop_turn(turn.id, "interrupted")

    async def approvals(self) -> list[Approval]:
        """The open questions of the session's turn, wherever it runs."""
        if self._worker is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), _TAKES_UP)
        if self.running is not None:
            return list(self.running.approvals.values())
        fetch = self.host.journal.fetch
        found = await self.host.store.read(lambda conn: approvals.open_questions(conn, self.id, fetch))
        return [question.approval for question in found if not question.answered]

    async def answer(self, id: str, allow: bool, reason: str | None, *, always: bool = False) -> None:
        """Answer a question; one of a turn that runs in another process is left for it there."""
        approval = self.running.approvals.get(id) if self.running is not None else None
        if approval is None:
            left = approvals.Left(id, allow, reason)
            await self.host.store.write(lambda conn: approvals.leave_answer(conn, self.id, left, always=always))
            return
        if always:
            await self.host.store.write(lambda conn: approvals.remember(conn, self.id, approval, allow))
        if self.running is not None:
            self.running.put(Answer(id, allow, reason))

    def steer(self, text: str) -> str:
        """Say something to the running turn; its id."""
        if not self.runtime.capabilities.steer:
            raise CapabilityUnsupported(f"{self.runtime.name} cannot be steered; use on_busy='queue' or 'interrupt'.")
        if self.running is None:
            raise HarnessError(f"Session {self.key!r} runs no turn here that could be steered.")
        self.running.put(Steer(self.host.new_id("steer"), told(text, (), self.names)))
        return self.running.turn

    # ---- the worker -------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            while self._granted is None and self._accepting:
                self._nudge.clear()
                await self._nudge.wait()  # a turn is on its way in, maybe with the lease
            granted, self._granted = self._granted, None
            if granted is None:
                self._nudge.clear()
                try:
                    found = await self.host.store.write(
                        lambda conn: queries.next_turn(conn, self.id, self.host.id, self.host.is_dead)
                    )
                except HarnessError as error:  # the store fails: those who wait are told, and may try again
                    self._fail_all(error)
                    return
                if found is None or found[1] is None:
                    self._looked.set()
                if found is None:
                    self._joined.clear()
                if found is None or (found[1] is None and not self._calls and not self._joined):
                    return  # nothing to do, or nothing of ours waits behind the others'
                if found[1] is None:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._nudge.wait(), _LOOK)
                    continue
                granted = (found[0], found[1])
            turn, lease = granted
            try:
                await self._run(turn, lease)
            except LeaseLost:
                await self.hold.let_go()
            except Exception as error:
                _log.exception(
                    "Session %s: turn %s cannot be journalled here and is left to another host", self.key, turn.id
                )
                await self.hold.let_go()
                await self.host.give_up(self.id)
                self._fail_all(error, turn.id)
                return
            finally:
                self._calls.pop(turn.id, None)
                self._joined.pop(turn.id, None)
                self.running = None
                if self.hold.program is not None:
                    self.host.slots.rest(self.hold)
                else:
                    self.host.slots.leave(self.hold)
                self.host.journal.wake(self.id)
            if turn.owner == self.host.id and not self._calls and not self._joined and self._granted is None:
                return  # nobody here waits for more

    def _fail_all(self, error: Exception, *turns: str) -> None:
        for id in {*turns, *self._calls, *self._joined}:
            self.host.journal.fail(self.id, id, error)
        self._calls.clear()
        self._joined.clear()

    def _call_of(self, turn: StoredTurn) -> Call:
        """What this process brought for the turn; nothing for one that another process accepted."""
        return self._calls.get(turn.id) or self._joined.get(turn.id) or Call()

    async def _run(self, turn: StoredTurn, lease: Lease) -> None:
        call = self._call_of(turn)
        rules = {**self.rules, **turn.input["rules"]}
        recovered = turn.status == "running"
        running = self.running = Running(turn.id)
        self.host.journal.wake(self.id)
        if recovered:
            await self._remember(running, turn)
        self._looked.set()
        if turn.stop is not None:
            running.put(Stop(turn.stop))  # type: ignore[arg-type]
        place: Place | None = None
        said: Saying | None = None
        if turn.stop is not None and not recovered:  # nobody wants it any more
            await self._finish(turn, lease, running, Outcome(Ended(turn.stop)), None)  # type: ignore[arg-type]
            return
        if not await self._slot(running, recovered):
            assert running.stop is not None
            await self._finish(turn, lease, running, Outcome(Ended(running.stop)), None)
            return
        try:
            place = self._place(rules, call)
            self.tools.begin_turn(running, lease, rules, turn.input["extra_body"], call.loop, masker_of(place))
            behalf = Behalf(turn.id, turn.input["extra_body"], call.loop, running.stopping)
            strict = rules.get("on_persistence_error") == "raise"
            await self.persistent.begin(lease, behalf, recovered=recovered, strict=strict)
            looking = self.hold.looking = asyncio.create_task(asyncio.to_thread(self._watch.begin, turn.id))
            try:
                said, outcome = await self._speak(turn, lease, running, place, call, looking, recovered)
            finally:
                await looking
        except (LeaseLost, StoreError, OtherVersion):
            raise
        except HarnessError as error:
            outcome = Outcome(Ended("error", error=ErrorInfo(error_code(error), str(error))))
        except OSError as error:  # what an agent left in its folders: this turn's fault, not the store's
            failed = SandboxError(f"The folders of session {self.key!r} cannot be used: {error}.")
            outcome = Outcome(Ended("error", error=ErrorInfo(error_code(failed), str(failed))))
        except Exception as error:  # not foreseen: the turn gets its Done all the same, and the program is not trusted
            _log.exception("Session %s: turn %s failed inside hostler", self.key, turn.id)
            await self.hold.end()
            why = f"hostler failed in this turn: {type(error).__name__}: {error}"
            outcome = Outcome(Ended("error", error=ErrorInfo("internal_error", why)))
        await self._finish(turn, lease, running, outcome, place, said)

    async def _speak(
        self,
        turn: StoredTurn,
        lease: Lease,
        running: Running,
        place: Place,
        call: Call,
        looking: asyncio.Task[None],
        recovered: bool,
    ) -> tuple[Saying, Outcome]:
        """Bring the program to the conversation that the turn goes on with, and run the turn. ``looking`` sees what the
        workspace is like before it."""
        refused: str | None = None
        output = held(place.rules.get("output"), call.output, self.options.output)
        while True:
            stored = await self.hold.known(lease)
            said = await transcript.saying(
                turn, self.id, stored, self.host.store, self.runtime.capabilities, self.roots, refused=refused
            )
            reached = await self.hold.reach(place, lease, running, recovered, said.branch)
            if isinstance(reached, Outcome):
                if output is not None:
                    end, _ = await settle(output, reached.ended, running.events, stop=None, last=True)
                    reached = replace(reached, ended=end)
                return said, reached
            brief = await self.persistent.brief(self.names, self.native_id if said.branch is None else None)
            if not self.runtime.model_first:
                await looking
            running.spoken = True
            started = Started(reached.resumed, lease.epoch, recovered)
            outcome = await run_turn(
                running,
                (started, *(said.notices if reached.progress.turn != turn.id else ())),
                reached.program,
                reached.progress,
                self.runtime.codec,
                prompt_of(turn, said, reached, place, output, self.names, brief),
                Bounds(
                    place.rules["timeout"],
                    place.rules["max_turns"],
                    place.rules["max_cost"],
                    self.host.settings.approval_ttl,
                    self.host.settings.start_timeout,
                ),
                self._journal(lease, turn.id, place.rules.get("trace", True)),
                masker_of(place),
                self._approver(running, turn, call),
                output,
            )
            if (refused := transcript.refusal(said, outcome, running.events)) is None:
                return said, outcome
            await self.hold.end()

    async def _slot(self, running: Running, recovered: bool) -> bool:
        """Wait for a slot; False when the turn was stopped before it had one. A recovered one has a program to end."""
        taking = asyncio.create_task(self.host.slots.take(self.hold))
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

    async def _finish(
        self,
        turn: StoredTurn,
        lease: Lease,
        running: Running,
        outcome: Outcome,
        place: Place | None,
        said: Saying | None = None,
    ) -> None:
        if running.stop and outcome.ended.stop_reason != "done":
            await asyncio.sleep(0.02)  # a model call that the end cut off is still to be counted
        self.tools.end_turn()
        program = self.hold.program
        if program is not None and outcome.program_alive:
            program.put_back(outcome.leftover)
        late: list[Journalled] = [(call, None) for call in self.hold.late_calls()]
        events: list[Journalled] = [*outcome.events, *late]
        running.events += late
        stored = await self.hold.known(lease)
        keeping = self.host.store.read(lambda conn: file_queries.kept(conn, self.id))
        files, manifest, results = await asyncio.to_thread(self._settle, stored, outcome)
        marked, kept = await keeping
        collected = Collected()
        if marked or results:
            collected = await asyncio.to_thread(self.vault.collect, marked, self.host.settings.artifact_limit)
        masker = masker_of(place)
        files = masker.mask(files)
        events += [(change, None) for change in files]
        if not self._watch.complete:
            unknown = Notice(
                "changes_unknown", "The workspace cannot be read or is too large to tell what changed in it."
            )
            events.append((unknown, None))
            running.events.append((unknown, None))
        for problem in collected.problems:
            events.append((Notice("artifact_not_kept", problem), None))
            running.events.append(events[-1])
        call = self._call_of(turn)
        on_error = call.on_persistence_error or self.options.on_persistence_error
        persistence, committed = await self.persistent.end(
            lease,
            Behalf(turn.id, turn.input["extra_body"], call.loop, running.stopping),
            done=outcome.ended.stop_reason == "done",
            on_error=on_error if callable(on_error) else None,
        )
        events += [(event, None) for event in committed]
        running.events += [(event, None) for event in committed]
        result = result_of(outcome.ended, running.events, files, session=self.key, turn=turn.id)
        given_up = stored.branch is not None and result.stop_reason != "done"
        known = (stored.native or {}).get("begun")
        begun = known or result.stop_reason == "done" or (result.usage.calls > 0 and not given_up)
        manifest = {**manifest, "begun": bool(begun)}  # there is a history, which must not be lost
        artifacts = tuple(file for file in collected.files if kept.get(file.path) != file.sha256)
        result = replace(
            masker.mask(result),
            artifacts=artifacts,
            context=said.context if said else "native",
            persistence=masker.mask(persistence),
        )
        after = queries.GONE
        if given_up:
            pass
        elif outcome.progress is None:
            after = queries.UNTOUCHED
        elif outcome.program_alive and program is not None:
            after = queries.read_up_to(outcome.progress.frame, outcome.progress.to_dict())
        rules = place.rules if place is not None else self.rules
        extra_body = turn.input["extra_body"]
        forget = not rules.get("trace", True) or Keys(rules.get("redact")).mask(extra_body) is not extra_body
        forget = forget or "messages" in turn.input  # the transcript is its caller's
        stored_events = await shelve(events, blobs_of(self.dirs)) if rules.get("trace", True) else events

        def write(conn: Connection) -> list[Record]:
            records = queries.finish(
                conn,
                lease,
                turn=turn.id,
                events=stored_events,
                result=result,
                program=after,
                native=manifest,
                native_id=outcome.native_id,
                now=time(),
            )
            if said is not None or running.spoken:
                transcript.note(conn, turn, said, result, running.events, outcome.ended.at)
            file_queries.keep(conn, self.id, turn.id, artifacts)
            self.tools.forget_calls(conn, turn.id)
            if turn.notices and outcome.progress is not None:
                file_queries.forget_notices(conn, self.id, turn.first)
            if forget:
                trace_queries.forget_input(conn, turn.id, turn.input)
            if not rules.get("trace", True):
                trace_queries.erase(conn, self.id, turn.id)
            return records

        records = await self.host.store.write(write, durable=True)
        settled = replace(settled_by(stored, outcome), finished=stored.finished + 1, native=manifest)
        self.hold.learn(replace(settled, **{name: value for name, value in after.items() if name != "status"}))
        self.running = None
        self.usage += result.usage
        self.cost = None if self.cost is None or result.cost is None else self.cost + result.cost
        self.native_id = settled.native_id or self.native_id
        if program is not None and outcome.program_alive and outcome.progress is not None:
            with contextlib.suppress(KeeperError):  # it died after its turn: the next one finds out
                await program.close_turn(outcome.progress.frame)
        self.host.journal.publish(self.id, records)
        await asyncio.to_thread(self._watch.save)
        if outcome.progress is not None:
            await self.persistent.told(self.native_id)
        if after is queries.GONE:
            await self.hold.end()

    def _settle(self, stored: Stored, outcome: Outcome) -> tuple[tuple[FileChange, ...], dict[str, Any], bool]:
        """After the turn, in a worker thread: what changed in the workspace, the program's own history saved, and
        whether there is anything under /artifacts."""
        files = self._watch.changes()
        return files, self.hold.save_turn(stored, outcome), not self.vault.empty()

    async def _remember(self, running: Running, turn: StoredTurn) -> None:
        """Fill in what an earlier host journalled of this turn."""
        after = turn.first - 1
        while found := await self._records(turn.id, after):
            for record in found:
                running.events.append((record.event, record.parent))
                if isinstance(record.event, Approval):
                    running.approvals[record.event.id] = record.event
                elif isinstance(record.event, Answered):
                    running.approvals.pop(record.event.id, None)
            after = found[-1].seq

    async def _records(self, turn: str, after: int) -> list[Record]:
        fetch = self.host.journal.fetch
        return await self.host.store.read(
            lambda conn: queries.read_records(conn, self.id, after, turn=turn, fetch=fetch)
        )

    @property
    def names(self) -> Roots | None:
        """The folders whose names the program does not know; None where it sees them as the app does."""
        return None if self.sandbox.workdir == VIRTUAL else self.roots

    def place(self) -> Place:
        """Where and how the program runs under the session's own rules."""
        return self._place(self.rules, Call())

    def renew(self, options: Options, rules: dict[str, Any], tools: tuple[HostTool, ...], sandbox: Sandbox) -> None:
        """Another handle of this process brings the session's callables, and maybe other rules, again."""
        self.sandbox = sandbox  # on the same folder, which has the same names in it
        self.options = options
        self.rules = dict(rules)
        self.persistent.given = options.persistent_dirs
        self.tools.offer(tools)

    def _place(self, rules: dict[str, Any], call: Call) -> Place:
        settings = self.host.settings
        return Place(
            runtime=self.runtime,
            sandbox=self.sandbox,
            dirs=self.dirs,
            rules=rules,
            route=route_of(self.runtime, rules, call.api_key or self.options.api_key),
            approvals=(call.on_approval or self.options.on_approval) is not None or rules["permissions"] == "ask",
            tools=self.tools.server.digest if self.tools.server is not None else None,
            own_tools=self.tools.server.names if self.tools.server is not None else frozenset(),
            park_ttl=settings.park_ttl,
            orphan_ttl=settings.orphan_ttl,
            spool_limit=settings.spool_limit,
        )

    # ---- out --------------------------------------------------------------------------------------------------------

    def _journal(self, lease: Lease, turn: str, trace: bool) -> Journal:
        blobs = blobs_of(self.dirs)

        async def append(given: Any, progress: Progress, native_id: str | None) -> Any:
            events = await shelve(given, blobs) if trace else given
            return await self.host.store.write(
                lambda conn: queries.append(
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

        return Journal(append, lambda records: self.host.journal.publish(self.id, records))

    def _approver(self, running: Running, turn: StoredTurn, call: Call) -> Callable[[Approval], None]:
        callback = call.on_approval or self.options.on_approval

        async def ask(approval: Approval) -> None:
            known = await self.host.store.read(lambda conn: approvals.remembered(conn, self.id, approval))
            if known is not None:
                running.put(Answer(approval.id, known, "Answered for good before."))
                return
            if callback is None:
                return
            try:
                allow = await portal.call_back(
                    callback, replace(approval, extra_body=turn.input["extra_body"]), loop=call.loop
                )
                answer = Answer(approval.id, bool(allow), None if allow else "The application said no.")
            except Exception as error:
                answer = Answer(approval.id, False, f"The application's on_approval failed: {error!r}")
            running.put(answer)

        def spawn(approval: Approval) -> None:
            self.host.spawn(ask(approval))

        return spawn

    # ---- ends -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the turn and the program; what finished turns left stays in the store."""
        await self._ended(status="idle" if self.rules.get("keyed") else "closed")

    async def stop(self) -> None:
        """End the program; the session can be resumed."""
        await self._ended(status="idle")

    async def detach(self) -> None:
        """Leave the program, and a turn if one runs, to its keeper."""
        await self._accepted()
        worker = self._worker
        if worker is not None and not worker.done() and self.running is None and not self._calls:
            await asyncio.wait([worker])  # it only tidies up behind the last turn
        elif worker is not None and not worker.done():
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            await self.host.store.write(lambda conn: queries.disown(conn, self.id, self.host.id), durable=True)
        await self.hold.let_go()
        with contextlib.suppress(HarnessError):  # this session is parked, whatever the others do
            await upkeep.limit_parked(self.host)

    async def part(self) -> None:
        """This process ends: close, unless it runs a turn that is another's; that is left to who comes next."""
        try:
            await self._part()
        except StoreError:
            await self._abandon()

    async def _part(self) -> None:
        worker = self._worker
        if worker is not None and not worker.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), _TAKES_UP)
        if worker is None or worker.done() or self.running is None or self.running.turn in self._calls:
            await self.close()
            return
        await self._cancel_own()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await self.host.store.write(lambda conn: queries.disown(conn, self.id, self.host.id), durable=True)
        await self.hold.let_go()

    async def _cancel_own(self) -> None:
        """Other processes may have turns in the inbox, too."""
        self._joined.clear()
        await self.stop_turn(None, "cancelled", owner=self.host.id)

    async def _accepted(self) -> None:
        """What is on its way in is in: it would begin behind the end."""
        while self._accepting:
            await asyncio.wait(tuple(self._accepting))

    async def _quiesce(self) -> None:
        await self._accepted()
        worker = self._worker
        if worker is not None and not worker.done():
            await self._cancel_own()
            if self.running is not None:
                await self.stop_turn(self.running.turn, "cancelled")
            done, _ = await asyncio.wait([worker], timeout=10)
            if not done:
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)
                await self.hold.end()
                await self.host.give_up(self.id)  # its Done is written by whoever comes next

    async def _ended(self, status: str) -> None:
        try:
            await self._quiesce()
            await self._end(status)
        except StoreError:
            await self._abandon()
            raise

    async def _abandon(self) -> None:
        """Nothing can be written: the program is ended all the same, and its turn is left to who comes next."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self.hold.end()
        await self.host.give_up(self.id)
        await asyncio.to_thread(self._watch.close)

    async def _end(self, status: str) -> None:
        lease = await self.host.store.write(
            lambda conn: queries.claim_idle(conn, self.id, self.host.id, self.host.is_dead)
        )
        if lease is None:  # another host's turn runs or waits in it, or one is left to whoever comes: not ours to end
            await self.hold.let_go()
            return
        try:
            if self.hold.program is not None and self.hold.program.epoch == lease.epoch:
                await self.hold.end()
            else:
                await self.hold.let_go()
                await self.hold.end_stored(lease)
            await self.hold.without_program(lease)
        finally:
            await self.host.store.write(lambda conn: queries.release(conn, lease, status), durable=True)
            await asyncio.to_thread(self._watch.close)


def route_of(runtime: Runtime, rules: Mapping[str, Any], api_key: str | None) -> Route:
    """Where the model calls go under these rules. Raises OptionsMismatch naming what is missing."""
    return route_for(rules["model"], wire=runtime.wire, api_base=rules["api_base"], api_key=api_key, environ=os.environ)
