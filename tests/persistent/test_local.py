"""local_dir and project_dir: directories of this machine."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.persistent.support import Session

import hostler
from hostler.workspace import scan as scanning


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_a_relative_one_is_below_the_data_dir(tmp_path: Path) -> None:
    session = Session(tmp_path, hostler.local_dir("shared/notes"))
    assert session.dir.path == "/persistent/notes"
    session.refresh()
    session.write("sub/a", b"1")
    session.write("tool", b"2", executable=True)
    assert session.commit().status == "committed"
    folder = tmp_path / "data" / "shared" / "notes"
    assert files(folder) == {"sub/a": b"1", "tool": b"2"}
    assert os.access(folder / "tool", os.X_OK)
    other = Session(tmp_path, hostler.local_dir("shared/notes", at="mine"), "other")
    other.refresh()
    assert other.path.name == "mine"
    assert other.files() == files(folder)
    assert os.access(other.path / "tool", os.X_OK)
    (other.path / "sub/a").unlink()
    assert other.commit().deleted == ("sub/a",)
    assert files(folder) == {"tool": b"2"}
    assert not (folder / "sub").exists()


@pytest.mark.parametrize(
    "name", ["../up", "sessions", "sessions/x", "hosts", "store.db", "store.db-wal", "a/../../b", "."]
)
def test_a_relative_one_stays_inside_and_apart(name: str) -> None:
    with pytest.raises(hostler.PathError):
        hostler.local_dir(name, at="notes")


def test_what_is_hostlers_own_is_refused(tmp_path: Path) -> None:
    for source in (tmp_path / "data" / "sessions" / "s" / "home", tmp_path):
        session = Session(tmp_path, hostler.local_dir(source, at="notes"))
        session.dirs.make()
        with pytest.raises(hostler.PersistenceError, match=r"belongs to a session|inside"):
            session.refresh()


def test_a_link_below_the_data_dir_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes").symlink_to(tmp_path)
    with pytest.raises(hostler.PersistenceError, match="link"):
        Session(tmp_path, hostler.local_dir("notes")).refresh()


def test_links_in_the_source_are_not_followed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "secret").write_text("outside")
    (source / "link").symlink_to(tmp_path / "secret")
    (source / "folder").symlink_to(tmp_path)
    (source / "a").write_text("a")
    session = Session(tmp_path, hostler.local_dir(source))
    session.refresh()
    assert session.files() == {"a": b"a"}
    session.write("folder/new", b"x")
    report = session.commit()
    assert report.status == "failed"
    assert "link" in str(report.error)
    assert not (tmp_path / "new").exists()


def test_a_directory_for_each_user(tmp_path: Path) -> None:
    dir = hostler.local_dir(lambda ctx: f"users/{ctx.session}", at="notes")
    for key in ("ada", "bob"):
        session = Session(tmp_path, dir, key)
        session.refresh()
        session.write("a", key.encode())
        session.commit()
        assert (tmp_path / "data" / "users" / key / "a").read_text() == key
    assert dir.needs == "persistent dir /persistent/notes"
    with pytest.raises(TypeError, match="at="):
        hostler.local_dir(lambda ctx: "x")
    with pytest.raises(hostler.PersistenceError, match="leave its root"):
        Session(tmp_path, dir, "../..").refresh()


def test_a_project_dir_is_inside_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "docs").mkdir(parents=True)
    (project / "docs" / "a").write_text("a")
    (project / "out").symlink_to(tmp_path)
    session = Session(tmp_path, hostler.project_dir("docs", project_root=project))
    session.refresh()
    session.write("b", b"b")
    session.commit()
    assert files(project / "docs") == {"a": b"a", "b": b"b"}
    monkeypatch.chdir(project)
    assert hostler.project_dir("docs").spec == session.dir.spec
    for outside in (".", "..", "../other", "out", str(tmp_path), "docs/../../x"):
        with pytest.raises(hostler.PathError, match="not inside the project"):
            hostler.project_dir(outside, project_root=project)


def test_somebody_edits_the_source_by_hand(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("base")
    (source / "b").write_text("base")
    session = Session(tmp_path, hostler.local_dir(source))
    session.refresh()
    session.write("a", b"mine")
    (source / "b").write_text("by hand")
    (source / "c").mkdir()
    (source / "c" / "d").write_text("by hand")
    assert session.commit().status == "committed"
    session.refresh("t2")
    assert session.files() == files(source) == {"a": b"mine", "b": b"by hand", "c/d": b"by hand"}
    (source / "a").write_text("by hand")
    session.write("a", b"mine again")
    session.write("e", b"not stored either")
    assert session.commit("t2").conflicts == ("a",)
    assert files(source)["a"] == b"by hand"
    assert "e" not in files(source)


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    session = Session(tmp_path, hostler.local_dir(source))
    session.refresh()
    left = [folder / f".hostler-{digit * 16}.tmp" for folder in (source, session.path) for digit in "0f"]
    for file in left:
        file.write_bytes(b"half")
        if "0000" in file.name:
            os.utime(file, (time.time() - 7200,) * 2)
    session.refresh("t2")
    assert session.commit("t2").status == "clean"
    assert [file.exists() for file in left] == [False, True, False, True]


def test_two_sessions_take_turns_to_write(tmp_path: Path) -> None:
    """Also of two processes: the lock is the kernel's."""
    source = tmp_path / "source"
    source.mkdir()
    session = Session(tmp_path, hostler.local_dir(source, timeout=0.3))
    session.refresh()
    session.write("a", b"1")
    fd = os.open(source, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    report = session.commit()
    assert report.status == "failed"
    assert "0.3 s" in str(report.error)
    threading.Timer(0.1, os.close, (fd,)).start()
    began = time.monotonic()
    assert session.commit("t2").status == "committed"
    assert time.monotonic() - began > 0.05


def test_a_large_file(tmp_path: Path) -> None:
    """256 MB, there and back."""
    size = 256 << 20
    source = tmp_path / "source"
    source.mkdir()
    with open(source / "big", "wb") as file:
        file.seek(size - 1)
        file.write(b"x")
    session = Session(tmp_path, hostler.local_dir(source))
    session.refresh()
    assert (session.path / "big").stat().st_size == size
    with open(session.path / "big", "r+b") as file:
        file.write(b"changed")
    assert session.commit().updated == ("big",)
    with open(source / "big", "rb") as file:
        assert file.read(7) == b"changed"
        file.seek(size - 1)
        assert file.read() == b"x"
    assert not (Path(session.dirs.private) / "persistent" / "source" / "frozen").exists()


def test_three_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look at each side, and only what is changed is read and stored (the benchmark has 100,000 files)."""
    source = tmp_path / "source"
    for folder in range(20):
        (source / str(folder)).mkdir(parents=True)
        for number in range(25):
            (source / str(folder) / f"{number}.md").write_text(f"{folder} {number}")
    session = Session(tmp_path, hostler.local_dir(source))
    session.refresh()
    assert len(session.files()) == 500
    for name in ("0/0.md", "7/7.md", "19/24.md"):
        session.write(name, b"changed")
    scans: list[Any] = []
    reads: list[str] = []
    writes: list[str] = []
    real_scan, real_read, real_create = (
        scanning.scan,
        hostler.persistent.folder.Root.open_read,
        hostler.persistent.folder.Root.create,
    )
    monkeypatch.setattr("hostler.persistent.folder.scan", lambda *a, **k: scans.append(a) or real_scan(*a, **k))
    monkeypatch.setattr("hostler.persistent.local.scan", lambda *a, **k: scans.append(a) or real_scan(*a, **k))

    def open_read(self: Any, path: str) -> Any:
        reads.append(path)
        return real_read(self, path)

    def create(self: Any, path: str, mode: int | None = None) -> Any:
        writes.append(path)
        return real_create(self, path, mode)

    monkeypatch.setattr("hostler.workspace.confined.Root.open_read", open_read)
    monkeypatch.setattr("hostler.workspace.confined.Root.create", create)
    report = session.commit()
    assert report.updated == ("0/0.md", "19/24.md", "7/7.md")
    assert len(scans) == 1  # of the checkout; of the source the three are looked at
    checkout = sorted(path for path in reads if path.startswith("source/"))
    assert checkout == ["source/0/0.md", "source/19/24.md", "source/7/7.md"]
    assert sorted(path for path in writes if path.endswith(".md")) == ["0/0.md", "19/24.md", "7/7.md"]
