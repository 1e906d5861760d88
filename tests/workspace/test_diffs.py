from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.types.events import FileChange
from hostler.workspace.diffs import diff, printable, unified
from hostler.workspace.scan import Entry, Snapshot


def apply(old: bytes, patch: str) -> bytes:
    """A strict reader of unified diffs: every line that the diff says is there must be there."""
    lines = old.decode().split("\n")
    source = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    body = patch.split("\n")[2:-1]
    out: list[str] = []
    at = 0
    texts: list[list[str]] = []
    for line in body:
        if line.startswith("\\"):
            texts[-1][1] = texts[-1][1][:-1]
        else:
            texts.append([line[:1], line[1:] + "\n"])
    for mark, text in texts:
        if mark == "@":
            start, size = [*text.split()[1][1:].split(","), "1"][:2]
            begin = int(start) - 1 if int(size) else int(start)
            out += source[at:begin]
            at = begin
        elif mark in " -":
            assert source[at] == text
            out += [text] if mark == " " else []
            at += 1
        else:
            out.append(text)
    return "".join(out + source[at:]).encode()


LINE = st.sampled_from(["", "a", "b", "c", "\u2028", "\r", "-", "+x", "@@", "\\ No"])
TEXT = st.tuples(st.lists(LINE, max_size=40), st.booleans()).map(lambda t: "\n".join(t[0]) + "\n" * t[1])


@settings(max_examples=300, deadline=None)
@given(TEXT, TEXT)
def test_a_diff_leads_from_the_old_text_to_the_new(old: str, new: str) -> None:
    a, b = old.encode(), new.encode()
    assert apply(a, unified(a, b, "f")) == b


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=120), st.randoms(use_true_random=False))
def test_edits_of_larger_texts(numbers: list[int], rng: random.Random) -> None:
    old = [f"line {n}" for n in numbers]
    new = [line for line in old if rng.random() > 0.1]
    for _ in range(5):
        new.insert(rng.randint(0, len(new)), f"new {rng.randint(0, 3)}")
    a, b = "\n".join(old).encode(), "\n".join(new).encode()
    assert apply(a, unified(a, b, "f")) == b


def test_small_edits_of_a_large_file_have_small_diffs() -> None:
    old = [f"    value_{n} = {n % 7}\n" for n in range(5000)]
    new = [*old]
    new[10] = "changed\n"
    new[4000:4002] = []
    new.append("end\n")
    patch = unified("".join(old).encode(), "".join(new).encode(), "f")
    assert patch.count("\n") < 40
    assert apply("".join(old).encode(), patch) == "".join(new).encode()


def test_hard_cases_end_soon() -> None:
    rng = random.Random(1)
    few = ["{\n", "}\n", "\n", "x\n"]
    cases = [
        ([rng.choice(few) for _ in range(60_000)], [rng.choice(few) for _ in range(60_000)]),
        ([f"{n}\n" for n in range(30_000)], [f"{n}\n" for n in rng.sample(range(30_000), 30_000)]),
        (["a\n", "b\n"] * 30_000, ["b\n", "a\n", "a\n"] * 20_000),
        ([f"{n}\n" for n in range(40_000)], [f"{n}\n" for n in reversed(range(40_000))]),
    ]
    for old, new in cases:
        a, b = "".join(old).encode(), "".join(new).encode()
        started = time.process_time()
        patch = unified(a, b, "f")
        assert time.process_time() - started < 3
        assert apply(a, patch) == b


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
@pytest.mark.parametrize("name", ["plain.txt", "with space.txt", 'quo"te\n.txt', "ä/公.txt"])
def test_git_takes_the_diffs(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)

    def git_apply(patch: str) -> None:
        subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True, timeout=20)

    steps = [b"one\ntwo", b"one\n2\nthree\r\n", b"z\n" * 50]
    git_apply(unified(b"", steps[0], name, existed=False))
    assert (tmp_path / name).read_bytes() == steps[0]
    for old, new in itertools.pairwise(steps):
        git_apply(unified(old, new, name))
        assert (tmp_path / name).read_bytes() == new
    git_apply(unified(steps[-1], b"", name, exists=False))
    assert not (tmp_path / name).exists()


class Contents:
    def __init__(self, old: dict[str, bytes], new: dict[str, bytes]) -> None:
        self._old, self._new = old, new

    def old(self, path: str, entry: Entry) -> bytes | None:
        return self._old.get(path)

    def new(self, path: str, entry: Entry) -> bytes | None:
        return self._new.get(path)


def entry(version: int, mode: int = 0o100644) -> Entry:
    return (mode, 1, version, version, 1)


def test_kinds_of_change() -> None:
    before = Snapshot(
        {
            "mode": entry(1),
            "touched": entry(1),
            "unknown": entry(1),
            "gone": entry(1),
            "same": entry(1),
            "link": entry(1, 0o120777),
            "link2": entry(1, 0o120777),
            "file-to-link": entry(1),
            "target/old": entry(1),
        },
        {"link": "a", "link2": "a"},
        frozenset({"venv/"}),
    )
    after = Snapshot(
        {
            "mode": entry(2, 0o100755),
            "touched": entry(2),
            "unknown": entry(2),
            "same": entry(1),
            "link": entry(2, 0o120777),
            "link2": entry(2, 0o120777),
            "file-to-link": entry(2, 0o120777),
            "new\udcff": entry(1),
            "fifo": entry(1, 0o010644),
            "venv/lib": entry(1),
        },
        {"link": "b", "link2": "a", "file-to-link": "/"},
        frozenset({"target/"}),
    )
    contents = Contents(
        {"mode": b"m", "touched": b"t", "gone": b"g\n"}, {"mode": b"m", "touched": b"t", "new\udcff": b"n\n"}
    )
    assert diff(before, after, contents) == [
        FileChange("fifo", "created"),
        FileChange("file-to-link", "modified"),
        FileChange("gone", "deleted", "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-g\n"),
        FileChange("link", "modified"),
        FileChange("mode", "modified"),
        FileChange("new\\xff", "created", '--- /dev/null\n+++ "b/new\\\\xff"\n@@ -0,0 +1 @@\n+n\n'),
        FileChange("unknown", "modified"),
    ]


def test_the_diffs_of_a_turn_are_bounded() -> None:
    after = Snapshot({f"f{n:03}": entry(1) for n in range(40)})
    changes = diff(Snapshot(), after, Contents({}, dict.fromkeys(after.entries, b"line\n" * 40_000)))
    assert len(changes) == 40
    assert sum(len(change.diff or "") for change in changes) < 5 << 20
    assert changes[0].diff is not None
    assert changes[-1].diff is None


def test_printable() -> None:
    assert printable("ä\u2028") == "ä\u2028"
    assert printable("a\udcff") == "a\\xff"
