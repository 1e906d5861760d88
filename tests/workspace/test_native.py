from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.types.errors import SessionLost
from hostler.types.runtime import NativeFile
from hostler.workspace import native
from hostler.workspace.native import saving

ID = "0199-abc"
LOG = NativeFile("projects/*/{id}.jsonl", "jsonl")
DB = NativeFile("share/app.db", "sqlite")
META = NativeFile("projects/**/meta.json")
FILES = (LOG, DB, META)


class Home:
    def __init__(self, base: Path) -> None:
        self.path = base / "home"
        self.saved = base / "native"
        self.path.mkdir()
        self.manifest: dict[str, Any] | None = None

    @property
    def log(self) -> Path:
        return self.path / "projects" / "-w-p" / f"{ID}.jsonl"

    def write(self, name: str, data: bytes) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return file

    def append(self, *records: object) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as file:
            file.writelines(json.dumps(record).encode() + b"\n" for record in records)

    def save(self, files: tuple[NativeFile, ...] = FILES) -> dict[str, Any]:
        self.manifest = json.loads(json.dumps(native.save(str(self.path), str(self.saved), files, ID, self.manifest)))
        return self.manifest

    def check(self, files: tuple[NativeFile, ...] = FILES) -> str:
        return native.check(str(self.path), str(self.saved), files, ID, self.manifest)

    def restore(self) -> None:
        assert self.manifest is not None
        native.restore(str(self.saved), str(self.path), self.manifest)

    def blob(self, path: Path) -> Path:
        assert self.manifest is not None
        name = str(path.relative_to(self.path))
        return self.saved / next(item["blob"] for item in self.manifest["files"] if item["path"] == name)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def database(home: Home) -> Iterator[sqlite3.Connection]:
    (home.path / "share").mkdir()
    db = sqlite3.connect(home.path / "share" / "app.db")
    db.execute("pragma journal_mode=wal")
    db.execute("create table m (t text)")
    db.commit()
    yield db
    db.close()


def rows(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    try:
        return [text for (text,) in db.execute("select t from m order by rowid")]
    finally:
        db.close()


def test_history_moves_to_a_new_home(home: Home, database: sqlite3.Connection) -> None:
    home.append({"n": 1, "t": "a\u2028b\x85"}, {"n": 2})
    meta = home.write("projects/x/y/meta.json", b'{"a": 1}')
    os.chmod(meta, 0o640)
    home.write(f"projects/-w-p/other{ID}.jsonl", b"{}\n")
    database.execute("insert into m values ('in the log')")
    database.commit()
    assert os.path.getsize(home.path / "share/app.db-wal") > 0
    manifest = home.save()
    assert manifest["skipped"] == []
    assert [(item["path"], item["kind"]) for item in manifest["files"]] == [
        (f"projects/-w-p/{ID}.jsonl", "jsonl"),
        ("projects/x/y/meta.json", "file"),
        ("share/app.db", "sqlite"),
    ]
    original = home.log.read_bytes()
    database.close()
    assert home.check() == "ok"
    shutil.rmtree(home.path)
    home.path.mkdir()
    assert home.check() == "missing"
    home.restore()
    assert home.check() == "ok"
    assert home.log.read_bytes() == original
    assert rows(home.path / "share/app.db") == ["in the log"]
    assert meta.read_bytes() == b'{"a": 1}'
    assert meta.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in home.path.rglob("*") if p.is_file()) == sorted([f"{ID}.jsonl", "app.db", "meta.json"])


def test_a_large_log_costs_only_its_new_tail(home: Home) -> None:
    line = json.dumps({"t": "x" * 2500}).encode() + b"\n"
    home.write(f"projects/-w-p/{ID}.jsonl", line * 10_000)
    home.save()
    blob = home.blob(home.log)
    inode = blob.stat().st_ino
    home.append({"new": 1})
    started = time.perf_counter()
    home.save()
    took = time.perf_counter() - started
    print(f"25 MB log, one new line: {took * 1000:.1f} ms")
    assert home.blob(home.log) == blob
    assert blob.stat().st_ino == inode
    assert blob.read_bytes() == home.log.read_bytes()
    before = blob.stat().st_mtime_ns
    home.save()
    assert blob.stat().st_mtime_ns == before, "nothing new, nothing written"


@pytest.mark.parametrize("how", ["rewritten", "replaced", "shorter", "same size"])
def test_a_log_that_did_not_only_grow_is_copied_anew(home: Home, how: str) -> None:
    home.append(*({"n": n, "t": "y" * 100} for n in range(100)))
    home.save()
    old, first = home.blob(home.log), home.manifest
    assert first is not None
    content = home.log.read_bytes()
    if how == "rewritten":
        home.log.write_bytes(content.replace(b'"n": 99', b'"n": 77') + b'{"z": 1}\n')
    elif how == "replaced":
        home.log.unlink()
        home.append({"other": 1}, *({"m": n, "t": "z" * 200} for n in range(100)))
    elif how == "shorter":
        home.log.write_bytes(content[: content.index(b"\n") + 1])
    else:
        home.log.write_bytes(content.replace(b'"n": 50', b'"n": 05'))
    home.save()
    assert home.blob(home.log) != old
    assert home.blob(home.log).read_bytes() == home.log.read_bytes()
    home.manifest = first  # the host died before it recorded the new manifest
    home.log.unlink()
    home.restore()
    assert home.log.read_bytes() == content


def test_a_crash_before_the_manifest_is_recorded_keeps_the_old_one_good(home: Home) -> None:
    home.append({"n": 1})
    recorded = home.save()
    content = home.log.read_bytes()
    home.append({"n": 2})
    home.save()  # appended to the same copy, never recorded
    home.manifest = recorded
    home.append({"n": 3})
    home.save()
    assert home.blob(home.log).read_bytes() == home.log.read_bytes()
    home.manifest = recorded
    home.log.unlink()
    home.restore()
    assert home.log.read_bytes() == content


def test_a_log_cut_at_any_byte_of_its_last_record_loads(home: Home) -> None:
    home.append({"n": 1}, {"n": 2, "t": "ä\u2028"})
    whole = home.log.read_bytes()
    start = whole.index(b"\n") + 1
    for end in range(start, len(whole) + 1):
        home.manifest = None
        home.log.write_bytes(whole[:end])
        assert home.check() == "ok"
        lines = home.log.read_bytes()
        assert lines == (whole if end >= len(whole) - 1 else whole[:start])
        home.append({"n": 3})
        assert [json.loads(line)["n"] for line in home.log.read_bytes().split(b"\n") if line][-1] == 3
    home.log.write_bytes(whole)
    home.save()
    for end in range(len(whole) + 1):
        home.log.write_bytes(whole[:end])
        assert home.check() == ("ok" if end >= len(whole) - 1 else "damaged")
        home.restore()
        assert home.log.read_bytes() == whole
        assert home.check() == "ok"


def test_a_torn_line_is_not_saved(home: Home) -> None:
    home.append({"n": 1})
    good = home.log.read_bytes()
    home.log.write_bytes(good + b'{"n": 2, "t": "to')
    home.save()
    assert home.blob(home.log).read_bytes() == good
    assert home.check() == "ok"
    assert home.log.read_bytes() == good
    home.append({"n": 3})
    home.save()
    assert home.blob(home.log).read_bytes() == home.log.read_bytes()


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b"\0" * 4000 + b"\n", b"garbage", b'{"n": 1}\n{"n": 2, '])
def test_damage_in_home_is_restored_and_never_saved(home: Home, damage: bytes) -> None:
    home.append({"n": 1}, {"n": 2})
    home.save()
    good = home.log.read_bytes()
    home.log.write_bytes(damage)
    assert "damaged or empty" in str(home.save()["skipped"])
    assert home.check() == "damaged"
    home.restore()
    assert home.log.read_bytes() == good
    assert home.check() == "ok"


@pytest.mark.parametrize("damage", [b"\0" * 4096 + b"\n", b"garbage\n", b'{"cut": "of\n', b"\n\n"])
@pytest.mark.parametrize("saved_between", [False, True])
def test_garbage_behind_what_is_saved_goes_and_newer_records_stay(
    home: Home, damage: bytes, saved_between: bool
) -> None:
    def numbers(log: Path) -> list[int]:
        return [json.loads(line)["n"] for line in log.read_bytes().split(b"\n") if line]

    home.append({"n": 1}, {"n": 2})
    home.save()
    home.log.write_bytes(home.log.read_bytes() + damage)
    home.append({"n": 3})
    if saved_between:
        assert home.save()["skipped"] == []
        assert numbers(home.blob(home.log)) == [1, 2, 3]
    assert home.check() == "ok"
    assert numbers(home.log) == [1, 2, 3]
    home.append({"n": 4})
    home.save()
    home.log.unlink()
    home.restore()
    assert numbers(home.log) == [1, 2, 3, 4]


def test_zeros_behind_a_good_log_are_cut_off(home: Home) -> None:
    home.append({"n": 1})
    good = home.log.read_bytes()
    home.save()
    home.log.write_bytes(good + b"\0" * 5000)
    assert home.check() == "ok"
    assert home.log.read_bytes() == good


def test_lost_is_said(home: Home) -> None:
    assert home.check() == "lost"
    assert home.save() == {"files": [], "skipped": []}
    assert home.check() == "lost"
    home.log.parent.mkdir(parents=True)
    home.log.write_bytes(b"\0\0\0\n")
    assert home.check() == "lost"
    home.log.unlink()
    home.append({"n": 1})
    home.save()
    home.blob(home.log).write_bytes(b"")
    home.log.unlink()
    with pytest.raises(SessionLost):
        home.restore()


def test_what_the_agent_deletes_keeps_its_copy(home: Home) -> None:
    home.append({"n": 1})
    home.save()
    content = home.log.read_bytes()
    shutil.rmtree(home.path / "projects")
    assert len(home.save()["files"]) == 1
    assert home.check() == "missing"
    home.restore()
    assert home.log.read_bytes() == content


def test_a_newer_log_in_home_is_not_overwritten(home: Home) -> None:
    home.append({"n": 1})
    home.write("projects/meta.json", b"{}")
    home.save()
    home.append({"n": 2})
    newer = home.log.read_bytes()
    (home.path / "projects" / "meta.json").unlink()
    assert home.check() == "missing"
    home.restore()
    assert home.log.read_bytes() == newer
    assert (home.path / "projects" / "meta.json").exists()


@pytest.mark.timeout(20)
def test_only_regular_files_inside_home_are_taken(home: Home, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b'{"key": "outside"}\n')
    other = tmp_path / "outside"
    other.mkdir()
    (other / f"{ID}.jsonl").write_bytes(b'{"key": "outside"}\n')
    (other / "meta.json").write_bytes(b"outside")
    folder = home.path / "projects"
    (folder / "a").mkdir(parents=True)
    os.symlink(secret, folder / "a" / f"{ID}.jsonl")
    os.symlink(other, folder / "b")
    (folder / "c").mkdir()
    os.mkfifo(folder / "c" / f"{ID}.jsonl")
    (home.path / "share").mkdir()
    sqlite3.connect(other / "app.db").close()
    os.symlink(other / "app.db", home.path / "share" / "app.db")
    manifest = home.save()
    assert manifest["files"] == []
    assert os.listdir(home.saved) == []
    assert home.check() == "lost"


def test_links_in_the_way_of_a_restore_are_removed_not_followed(home: Home, tmp_path: Path) -> None:
    home.append({"n": 1})
    home.save()
    content = home.log.read_bytes()
    outside = tmp_path / "outside"
    (outside / "-w-p").mkdir(parents=True)
    (outside / "-w-p" / f"{ID}.jsonl").write_bytes(b"mine\n")
    shutil.rmtree(home.path / "projects")
    os.symlink(outside, home.path / "projects")
    assert home.check() == "damaged"
    home.restore()
    assert home.log.read_bytes() == content
    assert not (home.path / "projects").is_symlink()
    assert (outside / "-w-p" / f"{ID}.jsonl").read_bytes() == b"mine\n"
    home.log.unlink()
    home.log.mkdir()
    (home.log / "x").write_text("")
    home.restore()
    assert home.log.read_bytes() == content


def test_a_hard_link_is_not_written_through(home: Home, tmp_path: Path) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(b'{"n": 1}\n{"torn": ')
    home.log.parent.mkdir(parents=True)
    os.link(outside, home.log)
    assert home.check() == "ok"
    assert home.log.read_bytes() == b'{"n": 1}\n'
    assert outside.read_bytes() == b'{"n": 1}\n{"torn": '


@pytest.mark.parametrize("native_id", ["../secret", "*", "a/b", "[a-z]", "", "x" * 300, "a\0b"])
def test_an_id_matches_only_itself(home: Home, native_id: str) -> None:
    home.append({"n": 1})
    home.write("secret.jsonl", b"{}\n")
    home.write("projects/-w-p/a/b.jsonl", b"{}\n")
    manifest = native.save(str(home.path), str(home.saved), (LOG,), native_id, None)
    assert manifest["files"] == []


def test_limits(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        home.write(f"projects/{number:02}/meta.json", b"{}" * 50)
    monkeypatch.setattr(saving, "_MAX_FILES", 10)
    monkeypatch.setattr(saving, "MAX_BYTES", 850)
    manifest = home.save()
    assert len(manifest["files"]) == 8
    assert len(manifest["skipped"]) == 4
    with open(home.path / "projects" / "00" / "meta.json", "wb") as file:
        file.truncate(1 << 40)  # sparse
    started = time.monotonic()
    manifest = home.save()
    assert time.monotonic() - started < 5
    assert any("limit" in reason for reason in manifest["skipped"])


def test_a_database_that_is_written_to_meanwhile_is_consistent(
    home: Home, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("create table n (t text)")
    database.commit()
    stop = threading.Event()

    def write() -> None:
        db = sqlite3.connect(home.path / "share" / "app.db", timeout=10)
        db.execute("pragma wal_autocheckpoint=50")
        while not stop.is_set():
            with db:
                db.execute("insert into m values (?)", ("x" * 2000,))
                db.execute("insert into n values (?)", ("x" * 2000,))
            time.sleep(0.005)
        db.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(15):
            manifest = home.save((DB,))
            if manifest["files"]:
                (tmp_path / f"{number}").mkdir()
                native.restore(str(home.saved), str(tmp_path / f"{number}"), manifest)
                copy = sqlite3.connect(tmp_path / f"{number}" / "share" / "app.db")
                assert len({copy.execute(f"select count(*) from {table}").fetchone() for table in "mn"}) == 1
                copy.close()
            time.sleep(0.01)
    finally:
        stop.set()
        thread.join()
    assert home.save((DB,))["skipped"] == []


def test_of_a_database_only_what_its_log_has_grown_by_is_copied(home: Home, database: sqlite3.Connection) -> None:
    add(database, "one")
    first = home.save((DB,))
    (item,) = first["files"]
    inodes = {file.name: file.stat().st_ino for file in home.saved.iterdir()}
    add(database, "two")
    (grown,) = home.save((DB,))["files"]
    assert {file.name: file.stat().st_ino for file in home.saved.iterdir()} == inodes
    assert (grown["blob"], grown["log"]["blob"]) == (item["blob"], item["log"]["blob"])
    assert grown["log"]["bytes"] > item["log"]["bytes"]
    log = home.saved / grown["log"]["blob"]
    assert log.read_bytes() == (home.path / "share" / "app.db-wal").read_bytes()
    before = log.stat().st_mtime_ns
    home.save((DB,))
    assert log.stat().st_mtime_ns == before, "nothing new, nothing written"
    assert home.check((DB,)) == "ok"
    database.close()
    for manifest, expected in ((home.manifest, ["one", "two"]), (first, ["one"])):
        home.manifest = manifest
        (home.path / "share" / "app.db").unlink()
        home.restore()
        assert rows(home.path / "share" / "app.db") == expected


def test_a_log_that_grew_for_a_host_that_died_is_copied_anew(home: Home, database: sqlite3.Connection) -> None:
    add(database, "one")
    recorded = home.save((DB,))
    add(database, "two")
    home.save((DB,))  # never recorded
    home.manifest = recorded
    add(database, "three")
    (item,) = home.save((DB,))["files"]
    assert item["blob"] == recorded["files"][0]["blob"]
    assert item["log"]["blob"] != recorded["files"][0]["log"]["blob"]
    database.close()
    (home.path / "share" / "app.db").unlink()
    home.restore()
    assert rows(home.path / "share" / "app.db") == ["one", "two", "three"]


def test_a_log_that_was_begun_anew_over_the_same_file_is_copied_anew(home: Home, database: sqlite3.Connection) -> None:
    """SQLite does so when all of it is in the file already."""
    for text in ("one", "two"):
        add(database, text)
    database.execute("pragma wal_checkpoint(passive)")
    (item,) = home.save((DB,))["files"]
    add(database, "three")
    (again,) = home.save((DB,))["files"]
    assert again["blob"] == item["blob"]
    assert again["log"]["blob"] != item["log"]["blob"]
    database.close()
    (home.path / "share" / "app.db").unlink()
    home.restore()
    assert rows(home.path / "share" / "app.db") == ["one", "two", "three"]


@pytest.mark.parametrize("saved_before", [True, False])
def test_a_checkpoint_in_the_middle_of_a_save(
    home: Home, database: sqlite3.Connection, saved_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was copied and the log that follows do not belong together then."""
    add(database, "one")
    if saved_before:
        home.save((DB,))
    add(database, "two")
    real, times = saving._save_log, iter(["now"])

    def save_log(*args: Any) -> dict[str, Any] | None:
        if next(times, None):
            database.execute("pragma wal_checkpoint(truncate)")
            add(database, "three")
        return real(*args)

    monkeypatch.setattr(saving, "_save_log", save_log)
    assert home.save((DB,))["skipped"] == []
    database.close()
    (home.path / "share" / "app.db").unlink()
    home.restore()
    assert rows(home.path / "share" / "app.db") == ["one", "two", "three"]


@pytest.mark.parametrize("torn", ["cut", "body", "unfinished"])
def test_of_a_transaction_that_is_not_whole_nothing_is_saved(
    home: Home, database: sqlite3.Connection, torn: str
) -> None:
    add(database, "one")
    (item,) = home.save((DB,))["files"]
    database.execute("insert into m values (?)", ("x" * 20_000,))
    database.commit()
    log = home.path / "share" / "app.db-wal"
    data = bytearray(log.read_bytes())
    if torn == "cut":
        del data[-100:]
    elif torn == "body":  # the head of a frame is written before its page
        data[-100:] = bytes(100)
    else:
        last = len(data) - 4096 - 24
        data[last + 4 : last + 8] = bytes(4)
    log.write_bytes(data)
    (again,) = home.save((DB,))["files"]
    assert again["log"] == item["log"]


def test_a_damaged_log_is_found(home: Home, database: sqlite3.Connection) -> None:
    home.save((DB,))
    add(database, "one")
    add(database, "two")
    manifest = home.save((DB,))
    assert native.restorable(str(home.saved), manifest)
    copy = home.saved / manifest["files"][0]["log"]["blob"]
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    assert not native.restorable(str(home.saved), manifest)
    database.close()
    assert home.check((DB,)) == "ok"
    (home.path / "share" / "app.db").unlink()
    with pytest.raises(SessionLost, match="log is damaged"):
        home.restore()


def test_a_database_that_nobody_has_touched_since_is_not_looked_through(
    home: Home, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(database, "one")
    home.save((DB,))
    with monkeypatch.context() as patch:
        patch.setattr(native.sqlite, "copy", lambda *_: pytest.fail("copied"))
        assert home.check((DB,)) == "ok"
    home.write("share/app.db-journal", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 600)
    assert home.check((DB,)) == "damaged"
    (home.path / "share" / "app.db-journal").unlink()
    add(database, "two")
    assert home.check((DB,)) == "ok"
    (home.path / "share" / "app.db-wal").write_bytes(b"")
    assert home.check((DB,)) == "damaged", "its rows are gone"


def test_rows_that_are_deleted_are_no_damage(home: Home, database: sqlite3.Connection) -> None:
    for text in ("one", "two", "three"):
        add(database, text)
    home.save((DB,))
    database.execute("delete from m where t != 'two'")
    database.commit()
    home.save((DB,))
    database.close()
    assert home.check((DB,)) == "ok"
    assert rows(home.path / "share" / "app.db") == ["two"]


def test_an_older_database_is_one_with_fewer_rows_than_the_saved_log_holds(
    home: Home, database: sqlite3.Connection, tmp_path: Path
) -> None:
    add(database, "one")
    home.save((DB,))
    shutil.copytree(home.path, tmp_path / "older")
    add(database, "two")
    home.save((DB,))
    database.close()
    shutil.rmtree(home.path)
    shutil.copytree(tmp_path / "older", home.path)
    assert home.check((DB,)) == "damaged"
    home.restore()
    assert rows(home.path / "share" / "app.db") == ["one", "two"]


STEPS = st.one_of(
    st.tuples(st.just("insert"), st.integers(1, 9000)),
    st.tuples(st.just("delete"), st.integers(1, 5)),
    st.tuples(st.just("spill"), st.booleans()),  # so much that it comes into the log before the end, which may not come
    st.tuples(st.just("checkpoint"), st.sampled_from(["passive", "full", "restart", "truncate"])),
    st.tuples(st.just("vacuum"), st.none()),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("mode"), st.sampled_from(["wal", "delete"])),
    st.tuples(st.just("save"), st.booleans()),  # and whether the host comes to record it
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_what_is_saved_is_what_was_there(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        path = home.path / "share" / "app.db"
        path.parent.mkdir()
        db = open_database(path)
        recorded: tuple[dict[str, Any], list[str]] | None = None
        try:
            for number, (step, value) in enumerate([*steps, ("save", True)]):
                if step == "insert":
                    add(db, f"{number}" * value)
                elif step == "delete":
                    db.execute(f"delete from m where rowid % {value} = 0")
                    db.commit()
                elif step == "spill":
                    db.executemany("insert into m values (?)", [(f"{number}" * 5000,)] * 20)
                    db.commit() if value else db.rollback()
                elif step == "checkpoint":
                    db.execute(f"pragma wal_checkpoint({value})")
                elif step == "vacuum":
                    db.execute("vacuum")
                elif step == "reopen":
                    db.close()
                    db = open_database(path)
                elif step == "mode":
                    db.execute(f"pragma journal_mode={value}")
                else:
                    before = home.manifest
                    manifest = home.save((DB,))
                    assert manifest["skipped"] == []
                    content = [text for (text,) in db.execute("select t from m order by rowid")]
                    for kept, expected in [(manifest, content), *([recorded] if recorded else [])]:
                        with tempfile.TemporaryDirectory(dir=folder) as other:
                            native.restore(str(home.saved), other, kept)
                            assert rows(Path(other) / "share" / "app.db") == expected
                    recorded, home.manifest = ((manifest, content), manifest) if value else (recorded, before)
        finally:
            db.close()


def open_database(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=off")
    db.execute("pragma cache_size=5")
    db.execute("create table if not exists m (t text)")
    db.commit()
    return db


def add(db: sqlite3.Connection, text: str) -> None:
    db.execute("insert into m values (?)", (text,))
    db.commit()


def test_a_database_cannot_have_files_deleted(home: Home, database: sqlite3.Connection) -> None:
    database.close()
    home.write("share/app.db-journal", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 600)
    manifest = home.save((DB,))
    assert "transaction" in manifest["skipped"][0]
    home.write("share/app.db-journal", b"\0" * 600)
    manifest = home.save((DB,))
    assert manifest["skipped"] == []


@pytest.mark.parametrize("damage", ["garbage", "middle", "empty"])
def test_a_damaged_database_is_restored(home: Home, database: sqlite3.Connection, damage: str) -> None:
    database.executemany("insert into m values (?)", [("x" * 3000,)] * 50)
    database.commit()
    database.close()
    home.save((DB,))
    assert home.check((DB,)) == "ok"
    path = home.path / "share" / "app.db"
    data = path.read_bytes()
    path.write_bytes(
        {"garbage": b"no", "middle": data[:8000] + os.urandom(30_000) + data[38_000:], "empty": b""}[damage]
    )
    home.write("share/app.db-wal", b"stale")
    assert home.save((DB,))["skipped"] != []
    assert home.check((DB,)) == "damaged"
    home.restore()
    assert home.check((DB,)) == "ok"
    assert len(rows(path)) == 50


def test_a_database_is_read_with_its_write_ahead_log(home: Home, database: sqlite3.Connection) -> None:
    database.execute("insert into m values ('one')")
    database.commit()
    (content,) = native.read(str(home.path), str(home.saved), (DB,), ID, None).values()
    copy = sqlite3.connect(":memory:")
    copy.deserialize(content[:18] + b"\x01\x01" + content[20:])
    assert copy.execute("select t from m").fetchall() == [("one",)]
    copy.close()


def test_an_older_database_is_restored(home: Home, database: sqlite3.Connection) -> None:
    """Its date and its size say nothing: it is what a backup puts back."""
    database.execute("insert into m values ('one')")
    database.commit()
    database.execute("pragma wal_checkpoint(truncate)")
    path = home.path / "share" / "app.db"
    older = path.read_bytes()
    database.execute("insert into m values ('two')")
    database.commit()
    database.close()
    home.save((DB,))
    assert len(older) == path.stat().st_size
    path.write_bytes(older)
    assert home.check((DB,)) == "damaged"
    home.restore()
    assert rows(path) == ["one", "two"]
    newer = sqlite3.connect(path)
    newer.execute("insert into m values ('three')")
    newer.commit()
    newer.close()
    assert home.check((DB,)) == "ok"


@pytest.mark.parametrize("kind", [LOG, DB], ids=lambda file: file.kind)
def test_a_damaged_copy_is_nothing_to_go_on_from(home: Home, database: sqlite3.Connection, kind: NativeFile) -> None:
    home.append({"n": 1})
    database.close()
    manifest = home.save((kind,))
    assert native.restorable(str(home.saved), manifest)
    (copy,) = home.saved.iterdir()
    copy.write_bytes(b"\0" * copy.stat().st_size)
    assert not native.restorable(str(home.saved), manifest)


def test_copies_that_nothing_names_go_after_a_while(home: Home) -> None:
    home.append({"n": 1})
    home.save()
    (home.saved / "old").write_text("")
    (home.saved / "fresh").write_text("")
    os.utime(home.saved / "old", (1, 1))
    os.utime(home.blob(home.log), (1, 1))
    home.save()
    assert sorted(os.listdir(home.saved)) == sorted([home.blob(home.log).name, "fresh"])


def test_a_database_is_told_of_a_new_working_directory(tmp_path: Path) -> None:
    """With what is still in its write-ahead log, and through no link."""
    home = tmp_path / "home"
    home.mkdir()
    files = [
        NativeFile("a.db", "sqlite", moved="update session set directory = :workdir"),
        NativeFile("b.db", "sqlite"),
    ]
    for name in ("a.db", "b.db"):
        db = sqlite3.connect(home / name)
        db.executescript("pragma journal_mode=wal; create table session (id, directory);")
        db.execute("insert into session values (1, '/old')")
        db.commit()
        shutil.copy(home / f"{name}-wal", tmp_path / f"{name}-wal")
        shutil.copy(home / name, tmp_path / name)
        db.close()
        shutil.copy(tmp_path / name, home / name)
        shutil.copy(tmp_path / f"{name}-wal", home / f"{name}-wal")
    native.relocate(str(home), files, "", "/new's")
    found = {}
    for name in ("a.db", "b.db"):
        db = sqlite3.connect(home / name)
        found[name] = db.execute("select id, directory from session").fetchall()
        db.close()
    assert found == {"a.db": [(1, "/new's")], "b.db": [(1, "/old")]}
    (tmp_path / "outside.db").write_bytes((home / "a.db").read_bytes())
    before = (tmp_path / "outside.db").read_bytes()
    (home / "a.db").unlink()
    (home / "a.db").symlink_to(tmp_path / "outside.db")
    native.relocate(str(home), files, "", "/evil")
    assert (tmp_path / "outside.db").read_bytes() == before


def test_a_log_is_told_of_a_new_working_directory_in_its_first_record(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    files = [NativeFile("*_{id}.jsonl", "jsonl", moved="cwd"), NativeFile("plain_{id}.jsonl", "jsonl")]
    rest = b'{"cwd": "/old", "n": 1}\n' * 10_000
    (home / "x_id.jsonl").write_bytes(b'{"type": "session", "cwd": "/old"}\n' + rest)
    (home / "x_other.jsonl").write_bytes(b'{"cwd": "/old"}\n')
    (home / "y_id.jsonl").write_bytes(b"no record\n")
    (tmp_path / "outside").write_bytes(b'{"cwd": "/old"}\n')
    (home / "z_id.jsonl").symlink_to(tmp_path / "outside")
    native.relocate(str(home), files, "id", "/a/näw/place")
    first, left = (home / "x_id.jsonl").read_bytes().split(b"\n", 1)
    assert (json.loads(first), left) == ({"type": "session", "cwd": "/a/näw/place"}, rest)
    assert (home / "x_other.jsonl").read_bytes() == b'{"cwd": "/old"}\n'
    assert (home / "y_id.jsonl").read_bytes() == b"no record\n"
    assert (tmp_path / "outside").read_bytes() == b'{"cwd": "/old"}\n'
    before = (home / "x_id.jsonl").stat().st_ino
    native.relocate(str(home), files, "id", "/a/näw/place")
    assert (home / "x_id.jsonl").stat().st_ino == before  # nothing to say
