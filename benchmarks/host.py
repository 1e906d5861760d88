"""What a host costs: a durable turn, records to a follower, many sessions, reopening, staging; floors beside."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from common import KEY, Row, difference_ms, first, folder, model_server, ms, print_table, rate, row

import hostler
from hostler.harness import Done
from hostler.testing.fake_runtime import FAKE

_RECORDS = 20_000
_STAGED = 256 << 20
_SAY = json.dumps([{"text": "done"}])

_IDLE = """
import gc, json, os, sys
from pathlib import Path
import hostler
from hostler.testing.fake_runtime import FAKE
harness = hostler.create_harness(host=hostler.local_host(sys.argv[1]), runtime=FAKE, **json.loads(sys.argv[2]))
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
harness.sessions.get_or_create("warm").run('[{"text": "done"}]')
gc.collect()
before, total = resident(), int(sys.argv[3])
opened = [harness.sessions.get_or_create(f"idle-{number}") for number in range(total)]
gc.collect()
print((resident() - before) / total / 1024)
"""

_REOPEN = """
import json, sys, time
import hostler
from hostler.testing.fake_runtime import FAKE
start = time.perf_counter()
harness = hostler.create_harness(host=hostler.local_host(sys.argv[1]), runtime=FAKE, **json.loads(sys.argv[2]))
session = harness.sessions.get("many-77")
print(time.perf_counter() - start)
session.detach()
"""


def cpu_of_a_turn(harness: Any, at: Path, n: int) -> Row:
    """CPU of this process, all its threads; beside it a bare insert of the same number of rows, with its fsync."""

    def turn() -> float:
        start = time.process_time()
        hostler.generate_harness(harness=harness, prompt=_SAY, session="turns")
        return time.process_time() - start

    with closing(sqlite3.connect(at / "bare.db", isolation_level=None)) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=full")
        database.execute("create table records (seq integer primary key, event text)")

        def bare() -> float:
            start = time.process_time()
            for _ in range(2):  # the accepted input, the Done
                database.execute("begin immediate")
                database.executemany("insert into records (event) values (?)", [("x" * 200,)] * 2)
                database.execute("commit")
            return time.process_time() - start

        for _ in range(10):
            turn()
        pairs = [(turn(), bare()) for _ in range(n)]
    title = "CPU of a durable turn"
    return row(title, pairs, lambda a, _: a * 1000, ms, "ms", beside="bare SQLite", limit=3.0)


def records(harness: Any, at: Path, n: int) -> Row:
    """From the first record of a turn to its Done, as a follower from the start gets them."""

    def follow() -> float:
        after = harness.sessions.get_or_create("records") and harness.sessions.follow("records")
        hostler.stream_harness(harness=harness, prompt=json.dumps([{"deltas": _RECORDS}]), session="records").close()
        count, start = 0, 0.0
        for record in after:
            start = start or time.perf_counter()
            count += 1
            if isinstance(record.event, Done):
                break
        after.close()
        return count / (time.perf_counter() - start)

    def bare() -> float:
        path = at / "records.db"
        with closing(sqlite3.connect(path)) as database:
            database.execute("pragma journal_mode=wal")
            database.execute("create table if not exists records (seq integer primary key, event text)")
            start = time.perf_counter()
            for _ in range(_RECORDS // 200):
                database.executemany("insert into records (event) values (?)", [("x" * 100,)] * 200)
                database.commit()
            return _RECORDS / (time.perf_counter() - start)

    follow()
    pairs = [(follow(), bare()) for _ in range(n)]
    title = "records through journal and follower"
    return row(title, pairs, first, rate, "/s", beside="bare SQLite", limit=30_000.0, sense="at least")


def many_sessions(harness: Any, data_dir: Path, options: dict[str, Any], total: int, running: int) -> Iterator[Row]:
    """All are made, then turns run in some of them at once. Memory is that of a process which does nothing else: in this
    one, what other rows have left free would be taken first."""
    argv = [sys.executable, "-c", _IDLE, str(data_dir.parent / "idle"), json.dumps(options), str(total)]
    grown = float(subprocess.run(argv, check=True, capture_output=True, timeout=600).stdout)
    yield row("memory of an idle session", [(grown, 0.0)], first, lambda kb: f"{kb:.0f} KB", "KB", limit=40.0)
    opened = [harness.sessions.get_or_create(f"idle-{number}") for number in range(total)]
    start = time.perf_counter()

    async def run() -> None:
        async def one(number: int) -> None:
            result = await hostler.agenerate_harness(harness=harness, prompt=_SAY, session=f"idle-{number}")
            assert result.stop_reason == "done", result.error

        await asyncio.gather(*(one(number) for number in range(running)))

    asyncio.run(run())
    taken = time.perf_counter() - start
    title = f"{total:,} sessions, first turns of {running} at once"
    yield row(title, [(running / taken, 0.0)], first, rate, "/s")
    del opened


def reopen(harness: Any, data_dir: Path, options: dict[str, Any], n: int, count: int = 10_000) -> Row:
    """In a new process, from the first call to a session in hand; beside it a store with one session."""
    harness.sessions.get_or_create("many-77")
    pairs = []
    alone = data_dir.parent / "alone"
    made = hostler.create_harness(host=hostler.local_host(alone), runtime=FAKE, **options)
    made.sessions.get_or_create("many-77")
    with closing(sqlite3.connect(data_dir / "store.db", timeout=20)) as database:
        names = ", ".join(r[1] for r in database.execute("pragma table_info(sessions)") if r[1] not in ("id", "key"))
        database.executemany(
            f"insert or ignore into sessions (key, {names}) select ?, {names} from sessions where key = 'many-77'",
            [(f"many-{number}",) for number in range(count)],
        )
        database.commit()
    for _ in range(n):
        taken = []
        for place in (data_dir, alone):
            argv = [sys.executable, "-c", _REOPEN, str(place), json.dumps(options)]
            taken.append(float(subprocess.run(argv, check=True, capture_output=True, timeout=60).stdout))
        pairs.append((taken[0], taken[1]))
    title = f"reopen with {count:,} sessions"
    return row(title, pairs, lambda a, _: a * 1000, ms, "ms", beside="one session", limit=1000.0)


def staging(harness: Any, at: Path, n: int) -> Row:
    """A file of 256 MB into a session, written, hashed and synced; beside it a bare copy with fsync."""
    source, session = at / "source", harness.sessions.get_or_create("staging")
    with source.open("wb") as file:
        for _ in range(_STAGED >> 20):
            file.write(os.urandom(1 << 20))

    def stage() -> float:
        start = time.perf_counter()
        with source.open("rb") as file:
            session.files.write("big", file)
        return time.perf_counter() - start

    def copy() -> float:
        start = time.perf_counter()
        with source.open("rb") as file, (at / "copy").open("wb") as target:
            shutil.copyfileobj(file, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        return time.perf_counter() - start

    pairs = [(stage(), copy()) for _ in range(n)]
    return row("staging of 256 MB, minus a bare copy", pairs, difference_ms, ms, "ms", beside="bare copy")


def rows(quick: bool) -> Iterator[Row]:
    with folder() as at, model_server() as models:
        os.environ["HOSTLER_MAX_RUNTIMES"] = "8"
        data_dir = at / "state"
        options = {"model": "claude-sonnet-4-5", "api_base": models, "api_key": KEY}
        harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
        yield cpu_of_a_turn(harness, at, 50 if quick else 300)
        yield records(harness, at, 2 if quick else 10)
        yield staging(harness, at, 2 if quick else 8)
        yield from many_sessions(harness, data_dir, options, *((100, 10) if quick else (1000, 100)))
        yield reopen(harness, data_dir, options, 3 if quick else 15)
        for info in harness.sessions.list():
            if not info.id.startswith("many-"):
                harness.sessions.delete(info.id)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    print_table(list(rows(parser.parse_args().quick)))
