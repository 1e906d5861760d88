"""The commands that look into sessions from outside, and the ones that talk in them and remove them."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import wait_until
from tests.sessions.programs import FAKE_PROGRAM, KEY

import hostler
from hostler.cli import app
from hostler.testing.model_server import ModelServer

FAKE = FAKE_PROGRAM.harness
HOSTLER = [sys.executable, "-m", "hostler.cli"]
EVIL = "\x1b[31mred\u202e"
pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def harness(models: ModelServer, state_dir: Path) -> Any:
    host = hostler.local_host(data_dir=state_dir)
    return hostler.create_harness(host=host, runtime=FAKE, **FAKE_PROGRAM.options(models))


@pytest.fixture
def key(harness: Any) -> Iterator[str]:
    """A session with a staged file, a good turn, an artifact, a sub-agent and a failed turn."""
    key = "chat/1 é"
    session = harness.sessions.get_or_create(key)
    session.files.write("data/a.csv", b"1,2\n", source="crm")
    session.files.write("tracked", b"old\n")
    steps = [
        {"reasoning": "hm"},
        {"text": f"two\nlines {EVIL}"},
        {"shell": "seq 50; echo new > tracked; printf '\\0\\1' > /artifacts/r.bin; printf x > 'a b'"},
        {"subagent": [{"text": "below"}], "id": "s1"},
        {"text": "the end"},
    ]
    hostler.generate_harness(
        harness=harness, session=key, prompt="Please\n" + json.dumps(steps), extra_body={"user": 7, "token": "t0k"}
    )
    failing = json.dumps([{"error": "model_auth", "message": "no"}])
    hostler.generate_harness(harness=harness, session=key, prompt=failing)
    session.stop()
    yield key
    with contextlib.suppress(hostler.SessionLost):
        harness.sessions.delete(key)


def run(*args: str, code: int = 0) -> str:
    """What a command prints (with what it says on standard error when it is to fail)."""
    return run_bytes(*args, code=code).decode()


def run_bytes(*args: str, code: int = 0) -> bytes:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
        app(list(args))
    for stream in (out, err):
        stream.flush()
    printed, said = out.buffer.getvalue(), err.buffer.getvalue()  # type: ignore[attr-defined]
    assert left.value.code == code, (printed, said)
    return bytes(printed if code == 0 else printed + said)


def run_apart(*args: str, text: str | None = None) -> str:
    """A command in a process of its own."""
    done = subprocess.run([*HOSTLER, *args], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_trace_for_people(key: str) -> None:
    out = run("trace", key)
    lines = out.split("\n")
    assert lines[0] == f"{key} · fake · claude-sonnet-4-5 · 2 turns · cost $0.0000"
    assert "~ tracked  +1 -1" in out
    assert [line.split()[2] for line in lines if line.startswith("── turn")] == ["1", "2"]
    shown = [line[16:].split(maxsplit=1) for line in lines if line[:6].strip().isdigit()]
    whos = [words[0] for words in shown]
    for who in ("staged", "you", "start", "thinks", "says", "calls", "gives", "file", "done"):
        assert who in whos
    assert '{"user": 7, "token": "[masked]"}' in out
    assert "t0k" not in out
    assert f"\n{'':25}lines ·[31mred·" in out  # hangs below its first line, and drives no terminal
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "… (38 more lines)" in out
    assert "│ below" in out
    assert "result   /artifacts/r.bin, 2 bytes" in out
    assert "model_auth: no" in out
    assert run("trace", key[:6]) == out  # its beginning is enough


def test_a_trace_for_programs(key: str) -> None:
    records = [json.loads(line) for line in run("trace", key, "--format", "json").splitlines()]
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    assert records[0]["event"]["type"] == "file_staged"
    assert [r["event"]["type"] for r in records].count("done") == 2
    assert {r["session"] for r in records} == {key}
    some = run("trace", key, "--format", "json", "--after", str(len(records) - 2)).splitlines()
    assert [json.loads(line) for line in some] == records[-2:]
    assert "there is none after 999" in run("trace", key, "--after", "999", code=2)


def test_a_trace_that_follows(key: str, harness: Any) -> None:
    follow = subprocess.Popen(
        [*HOSTLER, "trace", key, "--follow", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follow.stdout is not None
    assert follow.stderr is not None
    try:
        before = 0
        while before < 2:
            before += '"type": "done"' in follow.stdout.readline()
        hostler.generate_harness(harness=harness, session=key, prompt="once more")
        types = []
        while not types or types[-1] != "done":
            types.append(json.loads(follow.stdout.readline())["event"]["type"])
        assert types[:2] == ["accepted", "started"]
        follow.send_signal(signal.SIGINT)
        assert follow.wait(10) == 130
        assert follow.stderr.read() == ""
    finally:
        follow.kill()
        follow.wait(10)
        follow.stdout.close()
        follow.stderr.close()


def test_sessions_and_one_of_them(key: str) -> None:
    listed = run("sessions").split("\n")
    (line,) = [line for line in listed if key in line]
    assert line.split()[2:5] == ["fake", "idle", "2"]
    shown = run("show", key)
    assert "permissions  full" in shown
    assert "1  done        Please" in shown or "1  done" in shown
    assert "model_auth: no" in shown
    assert KEY not in shown


def test_files_and_artifacts_and_their_bytes(key: str, harness: Any) -> None:
    files = run("files", key)
    for path in ("/session/data/", "/session/tracked", "/session/a b", "/artifacts/r.bin"):
        assert path in files
    assert "/session/data/a.csv" in run("files", key, "data")
    assert run("cat", key, "data/a.csv") == "1,2\n"
    (sha256,) = [f.sha256 for f in harness.sessions.get(key).artifacts.list()]
    assert sha256[:12] in run("artifacts", key)
    for name in ("/artifacts/r.bin", sha256, sha256[:8]):
        assert run_bytes("cat", key, name) == b"\0\1"
    (Path(harness.sessions.get(key).workdir).parent / "artifacts" / "r.bin").unlink()
    assert run_bytes("cat", key, "/artifacts/r.bin") == b"\0\1"
    for path, words in (
        ("/etc/passwd", "outside"),
        ("../x", "may leave"),
        ("none", "No such file"),
        ("f" * 64, "No such"),
    ):
        assert words in run("cat", key, path, code=2)


def test_a_diff_that_git_takes(key: str, harness: Any, tmp_path: Path) -> None:
    hostler.generate_harness(
        harness=harness,
        session=key,
        prompt=json.dumps([{"shell": "echo newer > tracked; echo x > 'b c'; printf '\\0' > bin"}]),
    )
    diff = run("diff", key)
    assert "# created: bin" in diff
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "tracked").write_text("new\n")
    subprocess.run(["git", "init", "-q"], check=True, cwd=tree, timeout=30)
    subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=tree, timeout=30)
    # Whether the old content was known in so short a time is left to chance; when not, it is said.
    assert (tree / "tracked").read_text() == "newer\n" or "# modified: tracked" in diff
    assert (tree / "b c").read_text() == "x\n"


READING = [["sessions"], ["show"], ["trace"], ["files"], ["artifacts"], ["cat", "tracked"], ["diff"], ["doctor"]]


def test_what_only_reads_changes_nothing(key: str, state_dir: Path) -> None:
    def everything() -> tuple[list[Any], set[Path]]:
        database = sqlite3.connect(state_dir / "store.db")
        try:
            rows = [row for row in database.iterdump() if 'INTO "hosts"' not in row]  # our own host's heartbeat
            return rows, {p for p in state_dir.rglob("*") if "store.db-" not in p.name}
        finally:
            database.close()

    before = everything()
    for command, *more in READING:
        run(command, *([key] if command != "sessions" else []), *more)
    assert everything() == before


@pytest.mark.parametrize("command", [c for c in READING if c != ["sessions"]], ids=lambda c: c[0])
def test_what_is_not_there_is_said(command: list[str], key: str, tmp_path: Path) -> None:
    name, *more = command
    assert "no session '·[31mred·'" in run(name, EVIL, *more, code=2)
    assert "There are no sessions in" in run(name, key, *more, "--data-dir", str(tmp_path / "none"), code=2)
    assert not (tmp_path / "none").exists()


def test_a_session_that_is_unsound(key: str, state_dir: Path) -> None:
    assert "artifacts: 1 versions, all as they were" in run("doctor", key)
    database = sqlite3.connect(state_dir / "store.db")
    with database:
        database.execute("delete from records where seq = 3")
    database.close()
    (blob,) = [p for p in state_dir.glob("sessions/*/private/artifacts/*") if len(p.name) == 64]
    blob.chmod(0o600)
    blob.write_bytes(b"other")
    said = run("doctor", key, code=1)
    assert "bad journal:" in " ".join(said.split())
    assert "a version of /artifacts/r.bin is gone or was changed" in said


def test_rm_asks_and_removes(key: str, state_dir: Path) -> None:
    assert "say --yes" in run("rm", key, code=2)
    assert len(list((state_dir / "sessions").iterdir())) == 1
    assert "removed" in run("rm", key, "--yes")
    assert list((state_dir / "sessions").iterdir()) == []
    assert "no sessions in" in run("sessions")


def test_rm_of_a_session_whose_turn_runs_in_an_app(harness: Any, state_dir: Path) -> None:
    stream = hostler.stream_harness(harness=harness, session="busy", prompt='[{"text": "a"}, {"sleep": 30}]')
    next(stream)
    began = time.monotonic()
    assert "removed" in run_apart("rm", "busy", "--yes")
    assert stream.wait().stop_reason == "cancelled"
    assert time.monotonic() - began < 20
    assert wait_until(lambda: list((state_dir / "sessions").iterdir()) == [], 5)


def test_a_chat_goes_on_under_its_key(models: ModelServer, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    first = run_apart("chat", key, text='hello there\n\n[{"say": "memory"}]\n/quit\nnever\n')
    assert "You said: hello there" in first
    assert "Please" in first  # the memory of what was said before the chat
    assert "never" not in first
    assert "name its program" in run("chat", "new-key", code=2)
    assert '"text": "never' not in run("trace", key)
