"""Who has a session in hand in this process: its handles, and the calls that wait for its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from ..output import Output


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What belongs to one call in this process: its callbacks and the loop they run on. It is ``holder``'s, who waits
    for the turn until he leaves the session; one that was only ``lent`` the session waits until the turn is over, unless
    he leaves it before."""

    on_approval: Callable[[Any], Any] | None = None
    on_persistence_error: Callable[[Any], Any] | None = None
    on_event: Callable[[Any], Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    api_key: str | None = None
    output: Output | None = None
    holder: object = None
    lent: bool = False


@dataclass(slots=True)
class _Turn:
    begun: bool = False
    foreign: bool = False
    done: bool = False
    calls: list[Call] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Holders:
    """The handles of a session in this process, and its open turns here with those who wait for each."""

    def __init__(self) -> None:
        self.handles: WeakSet[Any] = WeakSet()  # one that was dropped holds nothing, unless its turn is open
        self._left: WeakSet[Any] = WeakSet()  # of those who were lent it, those who have left before their turn's end
        self._turns: dict[str, _Turn] = {}

    def leave(self, handle: object) -> None:
        """He has left the session, with all that he waits for."""
        self.handles.discard(handle)
        self._left.add(handle)

    @property
    def turns(self) -> tuple[str, ...]:
        """The turns that run here, to the last thing that is tidied up behind them, or that a call waits for."""
        return tuple(self._turns)

    @property
    def open(self) -> tuple[str, ...]:
        """Those of them that have no `Done` yet."""
        return tuple(turn for turn, found in self._turns.items() if not found.done)

    def wait(self, turn: str, call: Call) -> bool:
        """The call waits for the turn; whether another one did before it."""
        known = turn in self._turns
        self._turns.setdefault(turn, _Turn()).calls.append(call)
        return known

    def unwait(self, turn: str, call: Call) -> None:
        """The call does not wait after all."""
        if (found := self._turns.get(turn)) is not None and call in found.calls:
            found.calls.remove(call)
            if not found.calls and not found.begun:
                self.over(turn)

    def begin(self, turn: str, *, foreign: bool = False) -> None:
        """The turn is there, whether or not a call waits for it. ``foreign``: somebody else has accepted it."""
        found = self._turns.setdefault(turn, _Turn())
        found.begun = True
        found.foreign = found.foreign or foreign

    def done(self, turn: str) -> None:
        """The turn has its `Done`: nobody waits for it any more."""
        if (found := self._turns.get(turn)) is not None:
            found.done = True
            found.calls.clear()

    def over(self, *turns: str) -> None:
        """These have come to their end, or are left to others."""
        for turn in turns:
            if (found := self._turns.pop(turn, None)) is not None:
                found.over.set()

    async def until_over(self, turns: Iterable[str]) -> None:
        for found in [self._turns[turn] for turn in turns if turn in self._turns]:
            await found.over.wait()

    def call_of(self, turn: str) -> Call:
        """What this process brought for the turn; nothing for one that nobody here waits for."""
        found = self._turns.get(turn)
        return found.calls[0] if found is not None and found.calls else Call()

    def accepted_here(self, turn: str) -> bool:
        return turn in self._turns and not self._turns[turn].foreign

    def awaited(self, turn: str, *, but: object = None) -> bool:
        """Whether somebody waits for the turn here, other than ``but``."""
        calls = self._turns[turn].calls if turn in self._turns else []
        return any(call.holder is not but and (self._lent(call) or call.holder in self.handles) for call in calls)

    def any(self, *, but: object = None) -> bool:
        """Whether somebody has the session in hand here, other than ``but``."""
        lent = (call.holder for turn in self._turns.values() for call in turn.calls if self._lent(call))
        return any(holder is not but for holder in (*self.handles, *lent))

    def _lent(self, call: Call) -> bool:
        return call.lent and call.holder not in self._left
