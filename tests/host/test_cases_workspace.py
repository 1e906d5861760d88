"""Public fault cases of turns that a program tells in disorder, and of workspaces that are huge, odd or the user's own."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import processes_of, wait_until
from tests.host.test_storm import check_alone_and_once, journal
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler import Harness, sandbox
from hostler.harness import Done, FileChange
from hostler.testing.model_server import ModelServer

FAKE = FAKE_PROGRAM.harness
DISORDERED = str(Path(__file__).with_name("disordered_codex.py"))


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert wait_until(lambda: not processes_of(tmp_path), 8), [p.cmdline() for p in processes_of(tmp_path)]


# ---- B ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order",
    [
        "response-started-completed",
        "started-response-completed",
        "started-completed-response",
        "completed-response-once",
    ],
)
def test_turns_that_are_told_in_any_order_run_one_after_the_other(
    order: str, models: ModelServer, tmp_path: Path
) -> None:
    """Case B11: an answer that comes after the turn's end belongs to that turn, and not to the next one in the queue."""
    harness = hostler.create_harness(
        host=hostler.local_host(tmp_path / "state"),
        runtime=Harness.CODEX,
        model="gpt-5",
        api_base=models.url,
        api_key="planted-key-123",
        timeout=20,
        options={"program": [sys.executable, DISORDERED, order]},
    )
    streams = [hostler.stream_harness(harness=harness, prompt=f"word-{n}", session="chat") for n in range(3)]
    results = [stream.wait() for stream in streams]
    assert [(r.stop_reason, r.text) for r in results] == [("done", f"heard word-{n}") for n in range(3)]
    records = journal(harness, "chat", 3)
    check_alone_and_once(records)
    assert [r.turn for r in records if isinstance(r.event, Done)] == [result.turn_id for result in results]
    harness.sessions.delete("chat")


# ---- E ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in which files are quickly made."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="hostler-test-", dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


def test_a_huge_workspace_holds_no_turn_up(options: dict[str, Any], in_memory: Path) -> None:
    """Case E05: 100,000 files beside a node_modules that is not looked at."""
    workspace = in_memory
    for folder in range(400):
        path = workspace / f"d{folder}"
        path.mkdir()
        for number in range(250):
            os.close(os.open(path / f"f{number}", os.O_CREAT | os.O_WRONLY, 0o644))
    modules = workspace / "node_modules" / "m"
    modules.mkdir(parents=True)
    for number in range(1000):
        (modules / f"f{number}").touch()
    with hostler.agent_session(FAKE, sandbox=sandbox.local(workspace), **options) as session:
        session.run("warm")
        start = time.monotonic()
        result = session.run(json.dumps([{"shell": "echo x > d7/f7; echo x > node_modules/m/f7; rm d8/f8"}]))
        took = time.monotonic() - start
        assert [(change.path, change.kind) for change in result.files] == [("d7/f7", "modified"), ("d8/f8", "deleted")]
        assert took < 10, took  # about one second alone on the machine


def state_of(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Of every file below: inode, time and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            info = path.stat()
            found[str(path.relative_to(folder))] = (
                info.st_ino,
                info.st_mtime_ns,
                hashlib.sha256(path.read_bytes()).hexdigest(),
            )
    return found


def test_a_workspace_inside_a_repository_leaves_the_rest_of_it_alone(options: dict[str, Any], tmp_path: Path) -> None:
    """Case E07: index, HEAD, branches, stashes and the work of others, over turns, resume and deletion."""
    repository = tmp_path / "repository"
    for folder in ("mine", "other"):
        (repository / folder).mkdir(parents=True)
        (repository / folder / "a.txt").write_text("one\n")
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for command in ("init -q", "add .", "commit -q -m one", "branch side", "stash list"):
        subprocess.run([*git, *command.split()], check=True, timeout=30, capture_output=True)
    (repository / "other" / "a.txt").write_text("uncommitted\n")
    (repository / "other" / "untracked").write_text("x")
    before = {k: v for k, v in state_of(repository).items() if not k.startswith("mine/")}
    harness = hostler.create_harness(
        host=hostler.local_host(tmp_path / "state"), runtime=FAKE, sandbox=sandbox.local(repository / "mine"), **options
    )
    session = harness.sessions.get_or_create("chat")
    result = session.run(json.dumps([{"shell": "echo two > a.txt; echo new > b.txt"}]))
    assert {change.path for change in result.files} == {"a.txt", "b.txt"}
    session.stop()
    assert harness.sessions.get("chat").run("again").files == ()
    harness.sessions.delete("chat")
    assert {k: v for k, v in state_of(repository).items() if not k.startswith("mine/")} == before
    assert (repository / "mine" / "b.txt").read_text() == "new\n"


def test_an_owned_workspace_is_the_agents_to_read_and_write(options: dict[str, Any]) -> None:
    """Case E10 in `local`: nobody else may enter it, and the agent, who is the same user, may."""
    with hostler.agent_session(FAKE, sandbox=sandbox.local, **options) as session:
        assert stat.S_IMODE(os.stat(session.workdir).st_mode) == 0o700
        result = session.run(json.dumps([{"shell": "id -u; pwd; touch made && test -r made -a -w . && echo may"}]))
        assert result.text.split() == [str(os.geteuid()), session.workdir, "may"]


def test_a_working_directory_that_is_no_more_is_named_before_a_model_is_asked(
    models: ModelServer, options: dict[str, Any], workspace: Path
) -> None:
    """Case E10: what the agent could not work in ends the turn with a clear error, and comes back with the folder."""
    with hostler.agent_session(FAKE, sandbox=sandbox.local(workspace), **options) as session:
        workspace.rename(workspace.with_name("away"))
        with pytest.raises(hostler.SandboxError, match="working directory"):
            session.run(json.dumps([{"model": "hi"}]))
        assert models.requests == []
        workspace.with_name("away").rename(workspace)
        assert session.run("hi").stop_reason == "done"


ODD = """
mkdir -p venv/bin real && touch venv/pyvenv.cfg venv/bin/python && echo 1 > real/a && ln real/a hard
mkfifo fifo; ln -s /etc/hostname absolute; ln -s real relative; ln -s nowhere dangling; ln -s loop loop
truncate -s 1G sparse; echo s > setuid; chmod 4755 setuid; echo z > zero; chmod 0 zero
mkdir -p /artifacts/d; mkfifo /artifacts/fifo; ln -s /etc/hostname /artifacts/link; echo r > /artifacts/d/r
ln /artifacts/d/r /artifacts/hard
"""


def test_what_is_no_plain_file_hurts_neither_turn_nor_resume(options: dict[str, Any], tmp_path: Path) -> None:
    """Case E14: links of every kind, FIFO, socket, sparse, set-uid and unreadable files, as package managers leave them."""
    harness = hostler.create_harness(host=hostler.local_host(tmp_path / "state"), runtime=FAKE, **options)
    session = harness.sessions.get_or_create("chat")
    session.run("CODEWORD-one")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(session.workdir)
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
    home = Path(session.workdir).with_name("home")
    result = session.run(json.dumps([{"shell": f"{ODD}\nmkfifo {shlex.quote(str(home))}/fifo"}]))
    assert result.stop_reason == "done"
    changed = {change.path for change in result.files}
    assert {"real/a", "hard", "absolute", "dangling", "loop", "sparse", "setuid", "zero", "fifo"} <= changed
    assert "venv/bin/python" not in changed
    assert [file.path for file in result.artifacts] == ["/artifacts/d/r", "/artifacts/hard"]
    kinds = {entry.path.rpartition("/")[2]: entry.kind for entry in session.files.list()}
    assert (kinds["fifo"], kinds["socket"], kinds["absolute"], kinds["sparse"]) == ("other", "other", "symlink", "file")
    session.stop()
    again = harness.sessions.get("chat")
    after = again.run(json.dumps([{"say": "memory"}]))
    assert "CODEWORD-one" in after.text
    assert again.resumed == "native"
    assert (after.files, after.artifacts, after.warnings) == ((), (), ())
    harness.sessions.delete("chat")
    assert not list((tmp_path / "state" / "sessions").iterdir())


def test_a_turn_and_a_resume_that_change_nothing_touch_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    """Case E16: neither in the workspace nor in what is saved of the program's history."""
    harness = hostler.create_harness(host=hostler.local_host(tmp_path / "state"), runtime=FAKE, **options)
    session = harness.sessions.get_or_create("chat")
    work = Path(session.workdir)
    for number in range(1000):
        (work / f"f{number}").write_text(str(number))
    session.run("CODEWORD-one")
    session.stop()
    before, history = state_of(work), state_of(work.with_name("home"))
    again = harness.sessions.get("chat")
    result = again.run(json.dumps([{"say": "memory"}]))
    assert "CODEWORD-one" in result.text
    assert not [change for change in result.files if isinstance(change, FileChange)]
    assert state_of(work) == before
    now = state_of(work.with_name("home"))
    assert {path: inode for path, (inode, _, _) in history.items()} == {path: now[path][0] for path in history}
    harness.sessions.delete("chat")
