"""What a turn costs: beside the program's own protocol driven by hand, beside litellm, and in a large folder."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bare import bare
from common import (
    HARNESSES,
    KEY,
    MODELS,
    Pair,
    Row,
    by_hand,
    difference_ms,
    folder,
    interleaved,
    is_installed,
    model_server,
    ms,
    peer,
    peer_python,
    print_table,
    prompt,
    ratio,
    row,
)

import hostler

_PER_SESSION = 50  # pairs before both sides begin new conversations
_FILES = 20_000
_AT_LEAST = {"claude_code": 8.0, "codex": 4.0, "opencode": 12.0}
_AT_MOST = {"claude_code": 5.0, "codex": 5.0, "opencode": 15.0}
_TITLES = {"claude_code": "Claude Code", "codex": "Codex", "opencode": "OpenCode"}
_names = itertools.count(1)


@contextlib.contextmanager
def session(name: str, models: str, at: Path, *, workdir: Path | None = None) -> Iterator[Callable[[], float]]:
    """One turn of a hostler session as a call that says how long it took; the first one is behind it."""
    work = workdir or at / "work"
    work.mkdir(parents=True, exist_ok=True)
    options = {"model": MODELS[name], "api_base": models, "api_key": KEY, "state_dir": str(at / "state")}
    with hostler.agent_session(HARNESSES[name], sandbox=hostler.sandbox.local(work), **options) as opened:
        numbers = itertools.count(1)

        def turn() -> float:
            text = prompt(next(numbers))
            start = time.perf_counter()
            result = opened.run(text)
            taken = time.perf_counter() - start
            if result.stop_reason != "done":
                raise RuntimeError(f"hostler's turn failed: {result.error}")
            return taken

        turn()
        yield turn


def new(at: Path) -> Path:
    path = at / f"{next(_names)}"
    path.mkdir()
    return path


def beside_by_hand(name: str, n: int) -> Row:
    pairs: list[Pair] = []
    with folder() as at, model_server() as models:
        while len(pairs) < n:
            with session(name, models, new(at)) as ours, by_hand(name, models, new(at)) as hand:
                interleaved(2, ours, hand.turn)
                pairs += interleaved(min(_PER_SESSION, n - len(pairs)), ours, hand.turn)
    title = f"turn 2+ of {_TITLES[name]}, minus its protocol by hand"
    return row(title, pairs, difference_ms, ms, "ms", beside="by hand", limit=_AT_MOST[name])


def floor(name: str, n: int) -> Row:
    pairs: list[Pair] = []
    with folder() as at, model_server() as models:
        while len(pairs) < n:
            with bare(name, models, new(at)) as least, by_hand(name, models, new(at)) as hand:
                interleaved(2, least.turn, hand.turn)
                pairs += interleaved(min(_PER_SESSION, n - len(pairs)), least.turn, hand.turn)
    title = "  the floor: bytes handed on by keeper and host, two commits"
    return row(title, pairs, difference_ms, ms, "ms", beside="by hand")


def beside_litellm(name: str, n: int) -> Row:
    with (
        folder() as at,
        model_server() as models,
        session(name, models, new(at)) as ours,
        peer(name, models, new(at)) as theirs,
    ):
        pairs = interleaved(n, ours, theirs.seconds)
    title = f"turn 2+ of {_TITLES[name]}, litellm's as a multiple"
    return row(title, pairs, ratio, ms, "x", beside="litellm", limit=_AT_LEAST[name], sense="at least")


def large_folder(n: int, n_peer: int) -> Iterator[Row]:
    with folder() as at, model_server() as models:
        large = new(at)
        fill(large)
        with (
            session("claude_code", models, new(at), workdir=large) as ours,
            session("claude_code", models, new(at)) as empty,
        ):
            quiet(ours)
            pairs = interleaved(n, ours, empty)
            yield row(
                f"turn in a folder of {_FILES:,} files, minus in an empty one",
                pairs,
                difference_ms,
                ms,
                "ms",
                beside="empty",
                limit=150.0,
            )
        scans = [(look(large) + look(large), 0.0) for _ in range(n)]
        yield row(f"  the floor: two stat scans of {_FILES:,} files", scans, difference_ms, ms, "ms")
        if peer_python() is not None:
            with (
                peer("claude_code", models, new(at), workdir=large) as theirs,
                peer("claude_code", models, new(at)) as their_empty,
            ):
                pairs = [(b, a) for a, b in interleaved(n_peer, their_empty.seconds, theirs.seconds)]
            yield row("  litellm: the same", pairs, difference_ms, ms, "ms", beside="empty")


def fill(at: Path) -> None:
    for number in range(_FILES):
        file = at / f"{number // 200:03d}" / f"{number % 200:03d}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"file {number}\n" * 20)


def look(at: Path) -> float:
    start = time.perf_counter()
    pending = [str(at)]
    while pending:
        with os.scandir(pending.pop()) as items:
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    pending.append(item.path)
                else:
                    item.stat(follow_symlinks=False)
    return time.perf_counter() - start


def quiet(turn: Callable[[], float]) -> None:
    """Turns until the old contents of all files are read, which happens once, in the background."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        turn()
        before = time.process_time()
        time.sleep(0.5)
        if time.process_time() - before < 0.05:
            return


def rows(quick: bool) -> Iterator[Row]:
    installed = [name for name in HARNESSES if is_installed(name)]
    for name in installed:
        yield beside_by_hand(name, 20 if quick else 200)
        yield floor(name, 10 if quick else 100)
    if peer_python() is not None:
        for name in installed:
            yield beside_litellm(name, 4 if quick else 30)
    yield from large_folder(6 if quick else 40, 2 if quick else 8)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pairs")
    print_table(list(rows(parser.parse_args().quick)))
