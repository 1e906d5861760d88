"""What this process knows of one session: its program, its workspace, its callables, and the worker that serves its inbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Row

from .. import portal
from ..endpoint import Route, price, route_for
from ..ladder import Place
from ..running import Running, Stop
from ..store import approvals, inbox, queries
from ..store.inbox import Turn as StoredTurn
from ..store.queries import Lease
from ..telemetry.keys import Keys
from ..types.errors import CapabilityUnsupported, HarnessError, LeaseLost, SessionClosed, StoreError
from ..types.events import Accepted, Approval
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
from .hold import Hold, masker_of
from .holders import Call as Call
from .holders import Holders
from .notices import told
from .persistence import Persistent
from .run import run
from .tools import Reach, SessionTools

if TYPE_CHECKING:
    from ..toolserver import HostTool
    from .local import Host

T = TypeVar("T")

_log = logging.getLogger("hostler")
_TAKES_UP = 5.0  # s that a question about the turn waits for the worker
_PREVIEW = 200  # characters of a prompt that its first record shows
_LOOKED_AT = 4096  # of which: a secret may be longer than what is shown of it
_LOOK = 0.05  # s between looks at the inbox while another host's turn is before ours


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
        self.holders = Holders()
        self.native_id: str | None = row.native_id
        self.usage = Usage(**row.usage)
        self.cost: float | None = None if row.unpriced else row.cost
        self.running: Running | None = None
        self.marked: Mapping[str, str | None] = row.marked  # staged files that are artifacts, as far as is known here
        self.hold = Hold(host, row, runtime, dirs, lambda: self.running)
        self._granted: tuple[StoredTurn, Lease] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self.looked = asyncio.Event()  # the worker has seen what is before it; what was open in that is remembered
        self._accepting: set[asyncio.Task[Any]] = set()
        self._between: set[asyncio.Task[Any]] = set()  # what is done between two turns: a snapshot, a commit
        self._afterwards: Callable[[], Awaitable[None]] | None = None  # what the last who left wanted
        self.watch = Watch(sandbox.root, dirs.private)
        # The folders whose names the program does not know; None where it sees them as the app does.
        self.names = Names.of(sandbox.inside(dirs.folders(sandbox.root)))
        self.roots = Roots(dirs.workspace(sandbox.root).mounts, names=self.names)
        self.persistent = Persistent(host, row.id, row.key, dirs, options.persistent_dirs)
        self.vault = Vault(self.roots, os.path.join(dirs.private, "artifacts"))
        self.tools = SessionTools(self, reach)
        self.tools.offer(tools)
        self.hold.tools = lambda: self.tools.server

    @property
    def owns_sandbox(self) -> bool:
        """Whether the sandbox is closed when the session ends; one that was passed in is its caller's."""
        return bool(self.rules["sandbox"]["own"])

    def enter(self, handle: object) -> None:
        """One more handle. What those who have left wanted of the session is its affair now."""
        self.holders.handles.add(handle)
        self._afterwards = None

    def leave(self, handle: object) -> None:
        """One handle less."""
        self.holders.leave(handle)
        self.host.release(self)

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
        preview = masker_of(place).mask(input["prompt"][:_LOOKED_AT])[:_PREVIEW]
        joins = self.holders.wait(id, call)
        try:
            await self.host.given_back(self.id)
            turn, lease, records = await self.host.store.write(
                lambda conn: inbox.accept(
                    conn,
                    self.id,
                    turn=id,
                    host=self.host.id,
                    input=input,
                    accepted=Accepted(redacted, preview),
                    reject_busy=reject_busy,
                    is_dead=self.host.is_dead,
                    now=time(),
                ),
                durable=True,
            )
        except BaseException:
            self.holders.unwait(id, call)
            self._nudge.set()
            raise
        finally:
            self._accepting -= {asyncio.current_task()}
        if not records and not joins:
            if turn.status in queries.OPEN:
                self.holders.begin(id, foreign=True)  # another process's to run, as long as that lives
            else:
                self.holders.over(id)
        if (on_event := call.on_event or self.options.on_event) is not None:
            self.listen(on_event, turn, call.loop, current=bool(records))
        self.host.journal.publish(self.id, records)
        if lease is not None:
            self._granted = (turn, lease)
        self.serve()
        return turn

    async def between_turns(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something with the session at rest: whole, also when the caller does not wait for the end of it."""
        task = self.host.spawn(work)
        self._between.add(task)
        task.add_done_callback(self._between.discard)
        return await asyncio.shield(task)

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
        await self._taken_up()
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

    @property
    def hears(self) -> bool:
        """Whether a turn runs here whose program can still be spoken to."""
        return self.running is not None and not self.running.over

    def steer(self, text: str, call: Call) -> str:
        """Say something to the running turn, for which the call waits then; its id."""
        if not self.runtime.capabilities.steer:
            raise CapabilityUnsupported(f"{self.runtime.name} cannot be steered; use on_busy='queue' or 'interrupt'.")
        if self.running is None or not self.hears:
            raise HarnessError(f"Session {self.key!r} runs no turn here that could be steered.")
        self.running.put(Steer(self.host.new_id("steer"), told(text, (), self.names)))
        self.holders.wait(self.running.turn, call)
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
                turns = self.holders.turns
                try:
                    await self.host.given_back(self.id)
                    found = await self.host.store.write(
                        lambda conn: inbox.next_turn(conn, self.id, self.host.id, self.host.is_dead)
                    )
                except HarnessError as error:  # the store fails: those who wait are told, and may try again
                    self._fail_all(error)
                    self.host.give_up_later(self.id)
                    return
                if found is None or found[1] is None:
                    self.looked.set()
                if found is None:
                    self.holders.over(*turns)  # where they were not ours to run
                if found is None or (found[1] is None and not self.holders.turns):
                    if await self._rests():  # nothing to do, or nothing of ours waits behind the others'
                        return
                    continue
                if found[1] is None:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._nudge.wait(), _LOOK)
                    continue
                granted = (found[0], found[1])
            turn, lease = granted
            lost = False
            self.holders.begin(turn.id, foreign=turn.owner != self.host.id)
            try:
                await run(self, turn, lease, self.holders.call_of(turn.id))
            except LeaseLost:
                lost = True  # it may be left to us again: whoever waits for it here still does
                await self.hold.let_go()
            except Exception as error:
                _log.exception(
                    "Session %s: turn %s cannot be journalled here and is left to another host", self.key, turn.id
                )
                await self.hold.let_go()
                await self.host.give_up(self.id)
                self._fail_all(error)
                return
            finally:
                self.running = None
                if self.hold.program is not None:
                    self.host.slots.rest(self.hold)
                else:
                    self.host.slots.leave(self.hold)
                self.host.journal.wake(self.id)
                if not lost:
                    self.holders.over(turn.id)
            waits = turn.owner != self.host.id or self.holders.turns or self._granted is not None
            if not waits and await self._rests():
                return

    async def _rests(self) -> bool:
        """The worker has nothing to do: what was left to the last turn is done now. False when it has to look again."""
        if (afterwards := self._afterwards) is not None and not self.holders.any():
            self._afterwards = None
            try:
                await afterwards()
            except StoreError as error:
                await self._abandon(error)
            except Exception:  # of the app's sandbox, say; whoever is next has nothing to do with it
                _log.exception("Session %s could not be ended as it should", self.key)
            return self.host.release(self)
        return True

    def _fail_all(self, error: Exception) -> None:
        turns = self.holders.turns
        for id in turns:
            self.host.journal.fail(self.id, id, error)
        self.holders.over(*turns)

    def ended(self, result: Result, native_id: str | None) -> None:
        """The turn has its `Done` in the store."""
        if self.running is not None:
            self.holders.done(self.running.turn)
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

    # A holder who leaves takes what is his: his own turns. As long as others have turns here the session is theirs, and
    # what he wanted of it is done when the last of them has left. With ``holder`` None it is taken from all.

    async def close(self, holder: object = None) -> None:
        """End the holder's turns and the program; what finished turns left stays in the store."""
        await self._ended(holder, "idle" if self.rules.get("keyed") else "closed")

    async def stop(self, holder: object) -> None:
        """End the holder's turns and the program; the session can be resumed."""
        await self._ended(holder, "idle")

    async def detach(self, holder: object) -> None:
        """Leave the program, and turns if there are any, to its keeper."""
        await self._settled()
        await self._taken_up()
        worker = self._worker
        if worker is not None and not worker.done() and not self.holders.open:
            await asyncio.wait([worker])  # it only tidies up behind the last turn
        if self.holders.open and self.holders.any(but=holder):
            self._afterwards = self._park
            return
        await self._leave_turns()
        await self._park()

    async def _park(self) -> None:
        await self.hold.let_go()
        with contextlib.suppress(HarnessError):  # this session is parked, whatever the others do
            await upkeep.limit_parked(self.host)

    async def _leave_turns(self) -> None:
        """Leave what was accepted here to whoever comes next."""
        if self._worker is not None and not self._worker.done():
            turns = self.holders.turns
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
            try:
                await self.host.store.write(lambda conn: inbox.disown(conn, self.id, self.host.id), durable=True)
            except StoreError:
                await self.host.give_up(self.id)
                raise
            for id in turns:
                left = SessionClosed(
                    f"Session {self.key!r} was left before its turn {id} was over. Resume the session to follow it: what has "
                    "begun goes on under its keeper, what waits is run then."
                )
                self.host.journal.fail(self.id, id, left, only_waiting=True)
            self.holders.over(*self.holders.turns)

    async def part(self) -> None:
        """This process ends: close, unless it runs a turn that nobody here waits for, or that another process has
        accepted; that is left to who comes next."""
        try:
            await self._part()
        except StoreError as error:
            await self._abandon(error)
        except Exception:
            _log.exception("Session %s could not be ended as it should", self.key)

    async def _part(self) -> None:
        await self._taken_up()
        worker = self._worker
        if worker is None or worker.done() or self.running is None or self._is_ours(self.running.turn):
            await self.close()
            return
        for turn in self.holders.turns:
            if self._is_ours(turn):
                await self.stop_turn(turn, "cancelled")
        await self._leave_turns()
        await self.hold.let_go()

    def _is_ours(self, turn: str) -> bool:
        return self.holders.accepted_here(turn) and self.holders.awaited(turn)

    async def _taken_up(self) -> None:
        """What is before the worker is known: it may be a turn that a dead host has left."""
        if self._worker is not None and not self._worker.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.looked.wait(), _TAKES_UP)

    async def _settled(self) -> None:
        """What is on its way in is in: it would begin behind the end. What is done between two turns is done: it has the
        lease."""
        while begun := [task for task in (*self._accepting, *self._between) if not task.done()]:
            await asyncio.wait(begun)

    async def _ended(self, holder: object, status: str) -> None:
        try:
            await self._settled()
            await self._taken_up()
            others = self._others(holder)
            if not others:
                self._afterwards = None  # what those who left before wanted is done here
            if not await self._stopped(set(self.holders.turns) - others, wait=not others):
                return
            if self._others(holder):
                self._afterwards = partial(self._end, status)
            else:
                await self._end(status)
        except StoreError as error:
            await self._abandon(error)
            raise

    def _others(self, holder: object) -> set[str]:
        """The turns that are not the holder's to end: somebody else waits for them."""
        turns = self.holders.turns if holder is not None else ()
        return {turn for turn in turns if self.holders.awaited(turn, but=holder)}

    async def _stopped(self, turns: set[str], *, wait: bool) -> bool:
        """End these turns. Without ``wait`` those that wait behind others' get their `Done` later. False when one does
        not end: then its program is ended, and its `Done` is written by whoever comes next."""
        running = {self.running.turn} if self.running is not None else set()
        elsewhere = {turn for turn in turns - running if not self.holders.accepted_here(turn)}
        self.holders.over(*elsewhere)  # they are not ours to end
        for turn in turns - elsewhere:
            await self.stop_turn(turn, "cancelled")
        try:
            async with asyncio.timeout(10):
                await self.holders.until_over(turns if wait else turns & running)
        except TimeoutError:
            if self._worker is not None:
                self._worker.cancel()
                await asyncio.gather(self._worker, return_exceptions=True)
            await self.hold.end()
            await self.host.give_up(self.id)
            return False
        return True

    async def _abandon(self, error: StoreError) -> None:
        """Nothing can be written: the program is ended all the same, and its turn is left to who comes next."""
        self._fail_all(error)
        if self._worker is not None and self._worker is not asyncio.current_task():
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self.hold.end()
        await self.host.give_up(self.id)
        await asyncio.to_thread(self.watch.close)

    async def _end(self, status: str) -> None:
        lease = await self.host.store.write(
            lambda conn: inbox.claim_idle(conn, self.id, self.host.id, self.host.is_dead)
        )
        if lease is None:  # a turn runs or waits in it, here or elsewhere, or is left to whoever comes: not ours to end
            if self.holders.turns:
                self._afterwards = partial(self._end, status)
            else:
                await self.hold.let_go()
            return
        try:
            if self.hold.program is not None and self.hold.program.epoch == lease.epoch:
                await self.hold.end()
            else:
                await self.hold.let_go()
                await self.hold.end_stored(lease)
            await self.hold.without_program(lease)
            if self.owns_sandbox:
                await asyncio.to_thread(self.sandbox.close)
        finally:
            await self.host.store.write(lambda conn: queries.release(conn, lease, status), durable=True)
            await asyncio.to_thread(self.watch.close)


def route_of(runtime: Runtime, rules: Mapping[str, Any], api_key: str | None) -> Route:
    """Where the model calls go under these rules. Raises OptionsMismatch naming what is missing."""
    return route_for(rules["model"], wire=runtime.wire, api_base=rules["api_base"], api_key=api_key, environ=os.environ)
