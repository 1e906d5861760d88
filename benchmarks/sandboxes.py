"""What a sandbox costs: its start, a command in a living one, a turn, in bubblewrap and in containers; snapshots of large
workspaces."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import KEY, Pair, Row, difference_ms, folder, interleaved, model_server, ms, print_table, row

import containers
import hostler
from hostler import sandbox
from hostler.sandboxes import probe
from hostler.testing.fake_runtime import FAKE
from hostler.workspace import snapshots

_BARE = [
    "--unshare-user",
    "--uid",
    "1000",
    "--gid",
    "1000",
    "--unshare-pid",
    "--unshare-net",
    "--ro-bind",
    "/usr",
    "/usr",
]
_BARE += ["--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]
_BARE += ["--proc", "/proc", "--dev", "/dev", "--cap-drop", "ALL", "--", "/bin/true"]
_EXEC = "import os, sys, time\ntimes = []\nfor _ in range(int(sys.argv[1])):\n"
_EXEC += "    start = time.perf_counter()\n    os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\n"
_EXEC += "    times.append(time.perf_counter() - start)\nprint(times)\n"
_CHANGED = 10
_LIMIT = 8 << 30


@contextlib.contextmanager
def session(kind: str, models: str, at: str) -> Iterator[Any]:
    """A session of the fake program, made and with its first turn behind it."""
    options: dict[str, Any] = {"model": "claude-sonnet-4-5", "api_base": models, "api_key": KEY, "state_dir": at}
    fake: Any = FAKE
    with hostler.agent_session(fake, sandbox=getattr(sandbox, kind), **options) as opened:
        opened.run("begin")
        yield opened


def start(models: str, at: str, n: int) -> Row:
    """From nothing to the end of the first turn; what bubblewrap adds. Beside it the same in `local`."""

    def taken(kind: str) -> float:
        begun = time.perf_counter()
        with session(kind, models, at):
            return time.perf_counter() - begun

    taken("bubblewrap")
    pairs = interleaved(n, lambda: taken("bubblewrap"), lambda: taken("local"))
    return row("first turn of a session in bubblewrap, minus in local", pairs, difference_ms, ms, "ms", beside="local")


def bare(n: int) -> Row:
    """The program alone, with a handful of mounts; beside it the command that it runs."""

    def taken(argv: list[str]) -> float:
        begun = time.perf_counter()
        subprocess.run(argv, check=True)
        return time.perf_counter() - begun

    pairs = interleaved(n, lambda: taken([probe.binary(), *_BARE]), lambda: taken(["/bin/true"]))
    return row("bare bwrap true, minus true", pairs, difference_ms, ms, "ms", beside="true")


def turn(models: str, at: str, n: int) -> Row:
    """A further turn of a living program."""
    with session("bubblewrap", models, at) as inside, session("local", models, at) as outside:

        def taken(opened: Any) -> float:
            begun = time.perf_counter()
            opened.run("again")
            return time.perf_counter() - begun

        pairs = interleaved(n, lambda: taken(inside), lambda: taken(outside))
    title = "turn 2+ in bubblewrap, minus in local"
    return row(title, pairs, difference_ms, ms, "ms", beside="local", limit=10.0)


def exec_in_a_live_one(models: str, at: str, n: int) -> Row:
    """A command that a living program in the sandbox starts, to its end; beside it the same in `local`."""
    times: dict[str, list[float]] = {}
    for kind in ("bubblewrap", "local"):
        with session(kind, models, at) as opened:
            opened.files.write("exec.py", _EXEC.encode())
            command = f'"$FAKE_PYTHON" -I -S exec.py {n}'
            times[kind] = json.loads(opened.run(json.dumps([{"shell": command}])).text)
    pairs: list[Pair] = list(zip(times["bubblewrap"], times["local"], strict=True))
    return row("exec of true in a live sandbox", pairs, first_ms, ms, "ms", beside="local", limit=5.0)


def snapshot(files: int, n: int) -> Iterator[Row]:
    """Taken again and put back after some files have changed; beside it a first one, of all."""
    with tempfile.TemporaryDirectory(prefix="hostler-bench-") as place:
        root, store = Path(place, "work"), str(Path(place, "store"))
        for number in range(files):
            path = root / f"{number // 200}" / f"{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d" % number * 200)
        time.sleep(0.1)
        begun = time.perf_counter()
        snapshots.take(str(root), store, _LIMIT)
        whole = time.perf_counter() - begun
        again, back = [], []
        for turn in range(n):
            for number in range(_CHANGED):
                (root / f"{number}" / f"{number * 200}").write_text(f"changed in {turn}")
            time.sleep(0.1)
            begun = time.perf_counter()
            id = snapshots.take(str(root), store, _LIMIT).id
            again.append(time.perf_counter() - begun)
            for number in range(_CHANGED):
                (root / f"{number}" / f"{number * 200}").write_text("and again")
            begun = time.perf_counter()
            snapshots.restore(str(root), store, id)
            back.append(time.perf_counter() - begun)
    for title, times in (
        (f"snapshot of {files:,} files, {_CHANGED} changed", again),
        (f"restore of {files:,} files, {_CHANGED} changed", back),
    ):
        yield row(title, [(taken, whole) for taken in times], first_ms, ms, "ms", beside="snapshot of all")


def first_ms(a: float, b: float) -> float:
    return a * 1000


def rows(quick: bool) -> Iterator[Row]:
    if (missing := probe.missing()) is not None:
        print(f"bubblewrap is not measured: {missing}", file=sys.stderr)
    else:
        with folder() as at, model_server() as models:
            state = str(at / "state")
            yield bare(20 if quick else 100)
            yield start(models, state, 4 if quick else 30)
            yield exec_in_a_live_one(models, state, 50 if quick else 500)
            yield turn(models, state, 20 if quick else 200)
    yield from containers.rows(quick)
    for files in (5_000,) if quick else (5_000, 100_000):
        yield from snapshot(files, 2 if quick else 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    print_table(list(rows(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
