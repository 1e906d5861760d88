"""What a resume costs in a new process, beside litellm's; and what a keeper costs: start, memory, a turn, throughput."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from common import (
    KEY,
    Lines,
    Pair,
    Row,
    difference_ms,
    first,
    folder,
    interleaved,
    model_server,
    ms,
    peer_environment,
    peer_python,
    print_table,
    process,
    prompt,
    ratio,
    row,
)

from hostler import keeper
from hostler.keeper import KeeperAddress, KeeperSpec

_PROGRAMS = {
    "claude_code": ("Claude Code", "claude-sonnet-4-5", 6.0),
    "codex": ("Codex", "gpt-5", 3.0),
    "opencode": ("OpenCode", "gpt-5", 10.0),
}
_RESUMER = str(Path(__file__).with_name("resumer.py"))
_FLOOD = 200 << 20
_names = itertools.count(1)

# ---- resume ---------------------------------------------------------------------------------------------------------


class Chat:
    """A conversation whose turns run in one app after the other; each detaches at the end of its turn.

    ``workers``: the apps are two running ones, which have served another conversation before; else each is new.
    """

    def __init__(self, name: str, models: str, at: Path, *, peer: bool, workers: bool) -> None:
        (at / "work").mkdir(parents=True)
        _, model, _ = _PROGRAMS[name]
        self._model = f"litellm_proxy/{model}" if peer else model
        self._fixed = {"harness": name, "workdir": str(at / "work"), "model": self._model, "base": models, "key": KEY}
        self._argv = [str(peer_python()), _RESUMER, "litellm"] if peer else [sys.executable, _RESUMER, "hostler"]
        self._env = peer_environment(name, at) if peer else {**os.environ, "HOSTLER_STATE_DIR": str(at / "state")}
        self._apps = contextlib.ExitStack()
        self._workers = [self._app() for _ in range(2)] if workers else []
        self._states: dict[str, str] = {}
        self._turns = 0

    def warm_up(self) -> None:
        """Another conversation in each running app, and the first turn of this one."""
        for number, worker in enumerate(self._workers):
            self._run(worker, f"other {number}")
        self.turn()

    def turn(self) -> float:
        """Seconds from the resume call to the first text of its turn; the app's start and imports are not in it."""
        self._turns += 1
        if self._workers:
            return self._run(self._workers[self._turns % 2], "chat")
        with process(self._argv, self._env) as app:
            assert app.read() == b"ready"
            return self._run(app, "chat")

    def end(self) -> None:
        """Of the apps, and of the programs that are parked."""
        self._apps.close()
        for state in self._states.values():
            if (key := json.loads(state).get("session")) is not None:
                argv = [sys.executable, "-m", "hostler.cli", "kill", key]
                subprocess.run(argv, env=self._env, check=True, stdout=subprocess.DEVNULL, timeout=60)

    def _app(self) -> Lines:
        app = self._apps.enter_context(process(self._argv, self._env))
        assert app.read() == b"ready"
        return app

    def _run(self, app: Lines, chat: str) -> float:
        app.write(json.dumps({**self._fixed, "prompt": prompt(self._turns), "state": self._states.get(chat)}).encode())
        said = json.loads(app.read())
        if said["stop"] != "done" or said["seconds"] is None:
            raise RuntimeError(f"a turn failed: {said}")
        self._states[chat] = said["state"]
        return float(said["seconds"])


def beside_litellm(name: str, n: int, *, workers: bool) -> Row:
    title, _, limit = _PROGRAMS[name]
    with folder() as at, model_server() as models, contextlib.ExitStack() as chats:
        sides = []
        for where, is_peer in ((at / "ours", False), (at / "theirs", True)):
            sides.append(Chat(name, models, where, peer=is_peer, workers=workers))
            chats.callback(sides[-1].end)
            sides[-1].warm_up()
        pairs = interleaved(n, sides[0].turn, sides[1].turn)
    app = "another running app" if workers else "an app just started"
    what = f"resume of {title} in {app} to its first text, litellm's as a multiple"
    return row(what, pairs, ratio, ms, "x", beside="litellm", limit=limit if workers else None, sense="at least")


# ---- the keeper -----------------------------------------------------------------------------------------------------

# Answers each line with itself; "flood N" with N bytes in lines of 200.
ECHO = """
import sys
out = sys.stdout.buffer
for line in sys.stdin.buffer:
    if line.startswith(b"flood"):
        part = (b"x" * 199 + b"\\n") * 1000
        for _ in range(int(line.split()[1]) // len(part)):
            out.write(part)
    out.write(line)
    out.flush()
"""


def spec(at: Path) -> KeeperSpec:
    argv = [sys.executable, "-I", "-S", "-u", "-c", ECHO]
    mark = secrets.token_hex(16)
    return KeeperSpec(argv=argv, env={"PATH": os.defpath}, cwd=str(at), dir=str(at / mark), mark=mark)


@contextlib.asynccontextmanager
async def kept(at: Path):  # type: ignore[no-untyped-def]
    """A program under a keeper, as (its address, how to have one line answered)."""
    address = await keeper.start(spec(at), None)
    held = await keeper.attach(address, epoch=1, holder="bench", after=0, upstream=None)
    batches = held.batches()
    keys = itertools.count(1)

    async def ask(line: bytes) -> None:
        await held.open_turn()
        await held.send(f"k{next(keys)}", line)
        while True:
            batch = await anext(batches)
            done = any(frame.kind == "out" and frame.data == line for frame in batch)
            await held.ack(batch[-1].no, turn_done=done)
            if done:
                return

    try:
        yield address, ask
    finally:
        await held.kill()


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


async def starts(at: Path, n: int) -> list[Pair]:
    """Start of a keeper until it says that it and its program run; beside it the start of the same program alone."""
    pairs = []
    for _ in range(n):
        addresses: list[KeeperAddress] = []

        async def kept_one(into: list[KeeperAddress] = addresses) -> None:
            into.append(await keeper.start(spec(at), None))

        async def alone() -> None:
            one = await asyncio.create_subprocess_exec(*spec(at).argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            one.kill()
            await one.wait()

        pairs.append((await timed(kept_one), await timed(alone)))
        await asyncio.to_thread(keeper.destroy, addresses[0])
    return pairs


async def turns(at: Path, n: int) -> list[Pair]:
    """One line and its answer, with open_turn and acknowledgement; beside it the same line over plain pipes."""
    direct = await asyncio.create_subprocess_exec(*spec(at).argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert direct.stdin is not None
    assert direct.stdout is not None
    stdin, stdout = direct.stdin, direct.stdout

    async def ask_directly() -> None:
        stdin.write(b"hello\n")
        await stdout.readline()

    try:
        async with kept(at) as (_, ask):
            await ask(b"warm")
            await ask_directly()
            return [(await timed(lambda: ask(b"hello")), await timed(ask_directly)) for _ in range(n)]
    finally:
        direct.kill()
        await direct.wait()


async def flood(at: Path, n: int) -> tuple[list[Pair], list[Pair]]:
    """Throughput to a host that reads, and the keeper's memory after each round; both with nothing beside them."""
    rates, sizes = [], []
    for _ in range(n):
        async with kept(at) as (address, ask):
            taken = await timed(lambda: ask(b"flood %d" % _FLOOD))
            rates.append((_FLOOD / taken / 1e6, 0.0))
            sizes.append((resident(address.pid) / (1 << 20), 0.0))
    return rates, sizes


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def of_the_keeper(quick: bool) -> Iterator[Row]:
    with folder() as at:
        pairs = asyncio.run(starts(at, 5 if quick else 30))
        yield row("keeper: start to ready, program included", pairs, first_ms, ms, "ms", beside="program alone")
        pairs = asyncio.run(turns(at, 50 if quick else 500))
        yield row("keeper: added to a turn of a program", pairs, difference_ms, ms, "ms", beside="pipes", limit=3.0)
        rates, sizes = asyncio.run(flood(at, 1 if quick else 5))
        yield row("keeper: 200-byte lines to the host", rates, first, lambda v: f"{v:.0f} MB/s", "MB/s")
        yield row("keeper: resident after 200 MB", sizes, first, lambda v: f"{v:.1f} MB", "MB", limit=20.0)


def first_ms(a: float, b: float) -> float:
    return a * 1000


def rows(quick: bool) -> Iterator[Row]:
    yield from of_the_keeper(quick)
    if peer_python() is not None:
        for name in _PROGRAMS:
            yield beside_litellm(name, 3 if quick else 20, workers=True)
            yield beside_litellm(name, 3 if quick else 8, workers=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pairs")
    print_table(list(rows(parser.parse_args().quick)))
