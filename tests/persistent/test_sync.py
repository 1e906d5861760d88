"""One dir in one session: refreshed, committed, in conflict; without any program."""

from __future__ import annotations

import os
import stat
import threading
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tests.persistent.support import Session, Shelf, Storage

import hostler
from hostler.persistent import FileContent

BOTH = pytest.mark.parametrize("kind", [Storage, Shelf])


def contents(store: Storage | Shelf) -> dict[str, bytes]:
    return {path: f if isinstance(f, bytes) else f[1] for path, f in store.files.items()}


@BOTH
def test_files_come_and_go_both_ways(kind: Any, tmp_path: Path) -> None:
    store = kind({"a.md": b"one", "sub/b": b"two", "empty": b""})
    session = Session(tmp_path, store.dir())
    session.refresh()
    assert session.files() == {"a.md": b"one", "sub/b": b"two", "empty": b""}
    assert session.commit().status == "clean"
    session.write("a.md", b"changed")
    session.write("deep/er/new", b"\0\xff")
    os.unlink(session.path / "sub/b")
    report = session.commit("t2")
    assert (report.status, report.created, report.updated, report.deleted) == (
        "committed",
        ("deep/er/new",),
        ("a.md",),
        ("sub/b",),
    )
    assert contents(store) == {"a.md": b"changed", "deep/er/new": b"\0\xff", "empty": b""}
    assert session.uncommitted().status == "clean"
    other = Session(tmp_path, store.dir(), "other")
    other.refresh()
    assert other.files() == session.files()
    (other.path / "a.md").write_bytes(b"by the other")
    os.unlink(other.path / "deep/er/new")
    assert other.commit().status == "committed"
    session.refresh("t3")
    assert session.files() == {"a.md": b"by the other", "empty": b""}
    assert not (session.path / "deep").exists()


@BOTH
def test_two_sessions_and_the_same_file(kind: Any, tmp_path: Path) -> None:
    """The second gets a conflict before anything is stored, and both versions are kept."""
    store = kind({"a": b"base", "b": b"base"})
    first, second = (Session(tmp_path, store.dir(), key) for key in ("first", "second"))
    for session in (first, second):
        session.refresh()
        session.write("a", session.key.encode())
    second.write("b", b"second, too")
    assert first.commit().status == "committed"
    report = second.commit()
    assert report.status == "conflict"
    assert report.conflicts == ("a",)
    assert isinstance(report.error, hostler.PersistenceConflict)
    assert contents(store) == {"a": b"first", "b": b"base"}
    assert second.files() == {"a": b"second", "b": b"second, too"}
    second.refresh("t2")  # which writes over no change
    assert second.files() == {"a": b"second", "b": b"second, too"}
    assert second.commit("t2").status == "conflict"  # and it is not forgotten with the new cursor
    assert contents(store)["a"] == b"first"
    second.write("a", b"first")  # made alike
    report = second.commit("t3")
    assert (report.status, report.updated) == ("committed", ("b",))
    assert contents(store) == {"a": b"first", "b": b"second, too"}


@BOTH
def test_two_sessions_and_different_files(kind: Any, tmp_path: Path) -> None:
    store = kind({"a": b"base", "b": b"base"})
    first, second = (Session(tmp_path, store.dir(), key) for key in ("first", "second"))
    first.refresh()
    second.refresh()
    first.write("a", b"1")
    first.write("new", b"1")
    second.write("b", b"2")
    assert first.commit().status == second.commit().status == "committed"
    assert contents(store) == {"a": b"1", "b": b"2", "new": b"1"}
    second.refresh("t2")
    assert second.files() == contents(store)


def merging(base: bytes | None, ours: bytes | None, theirs: bytes | None) -> bytes:
    return b"|".join(part if part is not None else b"-" for part in (base, ours, theirs))


async def merging_by_name(base: Any, ours: Any, theirs: Any, path: str) -> bytes | None:
    return None if path == "a" else b""


@BOTH
@pytest.mark.parametrize(
    ("merge", "stored"),
    [("ours", b"second"), ("theirs", b"first"), (merging, b"base|second|first"), (merging_by_name, None)],
)
def test_merging(kind: Any, merge: Any, stored: bytes | None, tmp_path: Path) -> None:
    store = kind({"a": b"base"})
    first, second = (Session(tmp_path, store.dir(merge=merge), key) for key in ("first", "second"))
    for session in (first, second):
        session.refresh()
        session.write("a", session.key.encode())
        session.write(session.key, b"mine")
    assert first.commit().status == "committed"
    assert second.commit().status == "committed"
    assert contents(store).get("a") == stored
    second.refresh("t2")
    assert second.files() == contents(store)
    assert second.uncommitted().status == "clean"


@BOTH
def test_a_deletion_against_a_change(kind: Any, tmp_path: Path) -> None:
    store = kind({"a": b"base", "b": b"base"})
    first, second = (Session(tmp_path, store.dir(), key) for key in ("first", "second"))
    for session in (first, second):
        session.refresh()
    (first.path / "a").unlink()
    first.write("b", b"changed")
    second.write("a", b"changed")
    (second.path / "b").unlink()
    assert first.commit().status == "committed"
    assert second.commit().conflicts == ("a", "b")
    assert second.commit(merge="ours", turn=None).status == "committed"
    assert contents(store) == {"a": b"changed"}


@BOTH
def test_both_deleted_it(kind: Any, tmp_path: Path) -> None:
    store = kind({"a": b"base"})
    first, second = (Session(tmp_path, store.dir(), key) for key in ("first", "second"))
    for session in (first, second):
        session.refresh()
        (session.path / "a").unlink()
    assert first.commit().status == "committed"
    assert second.commit().error is None
    assert contents(store) == {}


@BOTH
def test_odd_files(kind: Any, tmp_path: Path) -> None:
    """Binary, empty, executable, alike but for case or Unicode form; folders and files that change places."""
    store = kind({"place": b"file", "folder/in": b"x"})
    names = [
        "Readme",
        "README",
        "readme",
        unicodedata.normalize("NFC", "é"),
        unicodedata.normalize("NFD", "é"),
        "a b\n'c",
    ]
    session = Session(tmp_path, store.dir())
    session.refresh()
    for number, name in enumerate(names):
        session.write(name, bytes([number, 0, 255]))
    session.write("empty", b"")
    session.write("tool", b"#!/bin/sh\n", executable=True)
    (session.path / "place").unlink()
    session.write("place/now/folder", b"y")
    (session.path / "folder/in").unlink()
    (session.path / "folder").rmdir()
    session.write("folder", b"now a file")
    assert session.commit().status == "committed"
    assert contents(store) == session.files()
    assert len(contents(store)) == len(names) + 4
    other = Session(tmp_path, store.dir(), "other")
    other.refresh()
    assert other.files() == session.files()
    (session.path / "folder").unlink()
    session.write("folder/in", b"and back")
    (session.path / "tool").chmod(0o644)
    assert session.commit("t2").updated == ("tool",)
    other.refresh("t2")
    assert other.files() == session.files()


def test_whether_a_file_is_executable_goes_along_where_the_app_says_so(tmp_path: Path) -> None:
    store = Storage({"tool": FileContent(b"#!", executable=True), "plain": b""})
    session = Session(tmp_path, store.dir())
    session.refresh()
    assert [stat.S_IMODE((session.path / name).stat().st_mode) for name in ("tool", "plain")] == [0o755, 0o644]
    (session.path / "plain").chmod(0o755)
    session.commit()
    given = store.changes[0].updated["plain"]
    assert isinstance(given, FileContent)
    assert given.executable
    store.files["plain"] = b"changed"  # plain bytes do not say, so it stays as it was
    session.refresh("t2")
    assert os.access(session.path / "plain", os.X_OK)


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    store = Storage({"a": b"x", "b": b"y"})
    session = Session(tmp_path, store.dir())
    session.refresh()
    secret = tmp_path / "secret"
    secret.write_bytes(b"outside")
    (session.path / "a").unlink()
    (session.path / "a").symlink_to(secret)
    (session.path / "folder").symlink_to(tmp_path)
    os.mkfifo(session.path / "pipe")
    Path(os.fsdecode(os.fsencode(session.path) + b"/\xff")).write_bytes(b"")
    for name in ("~", "\\\\server"):  # refused as paths: in the storage they would keep everybody from loading it
        (session.path / name).write_bytes(b"")
    session.write("b", b"changed")
    report = session.commit()
    assert report.status == "committed"
    assert dict(report.skipped).keys() == {"a", "folder", "pipe", "\\xff", "~", "\\\\server"}
    assert store.files == {"a": b"x", "b": b"changed"}  # a link is no deletion, and is not followed
    store.put(a=b"newer")
    session.refresh("t2")
    assert secret.read_bytes() == b"outside"
    assert (session.path / "a").is_symlink()


@BOTH
def test_the_folder_itself_is_gone(kind: Any, tmp_path: Path) -> None:
    """That is no deletion of all files: nothing is stored, and the next turn has them again."""
    store = kind({"a": b"x"})
    session = Session(tmp_path, store.dir())
    session.refresh()
    (session.path / "a").unlink()
    session.path.rmdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    session.path.symlink_to(outside)
    with pytest.raises(hostler.PersistenceError, match="no folder any more"):
        session.commit()
    assert contents(store) == {"a": b"x"}
    session.refresh("t2")
    assert session.files() == {"a": b"x"}
    assert not session.path.is_symlink()
    assert list(outside.iterdir()) == []


@BOTH
def test_read_only_is_put_back(kind: Any, tmp_path: Path) -> None:
    store = kind({"a": b"x", "sub/b": b"y", "c": b"z"})
    session = Session(tmp_path, store.dir(commit="read-only"))
    session.refresh()
    session.write("a", b"changed")
    (session.path / "sub/b").unlink()
    (session.path / "c").unlink()
    (session.path / "c").symlink_to("a")
    session.write("new/file", b"n")
    report = session.put_back()
    assert (report.created, report.updated, report.deleted) == (("new/file",), ("a",), ("sub/b",))
    assert dict(report.skipped) == {"c": "is a link"}
    assert session.files() == {"a": b"x", "sub/b": b"y", "c": b"z"}
    assert contents(store) == {"a": b"x", "sub/b": b"y", "c": b"z"}
    Path(os.fsdecode(os.fsencode(session.path) + b"/\xff")).write_bytes(b"")
    assert session.put_back().skipped == (("\\xff", "has a name that is no UTF-8"),)
    assert session.put_back().skipped == ()


@BOTH
def test_before_anything_was_loaded(kind: Any, tmp_path: Path) -> None:
    store = kind({"theirs": b"x"})
    session = Session(tmp_path, store.dir())
    assert session.commit().status == session.uncommitted().status == "clean"
    session.write("mine", b"y")
    session.write("theirs", b"z")
    assert session.commit("t1").conflicts == ("theirs",)
    session.write("theirs", b"x")
    assert session.commit("t2").created == ("mine",)
    assert contents(store) == {"theirs": b"x", "mine": b"y"}


def test_a_file_is_read_only_when_its_version_is_new(tmp_path: Path) -> None:
    store = Shelf({name: name.encode() for name in "abc"})
    session = Session(tmp_path, store.dir())
    session.refresh()
    assert sorted(store.take()) == [("list",), ("read", "a"), ("read", "b"), ("read", "c")]
    session.refresh("t2")
    assert store.take() == [("list",)]
    store.files["b"] = (7, b"new")
    session.refresh("t3")
    assert store.take() == [("list",), ("read", "b")]
    session.write("a", b"mine")
    session.commit("t3")
    assert store.take() == [("list",), ("write", "a")]
    session.refresh("t4")
    assert store.take() == [("list",)]
    os.utime(session.path / "c")  # touched, not changed
    assert session.commit("t4").status == "clean"
    assert store.take() == []


def test_functions_without_versions_and_async_ones(tmp_path: Path) -> None:
    store = Shelf({"a": b"x"})

    async def read(ctx: Any, path: str) -> bytes:
        return store.files[path][1]

    async def write(ctx: Any, path: str, content: bytes) -> None:
        store.files[path] = (len(store.calls) + 100, bytes(content))

    async def delete(ctx: Any, path: str) -> None:
        del store.files[path]

    dir = store.dir(read=read, write=write, delete=delete)
    first, second = Session(tmp_path, dir, "first"), Session(tmp_path, dir, "second")
    for session in (first, second):
        session.refresh()
        session.write("a", session.key.encode())
    assert first.commit().status == "committed"
    assert second.commit().status == "conflict"  # seen by its version, though nobody checks it when it is written
    first.refresh("t2")
    (first.path / "a").unlink()
    assert first.commit("t2").deleted == ("a",)
    assert store.files == {}


def test_what_was_stored_before_an_error_is_not_stored_again(tmp_path: Path) -> None:
    store = Shelf({})
    broken = True

    def write(ctx: Any, path: str, content: bytes, version: int | None) -> int:
        if path == "b" and broken:
            raise OSError("the disk is full")
        return store.write(ctx, path, content, version)

    session = Session(tmp_path, store.dir(write=write))
    session.refresh()
    for name in "abc":
        session.write(name, name.encode())
    report = session.commit()
    assert report.status == "failed"
    assert "the disk is full" in str(report.error)
    assert contents(store) == {"a": b"a"}
    assert session.uncommitted().created == ("b", "c")
    broken = False
    store.take()
    assert session.commit("t2").created == ("b", "c")
    assert ("write", "a") not in store.take()


def test_a_commit_that_landed_unseen_is_no_conflict(tmp_path: Path) -> None:
    """The answer was lost. What the storage has then is ours, also when the session has gone on since."""
    store = Storage({"a": b"base"})
    session = Session(tmp_path, store.dir())
    session.refresh()
    session.write("a", b"one")
    real = store.store

    def lost(ctx: Any, changes: Any, cursor: int) -> int:
        real(ctx, changes, cursor)
        raise ConnectionResetError("the answer was lost")

    session.sync = type(session.sync)(store.dir(), session.dirs)
    session.dir = hostler.persistent_dir("/persistent/notes", load=store.load, store=lost)
    assert session.commit().status == "failed"
    assert store.files == {"a": b"one"}
    session.write("a", b"two")
    session.dir = store.dir()
    session.refresh("t2")
    assert session.files() == {"a": b"two"}
    report = session.commit("t2")
    assert (report.status, report.updated) == ("committed", ("a",))
    assert store.files == {"a": b"two"}
    assert len(set(store.keys)) == 2


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"../a": b""}, "leave its root"),
        ({"/a": b""}, "outside"),
        ({"a//b": b""}, "plain relative path"),
        ({"": b""}, "empty"),
        ({"a\udcff": b""}, "cannot be checked out"),
        ({"a": b"", "a/b": b""}, "both a file and a folder"),
        ({"a": "text"}, "not bytes"),
        ([("a", b"")], "not a dict"),
    ],
)
def test_what_the_app_loads_is_checked(files: Any, says: str, tmp_path: Path) -> None:
    dir = hostler.persistent_dir("notes", load=lambda ctx: files, commit="read-only")
    with pytest.raises(hostler.PersistenceError, match=says):
        Session(tmp_path, dir).refresh()


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("cursor", [object, lambda: float("nan"), deep], ids=["object", "nan", "deep"])
def test_a_cursor_is_json(cursor: Any, tmp_path: Path) -> None:
    dir = hostler.persistent_dir("notes", load=lambda ctx: ({}, cursor()), commit="read-only")
    with pytest.raises(hostler.PersistenceError, match="JSON"):
        Session(tmp_path, dir).refresh()


@pytest.mark.parametrize("listed", [None, 3, [["a"]]], ids=str)
def test_a_list_is_of_paths(listed: Any, tmp_path: Path) -> None:
    store = Shelf({"a": b"x"})
    store.list = lambda ctx: listed  # type: ignore[method-assign]
    with pytest.raises(hostler.PersistenceError, match=r"list of the persistent dir .* not a dict or list of paths"):
        Session(tmp_path, store.dir()).refresh()


@pytest.mark.parametrize("what", ["load", "list", "read", "write", "delete"])
def test_every_call_has_its_deadline(what: str, tmp_path: Path) -> None:
    store = Storage({"a": b"x"}) if what == "load" else Shelf({"a": b"x"})
    real = getattr(store, what)
    free = threading.Event()

    def hang(ctx: Any, *arguments: Any) -> Any:
        free.wait(20)
        return real(ctx, *arguments)

    working = Session(tmp_path, store.dir())
    if what in ("write", "delete"):
        working.refresh()
        working.write("b", b"new")
        (working.path / "a").unlink()
    setattr(store, what, hang)
    session = Session(tmp_path, store.dir(timeout=0.2))
    began = time.monotonic()
    if what in ("write", "delete"):
        error = session.commit().error
    else:
        with pytest.raises(hostler.PersistenceError) as raised:
            session.refresh()
        error = raised.value
    assert f"{what} of the persistent dir /persistent/notes in session 's' gave no answer within 0.2 s" in str(error)
    assert time.monotonic() - began < 5
    free.set()
    setattr(store, what, real)
    session.refresh("t2")
    assert session.commit("t2").error is None
    assert contents(store) == session.files()


def test_the_cursor_of_load_and_store(tmp_path: Path) -> None:
    seen: list[Any] = []

    def store(ctx: Any, changes: Any, cursor: Any) -> Any:
        seen.append(cursor)
        return None if len(seen) == 1 else {"v": len(seen)}

    session = Session(tmp_path, hostler.persistent_dir("notes", load=lambda ctx: ({}, ["c", 1]), store=store))
    session.refresh()
    for turn in ("t1", "t2", "t3"):
        session.write("a", turn.encode())
        session.commit(turn)
    assert seen == [["c", 1], ["c", 1], {"v": 2}]


def test_many_sessions_at_once_lose_nothing(tmp_path: Path) -> None:
    """An app whose store says that it was changed: the others' files are taken in, and it is tried again."""
    from concurrent.futures import ThreadPoolExecutor

    store = Storage({})
    sessions = [Session(tmp_path, store.dir(), f"s{n}") for n in range(4)]
    for session in sessions:
        session.refresh()

    def work(session: Session) -> list[str]:
        done = []
        for n in range(5):
            session.write(f"{session.key}-{n}", b"x")
            done.append(session.commit(f"t{n}").status)
        return done

    with ThreadPoolExecutor(4) as pool:
        statuses = list(pool.map(work, sessions))
    last = [session.commit("end").status for session in sessions]
    assert set(last) <= {"clean", "committed"}
    assert {s for group in statuses for s in group} <= {"committed", "conflict", "clean"}
    assert sorted(store.files) == sorted(f"s{s}-{n}" for s in range(4) for n in range(5))
