"""Small programs to keep, and helpers to watch them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from hostler.keeper import Held, KeeperAddress, KeeperGone, KeeperSpec, attach
from hostler.types.runtime import Frame

T = TypeVar("T")
PYTHON = [sys.executable, "-I", "-S", "-u", "-c"]

# Answers each line "KIND REST" on stdin.
PROGRAM = r"""
import json, os, signal, subprocess, sys, time

def tree(detached_env=False):
    "plain child, own session, double fork, TERM ignored, cleaned environment"
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    run = [sys.executable, "-I", "-S", "-c"]
    pids = [subprocess.Popen([*run, code]).pid, subprocess.Popen([*run, code], start_new_session=True).pid]
    double = "import os, subprocess, sys; p = subprocess.Popen(sys.argv[1:], start_new_session=True{}); os._exit(0)"
    for extra in ("", ", env={}"):
        subprocess.run([*run, double.format(extra), *run, code])
    return pids

for line in sys.stdin.buffer:
    kind, _, rest = line.rstrip(b"\n").partition(b" ")
    if kind == b"echo":
        out = rest
    elif kind == b"exit":
        sys.exit(int(rest))
    elif kind == b"env":
        out = json.dumps(dict(os.environ)).encode()
    elif kind == b"fds":
        out = json.dumps(sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}"))).encode()
    elif kind == b"tree":
        tree()
        out = b"grown"
    elif kind == b"lines":
        n = int(rest)
        for i in range(n):
            sys.stdout.buffer.write(b"%d\n" % i)
        out = b"end"
    elif kind == b"long":
        out = b"x" * int(rest)
    sys.stdout.buffer.write(out + b"\n")
    sys.stdout.buffer.flush()
"""


_held: list[Held] = []


def run(work: Coroutine[Any, Any, T], limit: float = 40) -> T:
    async def bounded() -> T:
        try:
            async with asyncio.timeout(limit):
                return await work
        finally:
            while _held:
                await _held.pop().detach()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in the engine
        return runner.run(bounded())


async def hold(
    address: KeeperAddress, epoch: int = 1, after: int = 0, holder: str = "h", upstream: str | None = None, **more: Any
) -> Held:
    """Attached until the end of `run`."""
    held = await attach(address, epoch=epoch, holder=holder, after=after, upstream=upstream, **more)
    _held.append(held)
    return held


def program(folder: Path, code: str = PROGRAM, **changes: Any) -> KeeperSpec:
    values: dict[str, Any] = {
        "argv": [*PYTHON, code],
        "env": {"PATH": "/usr/bin:/bin", "COLOUR": "green"},
        "cwd": str(folder),
        "dir": str(folder / "keeper"),
        "mark": f"test-{os.getpid()}-{time.monotonic_ns()}",
    }
    return KeeperSpec(**(values | changes))


class Reader:
    """Reads frames of a held program up to the one that is waited for."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.frames: list[Frame] = []
        self._batches: AsyncIterator[list[Frame]] = held.batches()
        self._seen = 0

    async def until(self, test: Callable[[Frame], bool], limit: float = 15) -> Frame:
        async with asyncio.timeout(limit):
            while True:
                while self._seen < len(self.frames):
                    self._seen += 1
                    if test(self.frames[self._seen - 1]):
                        return self.frames[self._seen - 1]
                self.frames += await anext(self._batches)

    async def out(self, data: bytes, limit: float = 15) -> Frame:
        return await self.until(lambda f: f.kind == "out" and f.data == data, limit)

    async def next_out(self) -> bytes:
        return (await self.until(lambda f: f.kind == "out")).data

    async def exit(self) -> Frame:
        return await self.until(lambda f: f.kind == "exit")

    async def rest(self) -> list[Frame]:
        async for batch in self._batches:
            self.frames += batch
        return self.frames

    async def rest_or_gone(self) -> list[Frame]:
        """All that still comes, however the connection ends."""
        try:
            return await self.rest()
        except KeeperGone:
            return self.frames

    def kinds(self, kind: str) -> list[bytes]:
        return [f.data for f in self.frames if f.kind == kind]


def processes(mark: str) -> set[int]:
    """By the mark, and everything below (a cleaned environment does not hide from its parent)."""
    from hostler.keeper.holder import tree

    found = tree.marked(mark)
    for pid in list(found):
        found |= tree.below(pid).keys()
    return {pid for pid in found if tree.started(pid)}


def below(address: KeeperAddress) -> set[int]:
    from hostler.keeper.holder import tree

    return set(tree.below(address.pid))


async def eventually(test: Callable[[], bool], limit: float = 5.0) -> float:
    """How long it took until ``test`` held; fails after ``limit``."""
    begin = time.monotonic()
    while not test():
        assert time.monotonic() - begin < limit, "it does not come about"
        await asyncio.sleep(0.005)
    return time.monotonic() - begin


def rss(pid: int) -> int:
    """Resident megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def address_of(text: str) -> KeeperAddress:
    return KeeperAddress.from_dict(json.loads(text))


Starter = Callable[..., Awaitable[KeeperAddress]]
