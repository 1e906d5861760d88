"""Snapshots of a workspace: exact, incremental, bounded, and nothing outside is touched."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hostler.types.errors import SandboxError
from hostler.workspace import snapshots

LIMIT = 1 << 30
NAMES = ["äöü", "公共.txt", "a b\n.txt", 'quo"te', "tab\t", "-dash", " -> ", "e\u0301", "\udcff\udc80"]


def tree(root: Path) -> dict[str, Any]:
    """All that counts: kinds, modes, contents, times of files, targets of links, which names are one file."""
    found: dict[str, Any] = {".": stat.S_IMODE(root.stat().st_mode)}
    inodes: dict[int, list[str]] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for raw in (*folders, *files):
            path = os.path.join(folder, raw)
            info = os.lstat(path)
            name = os.fsdecode(os.path.relpath(path, os.fsencode(root)))
            if stat.S_ISLNK(info.st_mode):
                found[name] = os.readlink(path)
            elif stat.S_ISDIR(info.st_mode):
                found[name] = ("folder", stat.S_IMODE(info.st_mode))
            elif stat.S_ISREG(info.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
                found[name] = (stat.S_IMODE(info.st_mode), info.st_mtime_ns, content)
                inodes.setdefault(info.st_ino, []).append(name)
    found["one file"] = sorted(sorted(names) for names in inodes.values() if len(names) > 1)
    return found


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "snapshots")


def fill(root: Path) -> None:
    """What ordinary workspaces hold (cases E11, E13, E14)."""
    (root / "empty" / "deep").mkdir(parents=True)
    for name in NAMES:
        (root / name).write_bytes(os.urandom(50))
    (root / "table").write_bytes(bytes(range(256)))
    (root / "none").write_bytes(b"")
    (root / "run.sh").write_text("#!/bin/sh\r\n\0")
    (root / "run.sh").chmod(0o755)
    (root / "setuid").write_bytes(b"x")
    (root / "setuid").chmod(0o4755)
    (root / "closed").write_bytes(b"secret")
    (root / "closed").chmod(0o000)
    (root / "locked").mkdir()
    (root / "locked" / "in").write_bytes(b"1")
    (root / "locked").chmod(0o555)
    os.link(root / "table", root / "empty" / "table-again")
    for name, target in {
        "in": "table",
        "out": "/etc/passwd",
        "dangling": "nowhere",
        "loop": "loop",
        "up": "..",
    }.items():
        (root / name).symlink_to(target)
    with open(root / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 30)
        file.write(b"in the middle")


def test_what_is_taken_is_put_back(workspace: Path, store: str) -> None:
    fill(workspace)
    (workspace / "sparse").unlink()  # not read through here
    before = tree(workspace)
    taken = snapshots.take(str(workspace), store, LIMIT)
    assert taken.skipped == {}
    subprocess.run(
        "chmod -R u+rwx . && rm -rf empty locked && mkdir none2 && rm none && mkdir none && rm table && ln -s run.sh table"
        " && echo more >> run.sh && chmod 600 run.sh && rm in && echo x > in && mkdir -p out2/a/b && mv setuid out2/a"
        " && chmod 700 .",
        shell=True,
        cwd=workspace,
        check=True,
    )
    assert tree(workspace) != before
    snapshots.restore(str(workspace), store, taken.id)
    assert tree(workspace) == before
    assert Path("/etc/passwd").read_text()


def test_a_sparse_file_stays_one(workspace: Path, store: str) -> None:
    fill(workspace)
    start = time.monotonic()
    taken = snapshots.take(str(workspace), store, 1 << 20)
    os.unlink(workspace / "sparse")
    snapshots.restore(str(workspace), store, taken.id)
    assert time.monotonic() - start < 5
    info = os.stat(workspace / "sparse")
    assert (info.st_size, info.st_blocks < 1000) == (1 << 40, True)
    with open(workspace / "sparse", "rb") as file:
        file.seek((1 << 30) - 1)
        assert file.read(15) == b"\0in the middle\0"


def test_what_cannot_be_taken_is_said_and_left_alone(workspace: Path, store: str) -> None:
    """Case E14: a FIFO, a socket."""
    os.mkfifo(workspace / "fifo")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(workspace / "socket"))
        taken = snapshots.take(str(workspace), store, LIMIT)
        assert set(taken.skipped) == {"fifo", "socket"}
        (workspace / "new").write_text("x")
        snapshots.restore(str(workspace), store, taken.id)
    assert sorted(os.listdir(workspace)) == ["fifo", "socket"]


def test_what_is_as_it_was_is_not_touched(workspace: Path, store: str) -> None:
    """Case E16."""
    for number in range(1000):
        (workspace / f"{number}").write_text(f"{number}")
    taken = snapshots.take(str(workspace), store, LIMIT)
    before = {name: os.stat(workspace / name) for name in os.listdir(workspace)}
    snapshots.restore(str(workspace), store, taken.id)
    assert {name: os.stat(workspace / name)[:10] for name in before} == {n: i[:10] for n, i in before.items()}
    assert all(os.stat(workspace / name).st_ctime_ns == info.st_ctime_ns for name, info in before.items())


def test_only_what_is_new_is_copied(workspace: Path, store: str) -> None:
    for number in range(50):
        (workspace / f"{number}").write_bytes(os.urandom(10_000))
    time.sleep(0.05)
    first = snapshots.take(str(workspace), store, LIMIT)
    size = os.stat(f"{store}/pack").st_size
    (workspace / "7").write_bytes(os.urandom(10_000))
    (workspace / "8").unlink()
    second = snapshots.take(str(workspace), store, LIMIT)
    assert os.stat(f"{store}/pack").st_size == size + 10_000
    later = tree(workspace)
    snapshots.restore(str(workspace), store, first.id)
    assert tree(workspace) != later
    snapshots.restore(str(workspace), store, second.id)
    assert tree(workspace) == later


def test_a_change_that_looks_like_none_is_seen(workspace: Path, store: str) -> None:
    """Written right before and right after, with the same size and time."""
    (workspace / "a").write_bytes(b"one")
    info = os.stat(workspace / "a")
    snapshots.take(str(workspace), store, LIMIT)
    with open(workspace / "a", "r+b") as file:
        file.write(b"two")
    os.utime(workspace / "a", ns=(info.st_atime_ns, info.st_mtime_ns))
    second = snapshots.take(str(workspace), store, LIMIT)
    (workspace / "a").write_bytes(b"xxx")
    snapshots.restore(str(workspace), store, second.id)
    assert (workspace / "a").read_bytes() == b"two"


@pytest.mark.parametrize("place", ["/", "~", "above"])
def test_home_and_root_are_refused(place: str, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "above" / "home"))
    (tmp_path / "above" / "home").mkdir(parents=True)
    (tmp_path / "alias").symlink_to("above/home")
    root = {"/": "/", "~": str(tmp_path / "alias"), "above": str(tmp_path / "above")}[place]
    for work in (lambda: snapshots.take(root, store, LIMIT), lambda: snapshots.restore(root, store, "snap_1")):
        with pytest.raises(SandboxError, match="home directory"):
            work()
    assert not os.path.exists(store)


def test_it_is_bounded(workspace: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace / "a").write_bytes(b"x" * 5000)
    taken = snapshots.take(str(workspace), store, 6000)
    (workspace / "b").write_bytes(b"y" * 5000)
    with pytest.raises(SandboxError, match="HOSTLER_SNAPSHOT_LIMIT"):
        snapshots.take(str(workspace), store, 6000)
    assert os.stat(f"{store}/pack").st_size == 5000
    snapshots.restore(str(workspace), store, taken.id)
    assert os.listdir(workspace) == ["a"]
    monkeypatch.setattr(snapshots, "_MAX_ENTRIES", 10)
    for number in range(11):
        (workspace / f"{number}").touch()
    with pytest.raises(SandboxError, match="more than 10 entries"):
        snapshots.take(str(workspace), store, 6000)


def test_a_folder_that_was_swapped_for_a_link_leads_nowhere(workspace: Path, tmp_path: Path, store: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (workspace / "d").mkdir()
    (workspace / "d" / "f").write_text("1")
    taken = snapshots.take(str(workspace), store, LIMIT)
    (workspace / "d" / "f").unlink()
    (workspace / "d").rmdir()
    (workspace / "d").symlink_to(outside)
    os.link(outside / "mine", workspace / "f2")
    snapshots.restore(str(workspace), store, taken.id)
    assert (workspace / "d" / "f").read_text() == "1"
    assert not (workspace / "d").is_symlink()
    assert os.listdir(outside) == ["mine"]
    assert (outside / "mine").read_text() == "mine"


def test_the_repository_around_is_not_touched(tmp_path: Path, store: str) -> None:
    """Case E07: the workspace is one folder of a repository with other work in it."""
    repository, work = tmp_path / "repository", tmp_path / "repository" / "work"
    work.mkdir(parents=True)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    (work / "a").write_text("1")
    (repository / "other").write_text("1")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=repository, check=True)
    (repository / "other").write_text("uncommitted")
    (repository / "untracked").write_text("2")
    subprocess.run([*git, "add", "other"], cwd=repository, check=True)
    taken = snapshots.take(str(work), store, LIMIT)
    before = tree(repository)
    (work / "a").write_text("2")
    (work / "b").write_text("2")
    snapshots.restore(str(work), store, taken.id)
    assert tree(repository) == before


def test_a_virtual_environment_survives(workspace: Path, store: str) -> None:
    """Case E14: absolute links and programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", workspace / "env"], check=True)
    taken = snapshots.take(str(workspace), store, LIMIT)
    subprocess.run(["rm", "-rf", workspace / "env"], check=True)
    snapshots.restore(str(workspace), store, taken.id)
    subprocess.run([workspace / "env" / "bin" / "python", "-c", "pass"], check=True)


def test_an_unknown_id(workspace: Path, store: str) -> None:
    snapshots.take(str(workspace), store, LIMIT)
    for id in ("snap_1", "../x", "snap_/../x", ""):
        with pytest.raises(KeyError):
            snapshots.restore(str(workspace), store, id)
