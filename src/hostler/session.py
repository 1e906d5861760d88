"""The handle of one session, on the engine's side; `faces` gives it to sync and async callers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar, Unpack

from sqlalchemy import Connection, Row

from . import portal
from .artifacts import ArtifactsCore
from .files import FilesCore
from .host import rest
from .host.errors import raise_for_setup
from .host.journal import Follower
from .host.live import Call, LiveSession
from .host.persistence import Behalf, raise_for_persistence
from .options import read_options
from .output import Output, checked, held
from .persistent.dirs import Merge
from .rules import check_key, check_prompt, check_text, refuse_unheld
from .store import inbox, queries, spoken
from .store.inbox import Turn
from .types.errors import CapabilityUnsupported, SessionClosed
from .types.events import Approval, Done, Record, TurnEvent, is_turn_event
from .types.options import OptionsDict
from .types.questions import Answers
from .types.result import Persistence, Result, Usage
from .types.state import State
from .workspace import native

T = TypeVar("T")


class SessionCore:
    """A session as one caller holds it."""

    def __init__(self, live: LiveSession, *, ephemeral: bool = False) -> None:
        self._live = live
        self._left: str | None = None
        self._leaving = asyncio.Lock()
        self.ephemeral = ephemeral  # it ends with its turn
        self.lent = False  # it is there for one call, whose caller never sees it
        live.enter(self)

    @property
    def live(self) -> LiveSession:
        """What this process knows of the session."""
        return self._live

    @property
    def key(self) -> str:
        """The session's key."""
        return self._live.key

    @property
    def status(self) -> str:
        """``running`` while a turn runs here, else ``idle``; ``closed``, ``detached`` or ``stopped`` once left."""
        return self._left or ("running" if self._live.running is not None else "idle")

    @property
    def cost(self) -> float | None:
        """US dollars of all turns so far; None when a price is unknown."""
        return self._live.cost

    @property
    def usage(self) -> Usage:
        """Tokens of all turns so far."""
        return self._live.usage

    @property
    def resumed(self) -> str | None:
        """How a resumed session came by its program: ``"attached"``, ``"native"``, or ``"replayed"`` (by the transcript of a
        caller who brings it); None for a new session."""
        return self._live.hold.resumed

    @property
    def files(self) -> FilesCore:
        """The session's files."""
        return FilesCore(self._live, self._check_open)

    @property
    def artifacts(self) -> ArtifactsCore:
        """The session's results."""
        return ArtifactsCore(self._live)

    @property
    def workdir(self) -> str:
        """The directory of the workspace on this machine; the agent may know it by another name (``/session``)."""
        return self._live.sandbox.root

    async def run(
        self, prompt: str, *, loop: asyncio.AbstractEventLoop | None, **options: Unpack[OptionsDict]
    ) -> Result:
        """Run one turn and give its Result, also when the turn failed (see ``stop_reason`` and ``error``).

        Options hold for this call only. Raises set-up errors (`HarnessInstallFailed`, `SessionLost`, ...), `SessionBusy`
        with ``on_busy="reject"``, `SessionClosed` after ``close()``, ``detach()`` or ``stop()``, also when a ``detach()``
        leaves this turn to its keeper, and `OutputInvalid` when the answer does not fit ``output=``, not even when it was
        asked for once more.
        """
        source = await self.begin(prompt, loop=loop, **options)
        source.to_the_end()
        events: list[TurnEvent] = []
        try:
            while batch := await source.batch():
                events += batch
        finally:
            source.close()
        done = events.pop()
        assert isinstance(done, Done)
        return checked(replace(done.result, events=tuple(events)))

    async def begin(
        self,
        prompt: str,
        *,
        loop: asyncio.AbstractEventLoop | None,
        extra_body: Any = None,
        turn_id: str | None = None,
        transcript: Mapping[str, Any] | None = None,
        **options: Unpack[OptionsDict],
    ) -> TurnSource:
        """Accept one turn; its events are read from what this returns. A ``turn_id`` that was accepted before joins
        that turn. ``transcript`` is what the caller says that the conversation holds (see `host.transcript`)."""
        self._check_open()
        if transcript is None:
            check_prompt(prompt)
        else:  # what it says may be in files, or known already
            check_text(prompt)
        given = await read_options(options)
        rules = {name: value for name, value in given.rules().items() if name in options}
        refuse_unheld(
            self._live.runtime, replace(given, tools=self._live.options.tools), confined=self._live.sandbox.confined
        )
        for name in ("sandbox", "state_dir", "tools", "persistent_dirs", "skills"):
            if name in options:
                raise CapabilityUnsupported(f"{name} belongs to the session and cannot be changed for one call.")
        if extra_body is None:
            extra_body = self._live.rules.get("extra_body")
        on_error = given.on_persistence_error if callable(given.on_persistence_error) else None
        call = Call(given.on_approval, on_error, given.on_event, loop, given.api_key, given.output, self, self.lent)
        raises = {**self._live.rules, **rules}.get("on_persistence_error") == "raise"
        output = held(rules.get("output", self._live.rules.get("output")), given.output, self._live.options.output)
        on_busy = given.on_busy if "on_busy" in options else self._live.options.on_busy
        if on_busy == "steer" and self._live.hears:
            turn = self._live.steer(prompt, call)
            found = await self._live.host.store.write(lambda conn: _steered(conn, turn))
        else:
            if on_busy == "interrupt":
                await self._live.interrupt()
                self._check_open()
            found = await self._live.accept(
                prompt,
                rules,
                call,
                reject_busy=on_busy == "reject",
                extra_body=extra_body,
                turn_id=turn_id,
                transcript=transcript,
            )
            if turn_id is None:
                # Its first record was published just now, and nothing since: there is no need to look it up.
                follower = self._live.host.journal.follow(self._live.id, found.first, found.id, current=True)
                return TurnSource(self, follower, output=output, raises=raises)
        follower = self._live.host.journal.follow(self._live.id, found.first - 1, found.id)
        return TurnSource(self, follower, output=output, raises=raises)

    def lend(self) -> None:
        """The call goes on without this handle, and behind it the session stays in hand, until its program makes room."""
        self._live.holders.handles.discard(self)

    async def follow(self, after: int | None = None) -> Follower:
        """Records of the session's journal above ``after`` (None: from now on), gapless, until closed.

        Raises ValueError for a number that this session has not reached."""
        row = await self._live.host.store.read(lambda conn: queries.get_session(conn, self._live.id))
        return self._live.host.journal.follow_from(row, after)

    async def cancel(self) -> None:
        """End the running turn and those that wait, wherever they run. Returns when they have their `Done`."""
        live = self._live
        waiting = await live.host.store.read(lambda conn: inbox.open_turns(conn, live.id))
        await live.stop_turn(None, "cancelled")
        for turn in waiting:
            with contextlib.closing(live.host.journal.follow(live.id, turn.first - 1, turn.id)) as follower:
                while True:
                    try:
                        async with asyncio.timeout(1):
                            if not await follower.batch():
                                break
                    except TimeoutError:
                        live.serve()  # whoever runs it may be dead or frozen: then it is ours to end

    async def state(self) -> State:
        """The resume token, as of the last finished turn."""
        live = self._live
        row = await live.host.store.read(lambda conn: queries.get_session(conn, live.id))
        return State(row.harness, row.native_id, row.key, row.workdir, row.rules["model"])

    async def detach(self) -> State:
        """Park the program, and leave a running turn to it; the sandbox stays. Gives the State to resume with.

        Turns that others in this process wait for go on in it; the program is parked behind the last of them."""
        return await self._whole(self._end("detached"))

    async def stop(self) -> State:
        """End the turn and the program; gives the State to resume with. Turns that others in this process wait for go
        on, and the program with them."""
        return await self._whole(self._end("stopped"))

    async def close(self) -> None:
        """End the turn and the program. A State taken earlier still resumes at the last finished turn. Turns that others
        in this process wait for go on, and the program with them."""
        if self._left is None and not self._live.host.forked:  # a child has nothing of its parent's to end
            await self._whole(self._close())

    async def _end(self, how: Literal["detached", "stopped"]) -> State:
        async with self._leaving:
            self._check_open()
            self._left = how  # nothing is accepted behind it
            try:
                await (self._live.detach(self) if how == "detached" else self._live.stop(self))
            except BaseException:
                self._left = None
                raise
            self._live.leave(self)
        return await self.state()

    async def _close(self) -> None:
        async with self._leaving:
            if self._left is None:
                self._left = "closed"
                try:
                    await self._live.close(self)
                finally:
                    self._live.leave(self)

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Go through with it, also when the caller does not wait for the end: half an end would hold the lease."""
        return await asyncio.shield(self._live.host.spawn(work))

    async def history(self) -> list[dict[str, Any]]:
        """The conversation as OpenAI-format messages. Raises CapabilityUnsupported where the program keeps none that
        can be read."""
        live = self._live
        if not live.runtime.capabilities.history:
            raise CapabilityUnsupported(f"{live.runtime.name} keeps no transcript that can be read.")
        row = await live.host.store.read(lambda conn: queries.get_session(conn, live.id))
        native_id = row.native_id or row.new_id
        return await asyncio.to_thread(_history, live, native_id, row.native)

    async def snapshot(self) -> str:
        """Keep the workspace as it is now, between two turns; the id to restore it with. Exact but for what is neither
        file, folder nor link; what could not be taken is in the journal (`SnapshotTaken`). What has not changed since
        the last one is not copied again.

        Raises SessionBusy while a turn runs or waits, SandboxError for a workspace that is too large
        (``HOSTLER_SNAPSHOT_LIMIT``), or is or holds the user's home.
        """
        self._check_open()
        return await self._live.between_turns(rest.snapshot(self._live))

    async def restore(self, id: str) -> None:
        """Make the workspace what it was at a snapshot of this session. What is as it was is not touched, nor is
        anything outside of the workspace; the conversation goes on as it is.

        Raises SessionBusy while a turn runs or waits, SandboxError for an id that is none.
        """
        self._check_open()
        await self._live.between_turns(rest.restore(self._live, id))

    async def fork(self, key: str) -> Row[Any]:
        """A new session that goes on from here, as it is stored; `opening` gives its handle."""
        self._check_open()
        check_key(key)
        return await self._live.between_turns(rest.fork(self._live, key))

    async def commit(
        self,
        path: str | None = None,
        *,
        merge: Merge | None = None,
        extra_body: Any = None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> Persistence:
        """Store what is changed in the persistent dirs, or in the one at ``path``, between turns.

        ``merge`` holds for this commit in place of the dir's own; ``extra_body`` is for the dirs' callbacks, without it
        the session's own, or that of its last turn. Raises `PersistenceConflict` or `PersistenceError` when one of them
        is not committed (its changes stay in the session), `SessionBusy` while a turn runs or waits.
        """
        self._check_open()
        if extra_body is None:
            extra_body = self._live.rules.get("extra_body")
        work = self._live.persistent.commit(path, Behalf(None, extra_body, loop), merge)
        return await self._live.between_turns(work)

    async def approvals(self) -> list[Approval]:
        """The questions of the running turn that nobody has answered, whichever process runs it."""
        return [bind(self._live, approval) for approval in await self._live.approvals()]

    async def answer(
        self,
        id: str,
        allow: bool,
        reason: str | None = None,
        always: bool = False,
        *,
        answers: Answers | None = None,
    ) -> None:
        """Answer an Approval of the running turn, whichever process runs it. ``always``: for good, so that the session
        does not ask again for the same tool (for a shell command: for the same command). ``answers``: to its questions,
        a text, or ``{id: text}`` when there are several; a list of texts where several choices may be taken. Raises
        HarnessError when it is not open, ValueError for an answer that answers something else."""
        await self._live.answer(id, allow, reason, always=always, answers=answers)

    def _check_open(self) -> None:
        if self._left is not None:
            raise SessionClosed(f"This handle of session {self.key!r} is {self._left}. Resume the session to go on.")
        if self._live.host.forked:
            raise SessionClosed(
                f"This handle of session {self.key!r} belongs to the process that forked this one. Resume the session here."
            )


class TurnSource:
    """The events of one turn, read from the journal."""

    def __init__(
        self, core: SessionCore, follower: Follower, *, output: Output | None = None, raises: bool = False
    ) -> None:
        self._core = core
        self._live = core.live
        self._raises = raises  # also for what was not committed
        self._follower = follower
        self._output = output

    async def batch(self) -> list[TurnEvent]:
        """The next events, at least one, the last of all is the `Done`. Raises set-up errors in its place."""
        while records := await self._follower.batch():
            events = [self._shown(r) for r in records if is_turn_event(r.event)]
            if events and isinstance(events[-1], Done):
                if self._core.ephemeral:
                    await self._core.close()
                raise_for_setup(events[-1].result)
                events[-1] = await self._made(events[-1])
                if self._raises:
                    raise_for_persistence(events[-1].result.persistence, events[-1].result)
            if events:
                return events
        return []

    async def _made(self, done: Done) -> Done:
        """The end of the turn with its output as the caller's own type has it; making that may block."""
        if self._output is None or done.result.stop_reason != "done":
            return done
        return Done(await asyncio.to_thread(self._output.made, done.result))

    def _shown(self, record: Record) -> TurnEvent:
        event: Any = record.event
        return bind(self._live, event) if isinstance(event, Approval) else event

    async def cancel(self) -> None:
        """End the turn."""
        await self._live.stop_turn(self._follower.turn, "cancelled")

    def to_the_end(self) -> None:
        """Its caller sees nothing before the end of the turn: one that is left to others is not waited for."""
        self._follower.waits = True

    def close(self) -> None:
        """Stop listening."""
        self._follower.close()

    async def leave(self) -> None:
        self.close()
        if self._core.ephemeral:
            await self._core.close()


def _steered(conn: Connection, id: str) -> Turn:
    """The turn that was steered. Its transcript, as callers send it, need not say where."""
    turn = inbox.get_turn(conn, id)
    assert turn is not None
    spoken.note(conn, turn.session, turn.first, None)
    return turn


def bind(live: LiveSession, approval: Approval) -> Approval:
    """The Approval with its ``allow`` and ``deny`` at work, for sync and async callers."""

    async def on_engine(allow: bool, reason: str | None, always: bool, answers: Answers | None) -> None:
        await live.answer(approval.id, allow, reason, always=always, answers=answers)

    return replace(approval, answer=lambda *given: portal.either(on_engine(*given)))


def _history(live: LiveSession, native_id: str, manifest: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    files = native.read(live.dirs.home, live.dirs.native, live.runtime.native_files, native_id, manifest)
    return live.runtime.history(files, native_id) if files else []
