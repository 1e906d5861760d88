"""Follow: the records of a session's journal as they come, for sync and async code."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import AsyncIterator, Iterator

from . import portal
from .host.journal import Follower
from .types.events import Record


class Follow:
    """Iterate it with ``for`` or ``async for``; it ends with ``close()``. A bad number is raised at the first step."""

    def __init__(self, opening: concurrent.futures.Future[Follower]) -> None:
        self._opening = opening
        self._ready: deque[Record] = deque()

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if not self._ready:
            self._ready.extend(portal.run(self._batch()))
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        if not self._ready:
            self._ready.extend(await portal.arun(self._batch()))
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    def close(self) -> None:
        """Stop following."""
        portal.post(self._close)

    def __del__(self) -> None:
        portal.post(self._close)

    async def _batch(self) -> list[Record]:
        return await (await asyncio.wrap_future(self._opening)).batch()

    async def _close(self) -> None:
        try:
            (await asyncio.wrap_future(self._opening)).close()
        except Exception:
            pass  # it never began
