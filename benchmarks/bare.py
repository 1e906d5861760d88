"""The least that a durable turn can take: the program under a keeper, its model calls handed on by a host that reads
nothing in them, and one durable commit before the prompt and one behind the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from common import HARNESSES, LAST, TIMEOUT, places_of, prompt

from hostler import keeper, portal
from hostler.runtimes import runtime_for
from hostler.types.runtime import Frame, LaunchContext, Prompt, Runtime


class _HandOn(asyncio.Protocol):
    """What comes on one connection goes out on another, as it is; ``to`` is made when the first bytes come."""

    def __init__(self, host: str, port: int, back: asyncio.Transport | None = None) -> None:
        self._at = host, port
        self._to = back
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own = cast(asyncio.Transport, transport)
        if self._to is None:
            self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._to, _ = await loop.create_connection(lambda: _HandOn(*self._at, back=self._own), *self._at)
        self._to.write(self._waiting)

    def data_received(self, data: bytes) -> None:
        if self._to is None:
            self._waiting += data
        else:
            self._to.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._to is not None:
            self._to.close()


class Bare:
    def __init__(self, runtime: Runtime, context: LaunchContext, held: keeper.Held, db: sqlite3.Connection) -> None:
        self._codec = runtime.codec
        self._last = LAST[runtime.name]
        self._held = held
        self._batches = held.batches()
        self._db = db
        self._turns = 0
        begun = self._codec.start(context)
        self._state = begun.state
        portal.run(held.send_all(begun.sends))
        self._fold(portal.run(self._turn(answering=True)))

    def turn(self) -> float:
        """Seconds from the prompt to the end of the second commit; nothing is parsed meanwhile."""
        start = time.perf_counter()
        frames = portal.run(self._turn())
        taken = time.perf_counter() - start
        self._fold(frames)
        return taken

    async def _turn(self, *, answering: bool = False) -> list[Frame]:
        self._turns += 1
        await asyncio.to_thread(self._commit)
        folded = self._codec.encode(self._state, Prompt(f"turn_{self._turns}", prompt(self._turns)))
        self._state = folded.state
        await self._held.send_all(folded.sends)
        frames: list[Frame] = []
        while True:
            async with asyncio.timeout(TIMEOUT):
                batch = await anext(self._batches)
            if answering:  # the handshake is in the first turn
                for frame in batch:
                    folded = self._codec.fold(self._state, frame)
                    self._state = folded.state
                    await self._held.send_all(folded.sends)
            else:
                frames += batch
            if any(frame.kind == "out" and self._last in frame.data for frame in batch):
                break
        await asyncio.to_thread(self._commit)
        await self._held.ack(batch[-1].no, turn_done=True)
        return frames

    def _commit(self) -> None:
        self._db.execute("INSERT INTO records (text) VALUES (?)", ("x" * 600,))

    def _fold(self, frames: list[Frame]) -> None:
        for frame in frames:
            folded = self._codec.fold(self._state, frame)
            self._state = folded.state
            portal.run(self._held.send_all(folded.sends))


@contextlib.contextmanager
def bare(name: str, models: str, at: Path) -> Iterator[Bare]:
    """The program, ready for its second turn."""
    runtime = runtime_for(HARNESSES[name])
    model = socket.create_server(("127.0.0.1", 0))
    context, plan, env = places_of(runtime, at, f"http://127.0.0.1:{model.getsockname()[1]}")
    upstream = str(at / "host.sock")
    serving = portal.run(_hand_on(upstream, models))
    held = portal.run(_start(list(plan.argv), env, context.workdir, at, upstream, model))
    db = sqlite3.connect(at / "store.db", isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE records (seq INTEGER PRIMARY KEY, text TEXT)")
        yield Bare(runtime, context, held, db)
    finally:
        db.close()
        portal.run(held.kill())
        portal.engine().loop.call_soon_threadsafe(serving.close)


async def _hand_on(upstream: str, models: str) -> asyncio.Server:
    to = urlsplit(models)
    assert to.hostname
    assert to.port
    host, port = to.hostname, to.port
    return await asyncio.get_running_loop().create_unix_server(lambda: _HandOn(host, port), upstream)


async def _start(
    argv: list[str], env: dict[str, str], workdir: str, at: Path, upstream: str, model: socket.socket
) -> keeper.Held:
    spec = keeper.KeeperSpec(argv, env, workdir, str(at / "keeper"), uuid.uuid4().hex)
    with model:
        address = await keeper.start(spec, model)
    return await keeper.attach(address, epoch=1, holder="bare", after=0, upstream=upstream)
