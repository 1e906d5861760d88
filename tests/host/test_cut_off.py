"""kill -9 in a fork or a restore: nothing that it leaves is in anybody's way, or taken for anything else."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler.harness import SessionLost
from hostler.host import gc
from hostler.testing.model_server import ModelServer
from hostler.workspace import SessionDirs, snapshots, unfinished

FAKE = FAKE_PROGRAM.harness
TEMP = ".hostler-0123456789abcdef.tmp"  # what a user may call a file as well
APP = """
import json, os, sys, hostler
from hostler.testing.fake_runtime import FAKE
from hostler.host import rest
from hostler.workspace import SessionDirs, snapshot_restore

where, options, step = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
rename, write = os.rename, snapshot_restore._write_at
second = SessionDirs.of(where, "second").root

def kill(*given):
    os.kill(os.getpid(), 9)

def renamed(source, target):
    rename(source, target)
    if target == second:
        kill()

def written(*given):
    write(*given)
    kill()

if step == "copying":
    rest.snapshots.restore = kill
elif step == "renamed":
    os.rename = renamed
session = hostler.create_harness(host=hostler.local_host(where), runtime=FAKE, **options).sessions.get("first")
if step == "stored":
    SessionDirs.settle = kill
elif step == "restore":
    session.files.write("sub/file", b"x" * 100000)
    snapshot = session.snapshot()
    session.files.write("sub/file", b"y")
    snapshot_restore._write_at = written
    session.restore(snapshot)
session.fork("second")
"""
pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def harness(models: ModelServer, state_dir: Path) -> hostler.HarnessProfile:
    return hostler.create_harness(host=hostler.local_host(state_dir), runtime=FAKE, **FAKE_PROGRAM.options(models))


def killed(step: str, models: ModelServer, state_dir: Path) -> None:
    run = [sys.executable, "-c", APP, str(state_dir), json.dumps(FAKE_PROGRAM.options(models)), step]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr


def first_of(harness: hostler.HarnessProfile) -> Any:
    session = harness.sessions.get_or_create("first")
    session.run("CODEWORD-one")
    session.files.write("a", b"1")
    session.stop()
    return harness.sessions.get("first")


@pytest.mark.parametrize("again", ["fork", "make"])
@pytest.mark.parametrize("step", ["copying", "renamed"])
def test_a_fork_that_is_cut_off_does_not_keep_its_key(
    step: str, again: str, harness: hostler.HarnessProfile, models: ModelServer, state_dir: Path
) -> None:
    first = first_of(harness)
    killed(step, models, state_dir)
    with pytest.raises(SessionLost):
        harness.sessions.get("second")
    if again == "fork":
        second = first.fork("second")
        assert "CODEWORD-one" in second.run(json.dumps([{"say": "memory"}])).text
        assert second.files.read("a") == b"1"
    else:
        second = harness.sessions.get_or_create("second")
        assert "CODEWORD-one" not in second.run(json.dumps([{"say": "memory"}])).text
        assert second.files.list() == ()
    for left in (state_dir / "sessions").iterdir():
        os.utime(left, (1, 1))
    found = [leftover.what for leftover in gc._folders([], str(state_dir)) if "deleted" in leftover.what]
    assert len(found) == 1
    for key in ("first", "second"):
        harness.sessions.delete(key)


def test_a_fork_that_is_in_the_store_is_a_session_and_no_leftover(
    harness: hostler.HarnessProfile, models: ModelServer, state_dir: Path
) -> None:
    first = first_of(harness)
    killed("stored", models, state_dir)
    with pytest.raises(ValueError, match="already"):
        first.fork("second")
    second = harness.sessions.get("second")
    assert "CODEWORD-one" in second.run(json.dumps([{"say": "memory"}])).text
    second.stop()
    with sqlite3.connect(state_dir / "store.db", timeout=10) as database:  # the store loses it
        database.execute("update sessions set key = 'other' where key = 'second'")
    database.close()
    with pytest.raises(ValueError, match="lost session"):
        first.fork("second")
    with pytest.raises(SessionLost, match="lost"):
        harness.sessions.get_or_create("second")
    assert (Path(SessionDirs.of(state_dir, "second").session) / "a").read_bytes() == b"1"
    harness.sessions.delete("first")


def test_gc_leaves_a_fork_that_is_being_made(tmp_path: Path) -> None:
    staged = SessionDirs.of(tmp_path, "chat").staged()
    staged.make()
    with unfinished.begun(staged.forking):
        os.utime(staged.root, (1, 1))
        assert list(gc._folders([], str(tmp_path))) == []
    assert len(list(gc._folders([], str(tmp_path)))) == 1


@pytest.mark.parametrize("where", ["here", "elsewhere", "turn"])
def test_a_restore_that_is_cut_off_leaves_no_file(
    where: str, harness: hostler.HarnessProfile, models: ModelServer, state_dir: Path
) -> None:
    """Gone when another app opens the session, or where it is open already, with its next turn or snapshot."""
    first = first_of(harness)
    first.files.write(f"sub/{TEMP}", b"the user's")
    killed("restore", models, state_dir)
    sub = Path(SessionDirs.of(state_dir, "first").session) / "sub"
    assert len(os.listdir(sub)) == 3
    if where == "turn":
        assert first.run("x").files == ()
    elif where == "here":
        first.snapshot()
    else:
        look = f"""
import json, sys, hostler
from hostler.testing.fake_runtime import FAKE
harness = hostler.create_harness(host=hostler.local_host({str(state_dir)!r}), runtime=FAKE, **json.loads(sys.argv[1]))
print([entry.path for entry in harness.sessions.get("first").files.list("sub")])
"""
        run = [sys.executable, "-c", look, json.dumps(FAKE_PROGRAM.options(models))]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == f"['/session/sub/{TEMP}', '/session/sub/file']\n"
    assert sorted(os.listdir(sub)) == [TEMP, "file"]
    assert (sub / TEMP).read_bytes() == b"the user's"
    harness.sessions.delete("first")


def test_a_restore_that_runs_is_left_alone(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "snapshots"
    root.mkdir()
    folder.mkdir()
    (root / TEMP).write_text("half")
    with unfinished.begun(str(folder / "restoring"), TEMP):
        snapshots.tidy(str(root), str(folder))
        assert os.listdir(root) == [TEMP]
    snapshots.tidy(str(root), str(folder))
    assert os.listdir(root) == os.listdir(folder) == []
    (root / "a").write_text("mine")
    with unfinished.begun(str(folder / "restoring"), "a"):  # no name of ours
        pass
    snapshots.tidy(str(root), str(folder))
    assert os.listdir(root) == ["a"]
