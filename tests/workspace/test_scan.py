from __future__ import annotations

import errno
import os
import socket
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.workspace.scan import DEFAULT_SKIP, Snapshot, dump, load, scan, settle


def test_what_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_text("12345")
    os.symlink("/etc", tmp_path / "out")
    os.symlink("gone", tmp_path / "dangling")
    os.mkfifo(tmp_path / "fifo")
    for name in (".git", "node_modules", "a/__pycache__", ".venv"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "inner").write_text("x")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".git").write_text("gitdir: elsewhere")
    seen = scan(str(tmp_path))
    assert sorted(seen.entries) == ["a/b/f", "dangling", "fifo", "out", "sub/.git"]
    assert seen.links == {"out": "/etc", "dangling": "gone"}
    assert seen.entries["a/b/f"][1] == 5
    assert seen.complete
    assert "node_modules/inner" in scan(str(tmp_path), DEFAULT_SKIP - {"node_modules"}).entries


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "CACHEDIR.TAG"])
def test_marked_folders_are_skipped_but_never_the_root(tmp_path: Path, mark: str) -> None:
    (tmp_path / mark).write_text("")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / mark).write_text("")
    (tmp_path / "target" / "big.o").write_text("")
    seen = scan(str(tmp_path))
    assert sorted(seen.entries) == [mark]
    assert seen.skipped == {"target/"}


def test_too_much_is_said_and_not_half_told(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"d{number % 3}").mkdir(exist_ok=True)
        (tmp_path / f"d{number % 3}" / f"f{number}").write_text("")
    assert scan(str(tmp_path), limit=20) == Snapshot(complete=False)
    assert scan(str(tmp_path), limit=33).complete


def test_a_bottomless_tree_ends(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=fd)
        child = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = child
    os.close(fd)
    seen = scan(str(tmp_path))
    assert seen.complete
    assert len(seen.skipped) == 1


def test_an_unreadable_folder_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("closed", "swapped", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("")
    real = os.open

    def guarded(path: str, flags: int, **rest: int) -> int:  # the tests may run as root, who can read everything
        if path in ("closed", "swapped"):
            number = errno.EACCES if path == "closed" else errno.ENOTDIR
            raise OSError(number, os.strerror(number))
        return real(path, flags, **rest)

    monkeypatch.setattr(os, "open", guarded)
    seen = scan(str(tmp_path))
    assert list(seen.entries) == ["open/f"]
    assert seen.skipped == {"closed/"}


def test_a_root_that_is_gone_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.symlink(tmp_path, tmp_path / "link")
    for name in ("none", "file", "link"):
        assert scan(str(tmp_path / name)) == Snapshot()


def test_the_disk_form_is_exact_and_damage_is_found(tmp_path: Path) -> None:
    for name in ("a", "ä", "x\ny", "\u2028", os.fsdecode(b"\xff\xfe")):
        (tmp_path / name).write_text(name.encode("utf-8", "surrogateescape").hex())
    os.symlink(os.fsdecode(b"to\xff"), tmp_path / "link")
    os.utime(tmp_path / "a", ns=(0, -5))
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    seen = scan(str(tmp_path))
    data = dump(seen)
    assert load(data) == seen
    assert load(dump(Snapshot())) == Snapshot()
    for broken in (b"", b"x" + data, data[:-1], data[:30], data[:25] + b"\xff" + data[26:], data + b"12345678"):
        with pytest.raises(ValueError):
            load(broken)


def test_settle_waits_only_for_fresh_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("")
    seen = scan(str(tmp_path))
    newest = seen.entries["f"][3]
    settle(seen)
    assert time.time_ns() - newest >= 10_000_000
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited"))
    settle(seen)
    settle(Snapshot())


def test_twenty_thousand_files(tmp_path: Path) -> None:
    for folder in range(200):
        (tmp_path / f"d{folder}").mkdir()
        for number in range(100):
            (tmp_path / f"d{folder}" / f"file{number}.py").touch()
    started = time.perf_counter()
    seen = scan(str(tmp_path))
    middle = time.perf_counter()
    dump(seen)
    print(f"scan {(middle - started) * 1000:.0f} ms, dump {(time.perf_counter() - middle) * 1000:.0f} ms")
    assert len(seen.entries) == 20_000


NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "CACHEDIR.TAG", "d/CACHEDIR.TAG", "z"])


@given(st.lists(st.lists(st.tuples(st.sampled_from(["write", "link", "remove"]), NAMES), max_size=3), max_size=6))
def test_what_was_seen_before_changes_nothing_but_the_work(steps: list[list[tuple[str, str]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        last = scan(folder)
        for number, changes in enumerate(steps):
            for how, name in changes:
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                if how == "write":
                    path.write_text("x" * number)
                elif how == "link":
                    path.symlink_to(f"{number}")
            seen = scan(folder, last=last)
            fresh = scan(folder)
            assert seen == fresh
            assert list(seen.entries) == list(fresh.entries)
            assert scan(folder, last=seen) is seen
            last = seen


def test_sockets_do_not_disturb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        assert list(scan(str(tmp_path)).entries) == ["s"]
