"""hostler ps, kill, gc: the programs of a data dir from outside."""

from __future__ import annotations

from .. import portal
from ..host import Host
from ..host.gc import unowned
from ..host.upkeep import KeptProgram, kill, programs
from ..store import Store
from . import stored
from .terminal import FAILED, console
from .view import printable


def ps_command(data_dir: str | None) -> int:
    """Prints the living programs."""
    path = stored.path_of(data_dir)
    found = stored.read(path, programs) if stored.holds_sessions(path) else []
    out = console()
    if not found:
        out.print(f"no programs run for {printable(path)}", soft_wrap=True)
        return 0
    rows = [("session", "program", "pid", "state", "age", "memory")]
    rows += [(printable(p.session), printable(p.program), str(p.pid), p.state, _age(p), _memory(p)) for p in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:  # not a table of rich: that cuts keys off where the terminal is narrow
        out.print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), soft_wrap=True
        )
    return 0


def kill_command(key: str, data_dir: str | None) -> int:
    """Ends the program of a session; exit code 1 when there was none."""
    path = stored.data_dir_of(data_dir)
    row = stored.read(path, lambda store: stored.find(store, key))

    async def work() -> bool:
        host = await Host.open(path)
        try:
            return await kill(host, row.key)
        finally:
            await host.close()

    ended = portal.run(work())
    words = "ended; the session can be resumed" if ended else "has no turn and no program"
    console().print(f"session {printable(row.key)} {words}", soft_wrap=True)
    return 0 if ended else FAILED


def gc_command(dry_run: bool, data_dir: str | None) -> int:
    """Removes what nobody owns, and says what that was; exit code 1 when something could not be removed."""
    path = stored.path_of(data_dir)
    failed = False

    async def work(store: Store | None) -> None:
        nonlocal failed
        out = console()
        found = await unowned(path, store)
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

    if stored.holds_sessions(path):
        stored.read(path, work)
    else:
        portal.run(work(None))
    return FAILED if failed else 0


def _age(program: KeptProgram) -> str:
    seconds = int(program.age)
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _memory(program: KeptProgram) -> str:
    return f"{program.memory / (1 << 20):.0f} MB"
