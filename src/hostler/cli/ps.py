"""hostler ps, kill, gc: the programs of the state dir from outside."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .. import portal
from ..host import Host
from ..host.gc import unowned
from ..host.settings import state_dir
from ..host.upkeep import KeptProgram, kill, programs
from ..store import Store
from .terminal import FAILED, console
from .view import printable

T = TypeVar("T")


def ps_command() -> int:
    """Prints the living programs."""
    path = _database()
    found = portal.run(_with_store(path, programs)) if path is not None else []
    out = console()
    if not found:
        out.print(f"no programs run for {printable(state_dir())}", soft_wrap=True)
        return 0
    rows = [("session", "program", "pid", "state", "age", "memory")]
    rows += [(printable(p.session), printable(p.program), str(p.pid), p.state, _age(p), _memory(p)) for p in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:  # not a table of rich: that cuts keys off where the terminal is narrow
        out.print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), soft_wrap=True
        )
    return 0


def kill_command(key: str) -> int:
    """Ends the program of a session; exit code 1 when there was none."""
    if _database() is None:
        raise ValueError(f"There are no sessions in {state_dir()}; set HOSTLER_STATE_DIR to where they are.")

    async def work() -> bool:
        host = await Host.open(state_dir())
        try:
            return await kill(host, key)
        finally:
            await host.close()

    ended = portal.run(work())
    words = "ended; the session can be resumed" if ended else "has no turn and no program"
    console().print(f"session {printable(key)} {words}", soft_wrap=True)
    return 0 if ended else FAILED


def gc_command(dry_run: bool) -> int:
    """Removes what nobody owns, and says what that was; exit code 1 when something could not be removed."""
    path = _database()
    failed = False

    async def work(store: Store | None) -> None:
        nonlocal failed
        out = console()
        found = await unowned(state_dir(), store)
        for leftover in found:
            if dry_run:
                out.print(f"would remove: {printable(leftover.what)}", soft_wrap=True)
                continue
            try:
                await leftover.remove()
                out.print(f"removed: {printable(leftover.what)}", soft_wrap=True)
            except OSError as error:
                failed = True
                out.print(f"not removed ({error}): {printable(leftover.what)}", soft_wrap=True)
        if not found:
            out.print("nothing to remove")

    portal.run(_with_store(path, work) if path is not None else work(None))
    return FAILED if failed else 0


def _database() -> str | None:
    path = os.path.join(state_dir(), "store.db")
    return path if os.path.exists(path) else None


async def _with_store(path: str, work: Callable[[Store], Awaitable[T]]) -> T:
    store = Store.open(path)
    try:
        return await work(store)
    finally:
        store.close()


def _age(program: KeptProgram) -> str:
    seconds = int(program.age)
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _memory(program: KeptProgram) -> str:
    return f"{program.memory / (1 << 20):.0f} MB"
