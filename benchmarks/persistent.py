"""Persistent dirs of 100,000 files of which 3 change: a commit and a refresh, beside a bare walk that stats them all."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from common import Row, difference_ms, folder, interleaved, ms, print_table, row

import hostler
from hostler import portal
from hostler.persistent import PersistContext, PersistentDir
from hostler.persistent.backing import Backing
from hostler.persistent.dir_sync import DirSync
from hostler.persistent.dirs import Files
from hostler.workspace import SessionDirs
from hostler.workspace.scan import scan

_FILES = 100_000
_CHANGED = 3


def rows(quick: bool) -> Iterator[Row]:
    n = 3 if quick else 10
    with folder() as at:
        source = at / "source"
        for number in range(_FILES):
            file = source / str(number // 1000) / f"{number}.md"
            if not number % 1000:
                file.parent.mkdir(parents=True)
            file.write_bytes(b"note %d" % number)
        calls: list[tuple[str, str]] = []
        dir = _counted(hostler.local_dir(source), calls)
        dirs = SessionDirs.of(at / "data", "bench")
        sync = DirSync(dir, dirs)
        turns = (f"t{number}" for number in count())

        def backing(turn: str, key: str | None = None) -> Backing:
            ctx = PersistContext("bench", dir.path, turn=turn, idempotency_key=key, data_dir=str(at / "data"))
            return Backing(dir, ctx, loop=None)

        def refresh() -> float:
            turn = next(turns)
            start = time.perf_counter()
            portal.run(sync.refresh(backing(turn), turn))
            return time.perf_counter() - start

        def commit() -> float:
            turn = next(turns)
            for number in range(_CHANGED):
                (Path(sync.path) / str(number) / f"{number * 1000}.md").write_text(turn)
            calls.clear()
            start = time.perf_counter()
            report = portal.run(sync.commit(lambda key: backing(turn, key), turn=turn, name="bench"))
            taken = time.perf_counter() - start
            assert (report.status, len(report.updated)) == ("committed", _CHANGED), report
            assert sorted(calls) == sorted(("write", f"{n}/{n * 1000}.md") for n in range(_CHANGED)), calls
            return taken

        def walk() -> float:
            start = time.perf_counter()
            scan(str(sync.path), frozenset(), marks=frozenset())
            return time.perf_counter() - start

        first = refresh()
        yield row("first checkout of 100,000 files", [(first, walk())], difference_ms, ms, "ms", beside="walk")
        yield row("refresh, nothing changed", interleaved(n, refresh, walk), difference_ms, ms, "ms", beside="walk")
        yield row("commit, 3 changed", interleaved(n, commit, walk), difference_ms, ms, "ms", beside="walk")


def _counted(dir: PersistentDir, calls: list[tuple[str, str]]) -> PersistentDir:
    """The dir, with what is read and written of single files noted."""
    source = dir.source
    assert isinstance(source, Files)

    def noted(what: str, function: Any) -> Any:
        def call(ctx: PersistContext, path: str, *more: Any) -> Any:
            calls.append((what, path))
            return function(ctx, path, *more)

        return call

    counted = {what: noted(what, getattr(source, what)) for what in ("read", "delete")}

    def write(ctx: PersistContext, path: str, content: bytes, version: str | None) -> Any:
        calls.append(("write", path))
        assert source.write is not None
        return source.write(ctx, path, content, version)

    return replace(dir, source=replace(source, write=write, **counted))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    print_table(list(rows(parser.parse_args().quick)))
