"""The steps of one turn on their way into the journal: one commit is in flight, what comes meanwhile is the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from .progress import Progress
from .store.journal import Journalled
from .types.events import Record
from .types.runtime import Send


@dataclass(frozen=True, slots=True)
class Step:
    """What a turn has come to: what happened, how far its program was read, and what is to be said to that then."""

    progress: Progress
    events: tuple[Journalled, ...] = ()
    sends: tuple[Send, ...] = ()
    native_id: str | None = None
    due: bool = False  # it is stored though it tells nothing: the keeper is to forget what led to it

    def then(self, later: Step) -> Step:
        """Both, as one."""
        return Step(
            later.progress,
            self.events + later.events,
            self.sends + later.sends,
            later.native_id or self.native_id,
            self.due or later.due,
        )

    @property
    def tells(self) -> bool:
        """Whether it must be stored. What gives nothing to tell or to say is stored with a later step: after a crash it
        is read again."""
        return bool(self.events or self.sends or self.native_id or self.due)


@dataclass(frozen=True, slots=True)
class Journal:
    """Where the steps go: `append` commits one, `publish` shows the committed records."""

    append: Callable[[Sequence[Journalled], Progress, str | None], Awaitable[list[Record]]]
    publish: Callable[[list[Record]], None]


class Steps:
    """`put` takes a step and returns at once. A step is committed, then shown, then ``landed`` is awaited with it: what
    the program is told, it is told when a crash would find it in the store. Never two commits at once, always in order.

    A commit or a ``landed`` that fails ends it: ``failed`` is called, and `landed_all` raises the error.
    """

    def __init__(self, journal: Journal, landed: Callable[[Step], Awaitable[None]], failed: Callable[[], None]) -> None:
        self._journal = journal
        self._landed = landed
        self._failed = failed
        self._next: Step | None = None
        self._task: asyncio.Task[None] | None = None

    def put(self, step: Step) -> None:
        """Have it journalled, behind those before it."""
        self._next = step if self._next is None else self._next.then(step)
        if self._task is None:
            self._task = asyncio.create_task(self._commit(), name="hostler-steps")

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return self._task is None

    async def landed_all(self) -> None:
        """Until nothing is on its way. Raises what a commit or a ``landed`` raised."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def take(self) -> Step | None:
        """The step that waits behind the one in flight, to be journalled with what follows; None when there is none, or
        it has something to say to the program first."""
        step = self._next
        if step is None or step.sends:
            return None
        self._next = None
        return step

    async def drop(self) -> None:
        """Nobody waits for what is on its way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _commit(self) -> None:
        try:
            while (step := self._next) is not None:
                self._next = None
                if step.tells:
                    self._journal.publish(await self._journal.append(step.events, step.progress, step.native_id))
                await self._landed(step)
        except Exception:
            self._failed()
            raise
        self._task = None
