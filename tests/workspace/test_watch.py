from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostler.types.events import FileChange, event_from_dict, event_to_dict
from hostler.workspace.scan import scan
from hostler.workspace.watch import Watch


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
def watch(ws: Path, tmp_path: Path) -> Iterator[Watch]:
    made = Watch(str(ws), str(tmp_path / "private"))
    yield made
    made.close()


def begin(watch: Watch, turn: str = "") -> None:
    """Begin, with the old contents read: what they are after any model call."""
    watch.begin(turn)
    assert watch._baseline.wait(20)


def kinds(changes: tuple[FileChange, ...]) -> dict[str, str]:
    return {change.path: change.kind for change in changes}


def test_a_turn(watch: Watch, ws: Path) -> None:
    (ws / "keep.py").write_text("same\n")
    (ws / "edit.py").write_text("one\ntwo\nthree\n")
    (ws / "gone.py").write_text("bye\n")
    (ws / "image.png").write_bytes(b"\x89PNG\0")
    (ws / "big.txt").write_text("line\n" * 60_000)
    begin(watch)
    (ws / "edit.py").write_text("one\n2\nthree\n")
    (ws / "gone.py").unlink()
    (ws / "image.png").write_bytes(b"\x89PNG\0\0")
    (ws / "big.txt").write_text("line\n" * 60_001)
    (ws / "new").mkdir()
    (ws / "new" / "a\u2028b.txt").write_text("x\u2028y\n")
    os.utime(ws / "keep.py")
    changes = watch.changes()
    assert changes == (
        FileChange("big.txt", "modified"),
        FileChange("edit.py", "modified", "--- a/edit.py\n+++ b/edit.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"),
        FileChange("gone.py", "deleted", "--- a/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"),
        FileChange("image.png", "modified"),
        FileChange(
            "new/a\u2028b.txt", "created", '--- /dev/null\n+++ "b/new/a\u2028b.txt"\n@@ -0,0 +1 @@\n+x\u2028y\n'
        ),
    )
    assert watch.changes() == changes, "asked again, it says the same"


def test_each_turn_starts_from_where_the_last_ended_and_from_what_the_user_did_between(watch: Watch, ws: Path) -> None:
    (ws / "f").write_text("1\n")
    begin(watch)
    (ws / "f").write_text("2\n")
    assert [c.diff for c in watch.changes()] == ["--- a/f\n+++ b/f\n@@ -1 +1 @@\n-1\n+2\n"]
    watch.save()
    (ws / "f").write_text("user\n")
    (ws / "user").write_text("")
    begin(watch)
    (ws / "f").write_text("3\n")
    assert [c.diff for c in watch.changes()] == ["--- a/f\n+++ b/f\n@@ -1 +1 @@\n-user\n+3\n"]


def test_a_file_replaced_in_the_same_tick_with_the_same_size_is_found(watch: Watch, ws: Path) -> None:
    for name in ("rewritten", "replaced", "restored"):
        (ws / name).write_text("old")
    watch.begin()
    for name in ("rewritten", "restored"):
        times = os.stat(ws / name)
        (ws / name).write_text("new")
        os.utime(ws / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    times = os.stat(ws / "replaced")
    (ws / "temp").write_text("new")
    os.utime(ws / "temp", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(ws / "temp", ws / "replaced")
    assert kinds(watch.changes()) == dict.fromkeys(("replaced", "restored", "rewritten"), "modified")


def test_links_fifos_modes_and_odd_names(watch: Watch, ws: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside\n")
    (ws / "script").write_text("#!/bin/sh\n")
    (ws / "was-file").write_text("text\n")
    os.symlink("a", ws / "link")
    begin(watch)
    os.chmod(ws / "script", 0o755)
    (ws / "link").unlink()
    os.symlink("b", ws / "link")
    os.symlink(tmp_path / "secret", ws / "out")
    os.symlink(tmp_path, ws / "outdir")
    (ws / "was-file").unlink()
    os.mkfifo(ws / "was-file")
    (ws / os.fsdecode(b"b\xff\n")).write_text("odd\n")
    changes = watch.changes()
    assert kinds(changes) == {
        "b\\xff\n": "created",
        "link": "modified",
        "out": "created",
        "outdir": "created",
        "script": "modified",
        "was-file": "modified",
    }
    assert [c.path for c in changes if c.diff] == ["b\\xff\n"]
    for change in changes:
        assert event_from_dict(json.loads(json.dumps(event_to_dict(change)).encode())) == change
        json.dumps(event_to_dict(change), ensure_ascii=False).encode()


def test_a_cache_that_appears_is_not_told_file_by_file(watch: Watch, ws: Path) -> None:
    begin(watch)
    for name in ("node_modules", "venv", ".git"):
        (ws / name / "deep").mkdir(parents=True)
        (ws / name / "deep" / "file").write_text("")
    (ws / "venv" / "pyvenv.cfg").write_text("")
    (ws / "src").mkdir()
    (ws / "src" / "a").write_text("")
    assert kinds(watch.changes()) == {"src/a": "created"}


def test_another_process_tells_the_same_after_a_crash(ws: Path, tmp_path: Path) -> None:
    (ws / "f").write_text("old\n")
    program = (
        "import os, sys; from hostler.workspace.watch import Watch\n"
        "w = Watch(sys.argv[1], sys.argv[2]); w.begin('turn-1'); assert w._baseline.wait(20); os._exit(9)"
    )
    private = str(tmp_path / "private")
    done = subprocess.run([sys.executable, "-c", program, str(ws), private], timeout=60)
    assert done.returncode == 9
    (ws / "f").write_text("new\n")
    expected = (FileChange("f", "modified", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-old\n+new\n"),)
    for step in ("straight", "begun again", "and again"):
        watch = Watch(str(ws), private)
        if step != "straight":
            watch.begin("turn-1")
        assert watch.changes() == expected
        watch.close()
    watch = Watch(str(ws), private)
    watch.begin("turn-2")
    assert watch.changes() == ()
    watch.close()


def test_a_look_that_shows_nothing_new_is_not_written_again(watch: Watch, ws: Path, tmp_path: Path) -> None:
    (ws / "f").write_text("old\n")
    before = tmp_path / "private" / "before"
    begin(watch, "turn-1")
    inode = before.stat().st_ino
    assert watch.changes() == ()
    watch.save()
    begin(watch, "turn-2")
    assert before.stat().st_ino == inode
    (ws / "f").write_text("new\n")
    other = Watch(str(ws), str(tmp_path / "private"))
    assert kinds(other.changes()) == kinds(watch.changes()) == {"f": "modified"}
    watch.save()
    other.close()
    assert Watch(str(ws), str(tmp_path / "private")).changes() == (), "the turn is over"


def test_a_look_that_another_host_has_written_since_is_written_again(watch: Watch, ws: Path, tmp_path: Path) -> None:
    begin(watch, "turn-1")
    assert watch.changes() == ()
    watch.save()
    (ws / "f").write_text("there for a turn\n")
    other = Watch(str(ws), str(tmp_path / "private"))
    begin(other, "turn-2")
    (ws / "f").unlink()
    assert kinds(other.changes()) == {"f": "deleted"}
    other.save()
    begin(watch, "turn-3")
    assert Watch(str(ws), str(tmp_path / "private")).changes() == ()
    other.close()


def test_without_a_begin_there_is_nothing_to_tell(watch: Watch, ws: Path, tmp_path: Path) -> None:
    (ws / "f").write_text("x")
    assert watch.changes() == ()
    (tmp_path / "private" / "before").write_bytes(b"garbage")
    assert watch.changes() == ()
    (tmp_path / "private" / "turn").write_bytes(b'"turn-1"')
    assert watch.changes() == ()


@pytest.mark.parametrize("damage", ["garbage", "empty", "middle", "foreign"])
def test_a_damaged_baseline_costs_diffs_and_nothing_else(ws: Path, tmp_path: Path, damage: str) -> None:
    for number in range(200):
        (ws / f"f{number}").write_text(os.urandom(300).hex())
    watch = Watch(str(ws), str(tmp_path / "private"))
    begin(watch)
    watch.close()
    database = tmp_path / "private" / "baseline.db"
    data = bytearray(database.read_bytes())
    if damage == "garbage":
        database.write_bytes(b"not a database at all" * 500)
    elif damage == "empty":
        database.write_bytes(b"")
    elif damage == "middle":
        data[5000:] = os.urandom(len(data) - 5000)
        database.write_bytes(data)
    else:
        with sqlite3.connect(database) as db:
            db.execute("pragma user_version=99")
        db.close()
    watch = Watch(str(ws), str(tmp_path / "private"))
    begin(watch)
    (ws / "f7").write_text("new")
    (ws / "f8").unlink()
    assert kinds(watch.changes()) == {"f7": "modified", "f8": "deleted"}
    watch.save()
    begin(watch)
    (ws / "f7").write_text("newer")
    (change,) = watch.changes()
    assert change.diff is not None, "it was made anew"
    watch.close()


def test_content_written_by_the_agent_is_never_taken_for_old(ws: Path, tmp_path: Path) -> None:
    """An agent that writes while old contents are still being read: a diff is right or missing, never wrong."""
    for number in range(300):
        (ws / f"f{number:03}").write_text(f"old {number}\n")
    for attempt in range(3):
        watch = Watch(str(ws), str(tmp_path / f"private{attempt}"))
        watch.begin()
        for number in range(299, -1, -1):
            (ws / f"f{number:03}").write_text(f"new{attempt} {number}\n")
        changes = watch.changes()
        watch.close()
        assert len(changes) == 300
        for number, change in enumerate(changes):
            old = f"-new{attempt - 1} {number}\n" if attempt else f"-old {number}\n"
            assert change.diff is None or (old in change.diff and f"+new{attempt} {number}\n" in change.diff)


def test_no_turn_waits_for_the_reading_and_close_stops_it(
    ws: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hostler.workspace import baseline

    reading, go_on = threading.Event(), threading.Event()

    def slow(*args: object) -> bytes:
        reading.set()
        go_on.wait(10)
        return b""

    for number in range(50):
        (ws / f"f{number}").write_text("x")
    monkeypatch.setattr(baseline, "read_as", slow)
    watch = Watch(str(ws), str(tmp_path / "private"))
    started = time.monotonic()
    watch.begin()
    assert reading.wait(5)
    (ws / "f0").write_text("changed")
    assert kinds(watch.changes()) == {"f0": "modified"}
    watch.save()
    watch.begin()
    assert time.monotonic() - started < 5
    threading.Timer(0.05, go_on.set).start()
    watch.close()
    assert watch._baseline.wait(0)


def test_the_baseline_is_bounded_and_holds_the_smallest(
    ws: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hostler.workspace import baseline

    monkeypatch.setattr(baseline, "_MAX_BYTES", 1000)
    for number in range(1, 60):
        (ws / f"f{number}").write_text("x" * number)
    watch = Watch(str(ws), str(tmp_path / "private"))
    begin(watch)
    for number in range(1, 60):
        (ws / f"f{number}").write_text("y" * number)
    known = {int(change.path[1:]) for change in watch.changes() if change.diff}
    assert known == set(range(1, 45))  # 1 + ... + 44 = 990
    watch.save()
    (ws / "f1").unlink()
    begin(watch)
    with sqlite3.connect(tmp_path / "private" / "baseline.db") as db:
        assert db.execute("select count(*) from base where path = ?", (b"f1",)).fetchone() == (0,)
    db.close()
    watch.close()


def test_too_large_a_workspace_is_said(watch: Watch, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostler.workspace.watch.scan", lambda root, skip, last: scan(root, skip, limit=3))
    watch.begin()
    assert watch.complete
    for number in range(5):
        (ws / str(number)).write_text("")
    assert watch.changes() == ()
    assert not watch.complete


def test_an_agent_that_deletes_its_workspace_has_deleted_its_files(watch: Watch, ws: Path) -> None:
    (ws / "f").write_text("x\n")
    begin(watch)
    shutil.rmtree(ws)
    assert kinds(watch.changes()) == {"f": "deleted"}
    watch.save()
    watch.begin()
    assert watch.changes() == ()


def test_a_full_disk_does_not_stop_a_turn(watch: Watch, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    watch.begin("turn-1")
    monkeypatch.setattr("hostler.workspace.watch.os.replace", full)
    watch.begin("turn-2")
    (ws / "f").write_text("x\n")
    assert kinds(watch.changes()) == {"f": "created"}


def test_the_private_files_are_private(watch: Watch, ws: Path, tmp_path: Path) -> None:
    begin(watch)
    assert os.stat(tmp_path / "private").st_mode & 0o077 == 0
    assert os.stat(tmp_path / "private" / "before").st_mode & 0o077 == 0
