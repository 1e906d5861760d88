"""kill -9 around a commit: every change is in the storage or uncommitted in the session, and none in neither."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SOAK
from tests.persistent.support import Session
from tests.sessions.programs import CLAUDE, CODEX, FAKE_PROGRAM, KEY, OPENCODE, Program, ids

import hostler
from hostler.harness import Committed, Done, State
from hostler.persistent import Changes, PersistContext
from hostler.testing.model_server import ModelServer
from hostler.workspace import SessionDirs

APP = Path(__file__).with_name("app.py")


class Versioned:
    """An app's storage in a folder: all files in one JSON file that is replaced whole, with a number for a cursor. It
    knows the idempotency keys that it has seen, as a careful app does."""

    def __init__(self, folder: Path, slow: float = 0.0) -> None:
        self.file = folder / "storage.json"
        self.slow = slow

    def state(self) -> dict[str, Any]:
        try:
            return json.loads(self.file.read_text())
        except FileNotFoundError:
            return {"cursor": 0, "files": {}, "keys": []}

    def files(self) -> dict[str, bytes]:
        return {path: text.encode() for path, text in self.state()["files"].items()}

    def load(self, ctx: PersistContext) -> tuple[dict[str, bytes], int]:
        return self.files(), self.state()["cursor"]

    def store(self, ctx: PersistContext, changes: Changes, cursor: int) -> int:
        time.sleep(self.slow)
        state = self.state()
        if ctx.idempotency_key not in state["keys"]:
            if state["cursor"] != cursor:
                raise hostler.PersistenceConflict("changed")
            state["files"] |= {
                path: content.decode() for path, content in {**changes.created, **changes.updated}.items()
            }
            for path in changes.deleted:
                del state["files"][path]
            state["cursor"] += 1
            state["keys"].append(ctx.idempotency_key)
            new = self.file.with_suffix(".new")
            new.write_text(json.dumps(state))
            os.replace(new, self.file)
        time.sleep(self.slow)
        return int(state["cursor"])


def child(session: Session, turn: str, delay: float) -> None:
    """In a copy of this process: refresh and commit, and be killed in the middle, or at the end."""

    def kill() -> None:
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    try:
        session.refresh(turn)
        session.commit(turn)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kind", ["whole", "files"])
@pytest.mark.parametrize("seed", range(150 if SOAK else 15))
def test_a_commit_is_cut_off_at_a_random_moment(kind: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(f"{kind} {seed}")
    storage = Versioned(tmp_path, slow=0.004)
    source = tmp_path / "source"
    source.mkdir()

    def stored() -> dict[str, bytes]:
        if kind == "whole":
            return storage.files()
        return {file.name: file.read_bytes() for file in source.iterdir() if not file.name.startswith(".hostler-")}

    if kind == "whole":
        dir = hostler.persistent_dir("/persistent/notes", load=storage.load, store=storage.store)
    else:
        dir = hostler.local_dir(source, at="/persistent/notes")
    session, other = Session(tmp_path, dir), Session(tmp_path, dir, "other")
    session.refresh("t0")
    other.refresh("t0")
    mine: dict[str, bytes | None] = {}  # what the session has last done to each of its files
    theirs: dict[str, bytes] = {}
    for turn in range(3):
        for name in chance.sample("abcdefgh", 3):
            content = f"{turn} {chance.random()}".encode()
            session.write(name, content)
            mine[name] = content
        if (written := [name for name, content in mine.items() if content]) and chance.random() < 0.5:
            (session.path / (gone := chance.choice(written))).unlink()
            mine[gone] = None
        if chance.random() < 0.5:  # another session is at work, in files of its own
            other.write(f"other-{turn}", content)
            theirs[f"other-{turn}"] = content
            assert other.commit(f"o{turn}").status == "committed"
        pid = os.fork()
        if not pid:
            child(session, f"t{turn}", chance.uniform(0.0, 0.09))
        os.waitpid(pid, 0)
        look = session.uncommitted()
        uncommitted = {*look.created, *look.updated, *look.deleted}
        there = stored()
        for name, content in mine.items():
            assert (there.get(name) == content) or name in uncommitted, (turn, name)
            here = session.path / name
            assert (here.read_bytes() if here.exists() else None) == content
        assert theirs.items() <= there.items()
    session.refresh("t9")
    report = session.commit("t9")
    assert report.status in ("clean", "committed"), report
    assert stored() == {**{name: c for name, c in mine.items() if c is not None}, **theirs}
    assert session.uncommitted().status == "clean"
    session.refresh("t10")
    here = {path: content for path, content in session.files().items() if not path.startswith(".hostler-")}
    assert here == stored()  # but for a file that was just being written; those are swept after an hour


@pytest.mark.parametrize(
    ("program", "when"),
    [
        (FAKE_PROGRAM, "before"),
        (FAKE_PROGRAM, "after"),
        pytest.param(CLAUDE, "after", marks=pytest.mark.real),
        pytest.param(CODEX, "before", marks=pytest.mark.real),
        pytest.param(OPENCODE, "after", marks=[pytest.mark.real, pytest.mark.soak]),
    ],
    ids=ids,
)
def test_the_next_app_finishes_the_commit_of_a_killed_one(
    program: Program, when: str, models: ModelServer, tmp_path: Path, nothing_left: None
) -> None:
    """The same commit, under the same key; the turn gets its one Done with it, and nothing is stored twice."""
    storage = tmp_path / "storage"
    storage.mkdir()
    job = {
        "harness": program.name,
        "options": program.options(models),
        "storage": str(storage),
        "when": when,
        "prompt": program.shell("printf '%s' change > /persistent/notes/a.md"),
    }
    done = subprocess.run(
        [sys.executable, str(APP), json.dumps(job)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -9, done.stderr
    files = Versioned(storage)
    assert files.files() == ({} if when == "before" else {"a.md": b"change"})
    keys: list[str | None] = []

    def store(ctx: PersistContext, changes: Changes, cursor: int) -> int:
        keys.append(ctx.idempotency_key)
        assert ctx.extra_body is None
        return files.store(ctx, changes, cursor)

    dir = hostler.persistent_dir("/persistent/notes", load=files.load, store=store)
    with hostler.agent_resume(State.loads(done.stdout.strip()), persistent_dirs=[dir], **program.options(models)) as s:
        found = []
        for record in s.follow(0):
            found.append(record.event)
            if isinstance(record.event, Done):
                break
        assert isinstance(found[-1], Done)
        result = found[-1].result
        assert (result.stop_reason, result.persistence.status) == ("done", "committed")
        assert [e.key for e in found if isinstance(e, Committed)] == keys
        assert keys == [(storage / "key").read_text()]
        assert files.files() == {"a.md": b"change"}
        assert files.state()["cursor"] == 1
        assert KEY not in json.dumps(files.state())
        assert result.persistence.commits[0]["created"] == ["a.md"]
        dirs = SessionDirs.of(os.environ["HOSTLER_STATE_DIR"], s.key)
        assert os.listdir(dirs.persistent) == ["notes"]
