"""The journal's readers: each gets every record of its session once, in order, from memory where it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Row

from ..store import Store, journal
from ..types.events import Done, Record

_POLL = 0.1  # s between looks into the store while another process writes the session
_PAGE = 1000
_KEEP = 10_000  # records that wait in memory for a slow reader before it is sent back to the store


class Follower:
    """One reader of one session's journal, from ``after`` on. ``turn`` limits it to one turn, up to its `Done`."""

    def __init__(
        self, journal: Journal, session: int, after: int, turn: str | None = None, *, current: bool = False
    ) -> None:
        self._journal = journal
        self.session = session
        self.turn = turn
        self.waits = False  # its reader waits for the end of the turn and sees nothing before it
        self._last = after  # number of the last record that is in _ready or was given out
        self._ready: list[Record] = []
        self._live = current  # every later record will be pushed; else the store has to be read
        self._pushed = False
        self._wake = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None

    def push(self, records: Sequence[Record]) -> None:
        """Records that were just committed."""
        self._pushed = True
        self._wake.set()
        if not self._live or records[-1].seq <= self._last:
            return
        if records[0].seq > self._last + 1 or len(self._ready) > _KEEP:
            self._live = False
            return
        self._ready += records[max(0, self._last + 1 - records[0].seq) :]  # their numbers have no gaps
        self._last = records[-1].seq

    async def batch(self) -> list[Record]:
        """The next records, at least one; empty when the turn is over or the follower was closed."""
        while not self._ended:
            if self._ready:
                ready, self._ready = self._ready, []
                if mine := self._mine(ready):
                    return mine
            elif not self._live:
                self._pushed = False
                found = await self._journal.read(self.session, self._last)
                if found:
                    self._ready = found
                    self._last = found[-1].seq
                # What was committed before the read is in it; what was pushed meanwhile needs another look.
                self._live = not self._pushed and len(found) < _PAGE
            elif self._error is not None:  # behind all that there is
                self.close()
                raise self._error
            else:
                self._wake.clear()
                try:
                    async with asyncio.timeout(None if self._journal.writes_here(self.session) else _POLL):
                        await self._wake.wait()
                except TimeoutError:
                    self._live = False
        return []

    def _mine(self, records: list[Record]) -> list[Record]:
        if self.turn is None:
            return records
        mine = [r for r in records if r.turn == self.turn]
        if mine and isinstance(mine[-1].event, Done):
            self.close()
        return mine

    def wake(self) -> None:
        """Look again at who writes. What another process wrote meanwhile is missed by its number, or by the next poll."""
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """Nothing more is journalled of the turn here."""
        self._error = error
        self._live = False
        self._wake.set()

    def close(self) -> None:
        self._ended = True
        self._journal.leave(self)
        self._wake.set()


class Journal:
    """Who follows which session in this process."""

    def __init__(self, store: Store, writes_here: Callable[[int], bool], fetch: journal.Fetch | None = None) -> None:
        self._store = store
        self.fetch = fetch
        self.writes_here = writes_here
        self._followers: dict[int, set[Follower]] = {}

    def follow(self, session: int, after: int, turn: str | None = None, *, current: bool = False) -> Follower:
        """``current``: what follows record ``after`` is published from now on, so nothing need be looked up."""
        follower = Follower(self, session, after, turn, current=current)
        self._followers.setdefault(session, set()).add(follower)
        return follower

    def follow_from(self, session: Row[Any], after: int | None) -> Follower:
        """A reader of the whole session above ``after`` (None: from now on). Raises ValueError for a number that the
        session has not reached, TypeError for what is no number of a record."""
        if after is not None and (not isinstance(after, int) or isinstance(after, bool)):
            raise TypeError(f"after must be the number of a record (an int) or None, not {after!r}.")
        if after is not None and not 0 <= after <= session.seq:
            raise ValueError(
                f"Session {session.key!r} has records 1 to {session.seq}; it cannot be followed from {after}."
            )
        return self.follow(session.id, session.seq if after is None else after)

    def leave(self, follower: Follower) -> None:
        group = self._followers.get(follower.session)
        if group:
            group.discard(follower)
            if not group:
                del self._followers[follower.session]

    def publish(self, session: int, records: Sequence[Record]) -> None:
        """Tell the followers what was committed. Call it only after the commit."""
        if records:
            for follower in tuple(self._followers.get(session, ())):
                follower.push(records)

    def wake(self, session: int) -> None:
        """A turn of this session began or ended here: followers choose anew between waiting and looking."""
        for follower in tuple(self._followers.get(session, ())):
            follower.wake()

    def fail(self, session: int, turn: str, error: Exception, *, only_waiting: bool = False) -> None:
        """Tell those who follow this turn, or only those who wait for its end, that nothing more is journalled of it
        here."""
        for follower in tuple(self._followers.get(session, ())):
            if follower.turn == turn and (follower.waits or not only_waiting):
                follower.fail(error)

    async def read(self, session: int, after: int) -> list[Record]:
        return await self._store.read(
            lambda conn: journal.read_records(conn, session, after, limit=_PAGE, fetch=self.fetch)
        )
