"""How many programs run at once: a turn waits for a slot; an idle program makes room for one that is needed."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol


class Occupant(Protocol):
    """A session that may have a program."""

    async def evict(self) -> None:
        """End the idle program; the session resumes natively when it is needed again."""
        ...


class Slots:
    """At most ``limit`` programs. Turns that wait are served in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._busy: set[Occupant] = set()
        self._idle: dict[Occupant, None] = {}  # longest idle first
        self._evicting: dict[Occupant, asyncio.Future[None]] = {}
        self._door = asyncio.Lock()  # a fair one: first come, first served
        self._changed = asyncio.Event()

    def resize(self, limit: int) -> None:
        """At most ``limit`` programs from now on; those that run are let be, idle ones make room as turns need it."""
        self._limit = limit
        self._changed.set()

    async def take(self, occupant: Occupant) -> None:
        """Wait for a slot for a turn of this session; its own idle program has one already, unless others wait."""
        while (evicting := self._evicting.get(occupant)) is not None:
            await asyncio.wait([evicting])
        if self.take_own(occupant):
            return
        async with self._door:
            while occupant not in self._idle and not await self._room():
                self._changed.clear()
                await self._changed.wait()
            self._idle.pop(occupant, None)
        self._busy.add(occupant)

    def take_own(self, occupant: Occupant) -> bool:
        """Take the slot of the session's own idle program, unless others wait; whether it was there."""
        if occupant not in self._idle or self._door.locked():
            return False
        del self._idle[occupant]
        self._busy.add(occupant)
        return True

    def rest(self, occupant: Occupant) -> None:
        """The turn is over and its program stays, idle."""
        self._busy.discard(occupant)
        self._idle[occupant] = None
        self._changed.set()

    def leave(self, occupant: Occupant) -> None:
        """The session has no program here any more."""
        self._busy.discard(occupant)
        self._idle.pop(occupant, None)
        self._changed.set()

    async def _room(self) -> bool:
        """Whether there is a slot, after the longest idle program was ended if need be."""
        while len(self._busy) + len(self._idle) + len(self._evicting) >= self._limit:
            if not self._idle:
                return False
            victim = next(iter(self._idle))
            del self._idle[victim]
            self._evicting[victim] = evicting = asyncio.ensure_future(victim.evict())
            evicting.add_done_callback(partial(self._evicted, victim))
            await asyncio.shield(evicting)  # begun is done: whoever needed the slot may not want it any more
        return True

    def _evicted(self, victim: Occupant, _: asyncio.Future[None]) -> None:
        del self._evicting[victim]
        self._changed.set()
