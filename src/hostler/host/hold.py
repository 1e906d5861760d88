"""The program of one session as this process holds it: reached, let to the model, let go, ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import sleep
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from .. import keeper, ladder
from ..keeper import KeeperError
from ..ladder import Branch, Launched, Place, Stored
from ..outcome import Outcome
from ..program import Program, is_prompt
from ..progress import Item, Progress, advance
from ..running import Running
from ..store import journal, queries
from ..store.journal import Journalled
from ..store.queries import Lease
from ..telemetry.keys import Keys
from ..telemetry.redaction import Masker
from ..types.errors import HarnessError
from ..types.events import ModelCall, Notice
from ..types.result import ErrorInfo
from ..types.runtime import Ended, Prompt, Runtime
from ..workspace import SessionDirs, native
from .admission import admitted

if TYPE_CHECKING:
    from ..toolserver import ToolServer
    from .local import Host

_UNWRITTEN = 100  # looks, 20 ms apart, for the history of a turn that is done


@dataclass(frozen=True, slots=True)
class Reached:
    """The program to run a turn with, how far it was read, and how it was reached. ``fresh``: it is in the conversation
    of before, and the turn begins another."""

    program: Program
    progress: Progress
    resumed: str | None
    fresh: bool = False
    notices: tuple[Notice, ...] = ()


class Hold:
    """What this process knows and has of the session's program. ``running`` gives the turn that runs here, if any."""

    def __init__(
        self, host: Host, row: Row[Any], runtime: Runtime, dirs: SessionDirs, running: Callable[[], Running | None]
    ) -> None:
        self._host = host
        self._id: int = row.id
        self._key: str = row.key
        self._runtime = runtime
        self._dirs = dirs
        self._running = running
        self.program: Program | None = None
        self.tools: Callable[[], ToolServer | None] = lambda: None
        self.resumed: str | None = None
        self.looking: asyncio.Task[None] | None = None  # at the workspace, before the turn
        self._reached = False
        self._late_calls: list[ModelCall] = []
        self._stored: Stored | None = None  # as of the last turn under self._epoch; another host's epoch makes it stale
        self._epoch = 0

    async def reach(
        self,
        place: Place,
        fingerprint: str,
        lease: Lease,
        running: Running,
        recovered: bool,
        branch: Branch | None = None,
    ) -> Reached | Outcome:
        """The program to run the turn with, one of this ``fingerprint`` or a new one; or, for a turn whose program died with
        its host, how that ended. With ``branch`` it is one that was just started in that conversation, or can begin it, unless
        it runs the turn already."""
        stored = await self.known(lease)
        stays = branch is None or (branch.at is None and self._runtime.capabilities.fresh)
        program = self.program
        if (
            program is not None
            and stays
            and program.epoch == lease.epoch
            and program.usable
            and stored.progress
            and stored.progress["turn"] in (None, running.turn)
            and program.fingerprint == fingerprint
        ):
            assert stored.program is not None
            self._open_route(program.token, program.tool_token, stored.program["address"]["pid"], place)
            return await self._stay(lease, program, Progress.from_dict(stored.progress), self.resumed, branch)
        if program is not None:
            await (self.end() if program.epoch == lease.epoch else self.let_go())
        upstream = await self._host.endpoint_path()
        if stored.program:
            left = stored.program
            self._open_route(left["token"], left["tool_token"], left["address"]["pid"], place)
            attached = await ladder.attach(stored, place, epoch=lease.epoch, holder=self._host.id, upstream=upstream)
            if attached is not None:
                self.program, progress = attached
                given = await self.program.was_given(running.turn)
                mid_turn = recovered and (given or progress.turn == running.turn)
                idle = progress.turn is None and self.program.usable
                if mid_turn or (stays and idle and self.program.fingerprint == fingerprint):
                    begins = None if mid_turn else branch
                    return await self._stay(lease, self.program, progress, self._arrived("attached"), begins)
                await self.end()
            else:
                self._shut(stored.program["token"], stored.program["tool_token"])
            if attached is None and recovered and (lost := self._salvage(stored, running, place)) is not None:
                return lost
        launched = await ladder.launch(stored, place, branch)
        try:
            self._open_route(launched.token, launched.tool_token, launched.address.pid, place)
            await self._store_program(lease, launched)
            self.program = await ladder.join(launched, epoch=lease.epoch, holder=self._host.id, upstream=upstream)
        except BaseException:
            self._shut(launched.token, launched.tool_token)
            await asyncio.to_thread(keeper.destroy, launched.address)
            raise
        return Reached(self.program, launched.progress, self._arrived(launched.resumed), notices=launched.notices)

    async def _stay(
        self, lease: Lease, program: Program, progress: Progress, resumed: str | None, branch: Branch | None
    ) -> Reached:
        if branch is not None:
            await self._host.store.write(lambda conn: journal.set_branch(conn, lease, branch.stored()))
            self._stored = replace(await self.known(lease), branch=branch.stored())
            resumed = "replayed"
        return Reached(program, progress, resumed, fresh=branch is not None)

    def _arrived(self, how: str | None) -> str | None:
        if not self._reached:
            self._reached = True
            self.resumed = how
        return how

    async def known(self, lease: Lease) -> Stored:
        """The stored session, read again when another host has had it in between."""
        if self._stored is None or self._epoch != lease.epoch:
            self._stored = stored_of(await self._host.store.read(lambda conn: queries.get_session(conn, self._id)))
            self._epoch = lease.epoch
        return self._stored

    async def _store_program(self, lease: Lease, launched: Launched) -> None:
        program, progress = launched.stored(), launched.progress.to_dict()
        branch = launched.branch.stored() if launched.branch is not None else None
        await self._host.store.write(
            lambda conn: journal.set_program(conn, lease, program=program, frame=0, progress=progress, branch=branch)
        )
        self._stored = replace(await self.known(lease), program=program, frame=0, progress=progress, branch=branch)

    def _salvage(self, stored: Stored, running: Running, place: Place) -> Outcome | None:
        """The end of a turn whose keeper is dead, from the log that it left on disk; None when the program was not given
        its prompt."""
        assert stored.program is not None
        if stored.progress is None:
            return None
        progress, masker = Progress.from_dict(stored.progress), masker_of(place)
        native_id: str | None = None
        items: list[Item] = [*keeper.read_spool(stored.program["address"]["dir"], stored.frame)]
        if progress.turn != running.turn:  # the step with the prompt was not stored
            given = next((n for n, item in enumerate(items) if is_prompt(item, running.turn)), None)
            if given is None:
                return None
            for item in items[:given]:
                step = advance(self._runtime.codec, progress, item)
                progress, native_id = step.progress, step.native_id or native_id
            schema = place.rules.get("output") if place.schema_at == "prompt" else None
            items = [Prompt(running.turn, "", schema=schema), *items[given:]]
        masker.resume(progress.masking)
        events: list[Journalled] = []
        ended: Ended | None = None
        for item in items:
            step = advance(self._runtime.codec, progress, item)
            progress, native_id = step.progress, step.native_id or native_id
            events += [shown for event, parent in step.events for shown in masker.events(event, parent)]
            ended = ended or step.end
        events += masker.rest()
        if running.stop and (ended is None or ended.stop_reason != "done"):
            ended = Ended(running.stop)
        elif ended is None:
            ended = Ended(
                "error",
                error=ErrorInfo(
                    "program_lost",
                    "The program and its keeper died in the middle of the turn, and so did the host that ran it. What the "
                    "program had said is in the journal; the next turn resumes from its own history.",
                    retryable=True,
                ),
            )
        running.events += events
        return Outcome(ended, replace(progress, turn=None), native_id, False, tuple(events))

    def learn(self, stored: Stored) -> None:
        """What the store holds after the end of a turn."""
        self._stored = stored

    def _open_route(self, token: str, tool_token: str | None, keeper_pid: int, place: Place) -> None:
        if (tools := self.tools()) is not None and tool_token is not None:
            self._host.endpoint.mount_tools(tool_token, tools, keeper_pid)
        self._host.endpoint.open(
            token,
            place.route,
            on_call=self._on_call,
            tag={"session": self._key, **{str(k): str(v) for k, v in place.rules["metadata"].items()}},
            budget=self._budget,
            ready=self._looked,
            admit=lambda sub: admitted(self._running(), place.rules["max_turns"], sub_agent=sub),
            sub_agent_header=self._runtime.capabilities.sub_agent_header,
        )

    def _shut(self, token: str, tool_token: str | None) -> None:
        self._host.endpoint.close_token(token)
        if tool_token is not None:
            self._host.endpoint.close_token(tool_token)

    def _on_call(self, call: ModelCall) -> None:
        running = self._running()
        if running is not None and running.program is not None:
            running.called(call)
            running.program.put(call)
        else:
            self._late_calls.append(call)  # counted with the turn that ends now, or with the next one

    def late_calls(self) -> list[ModelCall]:
        """Model calls that no turn has been told of yet."""
        calls, self._late_calls = self._late_calls, []
        return calls

    async def _looked(self) -> None:
        """Until it is known how the workspace was before the turn."""
        if self.looking is not None:
            await asyncio.wait([self.looking])

    def _budget(self) -> str | None:
        running = self._running()
        return running.stop if running is not None else None

    def save_history(self, native_id: str, stored: Stored, *, keep: bool = True) -> dict[str, Any]:
        files = self._runtime.native_files
        return native.save(self._dirs.home, self._dirs.native, files, native_id, stored.native, keep=keep)

    def save_turn(self, stored: Stored, outcome: Outcome) -> dict[str, Any]:
        """The history as a turn leaves it. A fork may go on using the files of the conversation that it came from; a
        conversation that was begun afresh does not."""
        settled = settled_by(stored, outcome)
        fork = stored.branch is not None and stored.branch["at"] is not None
        keep = settled.new_id == stored.new_id or fork
        before = len((stored.native or {}).get("files", ())) if settled.new_id != stored.new_id and fork else 0
        manifest = self.save_history(settled.native_id or settled.new_id, stored, keep=keep)
        for _ in range(_UNWRITTEN if outcome.ended.stop_reason == "done" else 0):
            if len(manifest["files"]) > before or not self._runtime.native_files:
                break
            sleep(0.02)  # it says that its first turn is over before it has written it down
            manifest = self.save_history(settled.native_id or settled.new_id, stored, keep=keep)
        return manifest

    async def evict(self) -> None:
        """End the idle program to make room for another session's."""
        program = self.program
        if program is not None:
            lease = Lease(self._id, self._key, self._host.id, program.epoch)
            await self.end()
            with contextlib.suppress(HarnessError):  # another host has the session by now
                await self.without_program(lease)
        self._host.idled(self)

    async def without_program(self, lease: Lease) -> None:
        """The program has ended: what it wrote last is saved, and the store is told."""
        self._stored = None
        stored = stored_of(await self._host.store.read(lambda conn: queries.get_session(conn, self._id)))
        manifest = await asyncio.to_thread(self.save_history, stored.native_id or stored.new_id, stored)
        # Of a program whose files are unknown, this alone says that there is a history.
        manifest["begun"] = bool((stored.native or {}).get("begun"))
        await self._host.store.write(
            lambda conn: journal.set_program(conn, lease, program=None, frame=0, progress=None, native=manifest)
        )
        await forget(stored)

    async def end_stored(self, lease: Lease) -> None:
        """End a program that another host left."""
        row = await self._host.store.read(lambda conn: queries.get_session(conn, self._id))
        if row.program:
            address = keeper.KeeperAddress.from_dict(row.program["address"])
            with contextlib.suppress(KeeperError):  # a newer host has it by now
                await keeper.end(address, epoch=lease.epoch, holder=self._host.id)

    async def end(self) -> None:
        program, self.program = self.program, None
        if program is not None:
            await program.end()
            self._shut(program.token, program.tool_token)
            if (tools := self.tools()) is not None:
                await tools.aclose()
            if self._running() is None:
                self._host.slots.leave(self)

    async def let_go(self) -> None:
        """Drop the connection to the program; it lives on under its keeper, for whoever has the lease."""
        self._stored = None
        program, self.program = self.program, None
        if program is not None:
            await program.detach()
            self._shut(program.token, program.tool_token)
            if (tools := self.tools()) is not None:
                self._host.spawn(tools.leave())
            if self._running() is None:
                self._host.slots.leave(self)


async def forget(stored: Stored) -> None:
    """Remove the log of a program that has ended, once the store is told: no turn is recovered from it any more."""
    if stored.program:
        await asyncio.to_thread(keeper.forget, stored.program["address"]["dir"])


def masker_of(place: Place | None) -> Masker:
    """Of the secrets that this process knows of: the agent should not have them, but what it says is stored."""
    if place is None:
        return Masker()
    return Masker([place.route.key] if place.route.key else [], Keys(place.rules.get("redact")))


def settled_by(stored: Stored, outcome: Outcome) -> Stored:
    """With the conversation that the session goes on with after a turn: one that it began only if it ended well."""
    branch = stored.branch
    if branch is None:
        return replace(stored, native_id=outcome.native_id or stored.native_id)
    if outcome.ended.stop_reason != "done":
        return replace(stored, branch=None)
    native_id = outcome.native_id or branch["native_id"]
    return replace(stored, native_id=native_id, new_id=branch["new_id"], branch=None)


def stored_of(row: Row[Any]) -> Stored:
    return Stored(
        row.key,
        row.native_id,
        row.new_id,
        row.finished,
        row.program,
        row.progress,
        row.frame,
        row.native,
        row.branch,
    )
