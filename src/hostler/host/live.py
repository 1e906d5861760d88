"""What this process knows of one session: its program, its workspace, its callables, and the worker that serves its inbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from .. import portal
from ..endpoint import Route, price, route_for
from ..ladder import Place
from ..output import Output
from ..store import approvals, inbox, queries
from ..store.inbox import Turn as StoredTurn
from ..store.queries import Lease
from ..telemetry.keys import Keys
from ..turn import Running, Stop
from ..types.errors import CapabilityUnsupported, HarnessError, LeaseLost, StoreError
from ..types.events import (
    Accepted,
    Approval,
)
from ..types.options import Options
from ..types.questions import Answers
from ..types.result import Result, Usage
from ..types.runtime import Answer, Runtime, Steer
from ..types.sandbox import Sandbox
from ..workspace import SessionDirs, Watch
from ..workspace.artifacts import Vault
from ..workspace.roots import Names, Roots
from . import upkeep
from .asking import leave, left_by
from .hold import Hold
from .notices import told
from .persistence import Persistent
from .run import run
from .tools import Reach, SessionTools

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
        self.marked: Mapping[str, str | None] = row.marked  # staged files that are artifacts, as far as is known here
        self.hold = Hold(host, row, runtime, dirs, lambda: self.running)
        self._calls: dict[str, Call] = {}
        self._joined: dict[str, Call] = {}  # of accepted turns that somebody else accepted
        self._granted: tuple[StoredTurn, Lease] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self.looked = asyncio.Event()  # the worker has seen what is before it; what was open in that is remembered
        self._accepting: set[asyncio.Task[Any]] = set()
        self.watch = Watch(sandbox.root, dirs.private)
        # The folders whose names the program does not know; None where it sees them as the app does.
        self.names = Names.of(sandbox.inside(dirs.folders(sandbox.root)))
        self.roots = Roots(dirs.workspace(sandbox.root).mounts, names=self.names)
        self.persistent = Persistent(host, row.id, row.key, dirs, options.persistent_dirs)
        self.vault = Vault(self.roots, os.path.join(dirs.private, "artifacts"))
        self.tools = SessionTools(self, reach)
        self.tools.offer(tools)
        self.hold.tools = lambda: self.tools.server

    # ---- in ---------------------------------------------------------------------------------------------------------

    def listen(
        self,
        callback: Callable[[Any], Any],
        turn: StoredTurn,
        loop: asyncio.AbstractEventLoop | None,
        *,
        current: bool = False,
    ) -> None:
        """Have ``callback`` called with each Record of the turn; ``current``: they are published from now on. It reads the
        journal on its own, so that one that raises or blocks never holds the turn up."""
        follower = self.host.journal.follow(self.id, turn.first - 1, turn.id, current=current)

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
        place = self.place_of({**self.rules, **rules}, call)  # refuse what cannot be held before anything is stored
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
                lambda conn: inbox.accept(
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
        if (on_event := call.on_event or self.options.on_event) is not None:
            self.listen(on_event, turn, call.loop, current=bool(records))
        self.host.journal.publish(self.id, records)
        if lease is not None:
            self._granted = (turn, lease)
        self.serve()
        return turn

    def serve(self) -> None:
        """Have the worker look at the inbox."""
        self._nudge.set()
        if self._worker is None or self._worker.done():
            self.looked.clear()
            self._worker = asyncio.create_task(self._serve(), name=f"hostler-session-{self.id}")

    async def stop_turn(self, turn: str | None, reason: str, *, owner: str | None = None) -> None:
        """Ask for the end of one turn, or of all that are accepted (by ``owner``), wherever they run."""
        ids = await self.host.store.write(lambda conn: inbox.request_stop(conn, self.id, turn, reason, owner))
        if self.running is not None and self.running.turn in ids:
            self.running.put(Stop(reason))  # type: ignore[arg-type]

    async def interrupt(self) -> None:
        """Ask for the end of the turn that runs; those that wait go on waiting."""
        accepted = await self.host.store.read(lambda conn: inbox.open_turns(conn, self.id))
        for turn in accepted:
            if turn.status == "running":
                await self.stop_turn(turn.id, "interrupted")

    async def approvals(self) -> list[Approval]:
        """The open questions of the session's turn, wherever it runs."""
        if self._worker is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.looked.wait(), _TAKES_UP)
        if self.running is not None:
            return list(self.running.approvals.values())
        fetch = self.host.journal.fetch
        found = await self.host.store.read(lambda conn: approvals.open_questions(conn, self.id, fetch))
        return [question.approval for question in found if not question.answered]

    async def answer(
        self, id: str, allow: bool, reason: str | None, *, always: bool = False, answers: Answers | None = None
    ) -> None:
        """Answer a question; one of a turn that runs in another process is left for it there."""
        approval = self.running.approvals.get(id) if self.running is not None else None
        if approval is None:
            fetch = self.host.journal.fetch
            await self.host.store.write(
                lambda conn: leave(conn, self.id, id, allow, reason, answers, fetch, always=always)
            )
            return
        left = left_by(approval, allow, reason, answers)
        if always:
            await self.host.store.write(lambda conn: approvals.remember(conn, self.id, approval, allow))
        if self.running is not None:
            self.running.put(Answer(id, allow, reason, left.answers))

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
                        lambda conn: inbox.next_turn(conn, self.id, self.host.id, self.host.is_dead)
                    )
                except HarnessError as error:  # the store fails: those who wait are told, and may try again
                    self._fail_all(error)
                    return
                if found is None or found[1] is None:
                    self.looked.set()
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
                await run(self, turn, lease, self._call_of(turn))
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

    def ended(self, result: Result, native_id: str | None) -> None:
        """The turn has its `Done` in the store."""
        self.running = None
        self.usage += result.usage
        self.cost = None if self.cost is None or result.cost is None else self.cost + result.cost
        self.native_id = native_id or self.native_id

    def place(self) -> Place:
        """Where and how the program runs under the session's own rules."""
        return self.place_of(self.rules, Call())

    def renew(self, options: Options, rules: dict[str, Any], tools: tuple[HostTool, ...], sandbox: Sandbox) -> None:
        """Another handle of this process brings the session's callables, and maybe other rules, again."""
        self.sandbox = sandbox  # on the same folder, which has the same names in it
        self.options = options
        self.rules = dict(rules)
        self.persistent.given = options.persistent_dirs
        self.tools.offer(tools)

    def place_of(self, rules: dict[str, Any], call: Call) -> Place:
        settings = self.host.settings
        asks = (call.on_approval or self.options.on_approval) is not None or rules["permissions"] == "ask"
        return Place(
            runtime=self.runtime,
            sandbox=self.sandbox,
            dirs=self.dirs,
            rules=rules,
            route=route_of(self.runtime, rules, call.api_key or self.options.api_key),
            approvals=asks,
            tools=self.tools.digest(asks),
            own_tools=self.tools.names,
            park_ttl=settings.park_ttl,
            orphan_ttl=settings.orphan_ttl,
            spool_limit=settings.spool_limit,
        )

    # ---- ends -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the turn and the program; what finished turns left stays in the store."""
        await self._ended(status="idle" if self.rules.get("keyed") else "closed")

    async def stop(self) -> None:
        """End the program; the session can be resumed."""
        await self._ended(status="idle")

    async def detach(self) -> None:
        """Leave the program, and a turn if one runs, to its keeper; unless others here have turns in it, who do it then."""
        await self._accepted()
        if self.handles > 1 and (self._calls or self._joined):
            return
        worker = self._worker
        if worker is not None and not worker.done() and self.running is None and not self._calls:
            await asyncio.wait([worker])  # it only tidies up behind the last turn
        elif worker is not None and not worker.done():
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            await self.host.store.write(lambda conn: inbox.disown(conn, self.id, self.host.id), durable=True)
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
                await asyncio.wait_for(self.looked.wait(), _TAKES_UP)
        if worker is None or worker.done() or self.running is None or self.running.turn in self._calls:
            await self.close()
            return
        await self._cancel_own()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await self.host.store.write(lambda conn: inbox.disown(conn, self.id, self.host.id), durable=True)
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
        await asyncio.to_thread(self.watch.close)

    async def _end(self, status: str) -> None:
        lease = await self.host.store.write(
            lambda conn: inbox.claim_idle(conn, self.id, self.host.id, self.host.is_dead)
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
            if getattr(self.sandbox, "own", False):  # the session has made it; one that was passed in is its caller's
                await asyncio.to_thread(self.sandbox.close)
        finally:
            await self.host.store.write(lambda conn: queries.release(conn, lease, status), durable=True)
            await asyncio.to_thread(self.watch.close)


def route_of(runtime: Runtime, rules: Mapping[str, Any], api_key: str | None) -> Route:
    """Where the model calls go under these rules. Raises OptionsMismatch naming what is missing."""
    return route_for(rules["model"], wire=runtime.wire, api_base=rules["api_base"], api_key=api_key, environ=os.environ)
