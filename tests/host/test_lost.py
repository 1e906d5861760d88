"""A store that was damaged, replaced or never there: clear errors, and nothing is begun afresh under an old key."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler.harness import SessionLost, StoreError
from hostler.store.wal import is_damaged
from hostler.testing.model_server import ModelServer
from hostler.workspace import SessionDirs

FAKE = FAKE_PROGRAM.harness
APP = """
import json, os, sys, hostler
from hostler.testing.fake_runtime import FAKE
harness = hostler.create_harness(host=hostler.local_host(sys.argv[1]), runtime=FAKE, **json.loads(sys.argv[2]))
key = sys.argv[3]
result = hostler.generate_harness(harness=harness, prompt="CODEWORD-" + key, session=key)
assert result.stop_reason == "done"
if sys.argv[4] == "killed":
    harness.sessions.get(key).stop()
    os.kill(os.getpid(), 9)
"""
# `hostler gc` finds what nobody owns on the whole machine: not two of these at once.
pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.xdist_group("gc")]


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


def app(state_dir: Path, options: dict[str, Any], key: str, end: str) -> None:
    """One turn in an app that ends cleanly, which moves the log into the store, or is killed, which leaves it."""
    run = [sys.executable, "-c", APP, str(state_dir), json.dumps(options), key, end]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (-9 if end == "killed" else 0), done.stderr


def harness_of(state_dir: Path, options: dict[str, Any]) -> hostler.HarnessProfile:
    return hostler.create_harness(host=hostler.local_host(state_dir), runtime=FAKE, **options)


def zeroed(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def scrambled(path: Path) -> None:
    path.write_bytes(b"\x37\x7f\x06\x82" + os.urandom(path.stat().st_size - 4))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def fresh(path: Path) -> None:
    path.unlink()
    sqlite3.connect(path).execute("vacuum").connection.close()


def saw(state_dir: Path) -> dict[str, int]:
    return {str(path.relative_to(state_dir)): path.stat().st_size for path in state_dir.rglob("*") if path.is_file()}


def test_what_is_a_log_and_what_is_not(tmp_path: Path) -> None:
    store, wal = tmp_path / "store.db", tmp_path / "store.db-wal"
    database = sqlite3.connect(store)
    database.executescript("pragma journal_mode=wal; create table a (b); insert into a values (1);")
    assert not is_damaged(str(wal))
    whole = wal.read_bytes()
    database.close()
    assert not is_damaged(str(wal))  # the last one who closes takes it along
    for content in (whole, whole[:-1], whole[:40], whole[:32] + b"\0" * 4096, b"", b"\0" * 32):
        wal.write_bytes(content)  # a torn end is SQLite's to mend, and a header alone holds nothing
        assert not is_damaged(str(wal))
    for damage in (zeroed, scrambled):
        wal.write_bytes(whole)
        damage(wal)
        assert is_damaged(str(wal))
    wal.write_bytes(whole[:20] + b"\0" + whole[21:])
    assert is_damaged(str(wal))


def test_a_log_that_is_wholly_destroyed_is_named(options: dict[str, Any], state_dir: Path) -> None:
    """SQLite would take it for empty. Without it, what was in the store before is there, and what was not is lost aloud."""
    app(state_dir, options, "old", "cleanly")
    app(state_dir, options, "new", "killed")
    wal = state_dir / "store.db-wal"
    assert not is_damaged(str(wal))
    zeroed(wal)
    before = saw(state_dir)
    harness = harness_of(state_dir, options)
    for call in (harness.sessions.list, lambda: harness.sessions.get_or_create("old")):
        with pytest.raises(StoreError, match=r"store\.db-wal is damaged"):
            call()
    shown = subprocess.run(
        [sys.executable, "-m", "hostler.cli", "sessions", "--data-dir", str(state_dir)], capture_output=True, timeout=30
    )
    assert b"is damaged" in shown.stderr
    assert saw(state_dir) == before
    wal.unlink()
    recall = json.dumps([{"say": "memory"}])
    assert "CODEWORD-old" in hostler.generate_harness(harness=harness, prompt=recall, session="old").text
    asked = SessionDirs.of(state_dir, "new")
    with pytest.raises(SessionLost, match=r"store does not know session 'new'.*hostler gc"):
        hostler.generate_harness(harness=harness, prompt=recall, session="new")
    assert asked.used
    shutil.rmtree(asked.root)
    assert "CODEWORD" not in hostler.generate_harness(harness=harness, prompt=recall, session="new").text
    for key in ("old", "new"):
        harness.sessions.delete(key)


@pytest.mark.parametrize("damage", [Path.unlink, emptied, fresh])
def test_a_store_that_is_new_beside_old_folders_is_not_begun(
    damage: Callable[[Path], None], options: dict[str, Any], state_dir: Path
) -> None:
    app(state_dir, options, "chat", "cleanly")
    store = state_dir / "store.db"
    kept = store.read_bytes()
    damage(store)
    before = saw(state_dir)
    harness = harness_of(state_dir, options)
    for _ in range(2):
        with pytest.raises(StoreError, match="beside it are the folders of sessions"):
            harness.sessions.get_or_create("chat")
        with pytest.raises(StoreError, match="beside it are the folders of sessions"):
            hostler.agent(FAKE, "hi", state_dir=str(state_dir), **options)
    if damage is fresh:
        done = subprocess.run(
            [sys.executable, "-m", "hostler.cli", "gc", "--data-dir", str(state_dir)],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert b"beside it are the folders" in done.stderr
    assert {name: size for name, size in saw(state_dir).items() if not name.startswith("store.db")} == {
        name: size for name, size in before.items() if not name.startswith("store.db")
    }
    store.write_bytes(kept)  # put back, it goes on
    recall = json.dumps([{"say": "memory"}])
    assert "CODEWORD-chat" in hostler.generate_harness(harness=harness, prompt=recall, session="chat").text
    harness.sessions.delete("chat")


def test_a_folder_that_was_only_made_is_no_lost_session(options: dict[str, Any], state_dir: Path) -> None:
    """An app that was killed before it stored its session left folders, maybe with a template in the workspace."""
    harness = harness_of(state_dir, options)
    harness.sessions.list()
    dirs = SessionDirs.of(state_dir, "chat")
    dirs.make()
    (Path(dirs.session) / "template").write_text("x")
    session = harness.sessions.get_or_create("chat")
    assert session.files.read("template") == b"x"
    harness.sessions.delete("chat")


def test_a_deletion_that_is_cut_leaves_nothing_to_the_next_of_that_key(
    options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = harness_of(state_dir, options)
    session = harness.sessions.get_or_create("chat")
    session.run("CODEWORD-one")
    session.files.write("a", b"1")
    from hostler.workspace import layout

    monkeypatch.setattr(layout, "erase", lambda root: None)  # killed before it came to that
    harness.sessions.delete("chat")
    monkeypatch.undo()
    again = harness.sessions.get_or_create("chat")
    assert again.files.list() == ()
    assert "CODEWORD-one" not in again.run(json.dumps([{"say": "memory"}])).text
    (left,) = [path for path in (state_dir / "sessions").iterdir() if path.name.startswith(".")]
    os.utime(left, (1, 1))
    done = subprocess.run(
        [sys.executable, "-m", "hostler.cli", "gc", "--data-dir", str(state_dir)], capture_output=True, timeout=60
    )
    assert f"removed: folder of a deleted session: {left}" in done.stdout.decode()
    assert not left.exists()
    assert again.files.list() == ()
    harness.sessions.delete("chat")


def test_a_deletion_that_cannot_be_stored_leaves_the_session_as_it_was(
    options: dict[str, Any], state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = harness_of(state_dir, options)
    harness.sessions.get_or_create("chat").run("CODEWORD-one")
    from hostler.store import queries

    def full(*given: Any) -> None:
        raise StoreError("The store failed: the disk is full.")

    monkeypatch.setattr(queries, "delete_session", full)
    with pytest.raises(StoreError, match="disk is full"):
        harness.sessions.delete("chat")
    monkeypatch.undo()
    recall = json.dumps([{"say": "memory"}])
    assert "CODEWORD-one" in hostler.generate_harness(harness=harness, prompt=recall, session="chat").text
    harness.sessions.delete("chat")
