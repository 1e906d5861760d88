"""One live program as a host holds it: its keeper connection, what it says, and what is said to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from .keeper import Held, KeeperError
from .progress import Item
from .types.runtime import Frame, Send

_AHEAD = 1 << 24  # bytes that are read ahead of the store
_ITEM = 1 << 10  # bytes that each item counts for beside its data
_AT_ONCE = 256  # items that are handed out at a time: what else the loop has to do waits for them


@dataclass(frozen=True, slots=True)
class Gone:
    """The connection to the keeper ended: it died, or a host with a newer epoch took over."""

    error: Exception


def is_prompt(item: object, turn: str) -> bool:
    """Whether this is the frame in which the program was given the prompt of the turn."""
    return isinstance(item, Frame) and item.kind == "in" and item.key == turn


def _size(items: Iterable[object]) -> int:
    return sum(_ITEM + (len(item.data) if isinstance(item, Frame) else 0) for item in items)


class Program:
    """Frames of the program, model calls of the endpoint and commands from outside, in one stream of items."""

    def __init__(
        self, held: Held, *, epoch: int, token: str, tool_token: str | None, fingerprint: str, left: int = 0
    ) -> None:
        """``left`` is the number of the last frame that an earlier host left unread; 0 when there is none."""
        self.epoch = epoch
        self.token = token
        self.tool_token = tool_token
        self.fingerprint = fingerprint
        self._held = held
        self._left = left
        self._first: list[Item | Gone] = []
        self._items: deque[Item | Gone] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self.gone: Exception | None = None
        self._pump = asyncio.create_task(self._read(), name="hostler-program-pump")

    async def _read(self) -> None:
        try:
            async for batch in self._held.batches():
                while self._bytes >= _AHEAD and not self._left:
                    self._room.clear()
                    await self._room.wait()
                self._add(batch)
            self.gone = KeeperError("The connection to the keeper was closed.")
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.gone = error
        self._add([Gone(self.gone)])

    def _add(self, items: Sequence[Item | Gone]) -> None:
        self._items.extend(items)
        self._bytes += _size(items)
        self._wake.set()

    def put(self, item: Item) -> None:
        """A model call or a command, behind all frames that have arrived."""
        self._add([item])

    def put_first(self, item: Item) -> None:
        """What does not wait behind frames: the end that somebody wants of the turn."""
        self._first.append(item)
        self._wake.set()

    def put_back(self, items: Sequence[Item | Gone]) -> None:
        """Items that belong to the next turn."""
        self._items.extendleft(reversed(items))
        self._bytes += _size(items)

    async def was_given(self, turn: str) -> bool:
        """Whether an earlier host gave the program the prompt of this turn. What that host left unread has arrived then,
        at least up to there."""
        looked_at = 0
        try:
            while self._left:
                for item in islice(self._items, looked_at, None):
                    if is_prompt(item, turn):
                        return True
                    if isinstance(item, Gone) or (isinstance(item, Frame) and item.no >= self._left):
                        return False
                looked_at = len(self._items)
                self._wake.clear()
                await self._wake.wait()
            return False
        finally:
            self._left = 0

    async def arrived(self) -> AsyncGenerator[list[Item | Gone], None]:
        """What has arrived by now, a part at a time; what is not asked for stays. Nothing is put first any more for a
        turn before."""
        self._first.clear()
        count = len(self._items)
        while count > 0:
            part = self._taken(min(count, _AT_ONCE))
            count -= len(part)
            yield part
            await asyncio.sleep(0)

    async def items(self) -> list[Item | Gone]:
        """What has arrived, at least one and not too many; the loop has had its turn before."""
        if self._items:  # what was not handed out at once: nothing is waited for
            await asyncio.sleep(0)
        while not (self._first or self._items):
            self._wake.clear()
            await self._wake.wait()
        first, self._first = self._first, []
        return first + self._taken(_AT_ONCE)

    def _taken(self, count: int) -> list[Item | Gone]:
        part = [self._items.popleft() for _ in range(min(count, len(self._items)))]
        self._bytes -= _size(part)
        self._room.set()
        return part

    @property
    def usable(self) -> bool:
        """Whether it can take another turn, as far as it has been heard."""
        return self.gone is None and not any(
            isinstance(i, Gone) or (isinstance(i, Frame) and i.kind == "exit") for i in self._items
        )

    async def send(self, sends: Sequence[Send]) -> None:
        await self._held.send_all(sends)

    async def open_turn(self) -> None:
        await self._held.open_turn()

    async def close_turn(self, frame: int) -> None:
        """All up to ``frame`` is in the store and the turn is over."""
        await self._held.ack(frame, turn_done=True)

    async def read_up_to(self, frame: int) -> None:
        """All up to ``frame`` is in the store; the keeper may forget it."""
        await self._held.ack(frame)

    async def sweep_turn(self) -> None:
        await self._held.sweep_turn()

    async def end(self) -> None:
        """End the program and its whole process tree, politely first."""
        await self._stop(self._held.end)

    async def kill(self) -> None:
        """End the program and its whole process tree at once."""
        await self._stop(self._held.kill)

    async def detach(self) -> None:
        """Leave it running under its keeper."""
        await self._stop(self._held.detach)

    async def _stop(self, how: Callable[[], Awaitable[None]]) -> None:
        try:
            await how()
        except KeeperError:
            pass  # it is gone, or another host's by now
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self.gone = self.gone or KeeperError("The program was let go.")
