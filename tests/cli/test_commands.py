"""The commands as a user runs them: processes of their own, pipes, a terminal, signals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hostler.cli import main
from hostler.testing.model_server import ModelServer

KEY = "planted-gateway-key-7f3a"
HOSTLER = [sys.executable, "-m", "hostler.cli"]
MODEL = ["--model", "litellm_proxy/claude-sonnet-4-5"]
pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def env(models: ModelServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("LITELLM_PROXY_API_BASE", models.url)
    monkeypatch.setenv("LITELLM_PROXY_API_KEY", KEY)
    return dict(os.environ)


def hostler(*args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*HOSTLER, *args], capture_output=True, text=True, timeout=60, check=False, **more)
    assert "Traceback" not in done.stderr, done.stderr
    assert KEY not in done.stdout + done.stderr
    return done


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "hostler", "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, "python -m hostler" in done.stdout) == (0, True)


def directive(*steps: dict[str, Any]) -> str:
    return "@@" + json.dumps(list(steps)) + "@@"


@pytest.mark.real
def test_a_session_goes_on_from_its_state_file(env: dict[str, str], tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    first = hostler("run", "claude-code", "Remember CODEWORD-hay.", *MODEL, "--state", str(state), env=env)
    assert (first.returncode, first.stdout) == (0, "ANSWER users=1 memo=CODEWORD-hay\n")
    assert "1 model call ·" in first.stderr
    second = hostler("run", "claude_code", "-", "--resume", str(state), "--json", input="What was it?", env=env)
    assert second.returncode == 0
    events = [json.loads(line) for line in second.stdout.splitlines()]
    assert events[-1]["type"] == "done"
    assert "CODEWORD-hay" in events[-1]["result"]["text"]
    other = hostler("run", "codex", "hi", "--resume", str(state), env=env)
    assert (other.returncode, other.stdout) == (2, "")
    assert "holds a session of claude_code" in other.stderr
    assert "CODEWORD-hay" in end(state, env)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["claud", "hi"], "Did you mean claude_code?"),
        (["claude_code", ""], "prompt is empty"),
        (["claude_code", "\udcff"], "not UTF-8 text"),
        (["claude_code", "hi"], "No model was given"),
        (["claude_code", "hi", "--permissions", "all", *MODEL], "permissions must be"),
        (["claude_code", "hi", "--timeout", "-1", *MODEL], "timeout must be a positive number"),
        (["claude_code", "hi", "--resume", "/nowhere/state.json"], "No such file"),
        (["claude_code", "hi", "--resume", os.devnull], "not a hostler state"),
        (["claude_code", "hi", "--workdir", "/nowhere", *MODEL], "not an existing directory"),
        (["claude_code", "hi", "--model", "litellm_proxy/x"], "LITELLM_PROXY_API_BASE"),
    ],
)
def test_what_the_user_can_mend_is_said_in_a_line(
    args: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hostler", "run", *args])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith("hostler: ")
    assert words in " ".join(said.split())


@pytest.mark.real
def test_a_failed_turn_has_exit_code_1(env: dict[str, str]) -> None:
    done = hostler("run", "claude_code", "@@" + '{"error": 401}' + "@@", *MODEL, env=env)
    assert done.returncode == 1
    assert "model_auth" in done.stderr


@pytest.mark.real
def test_a_reader_that_leaves_ends_the_turn_quietly(env: dict[str, str]) -> None:
    """And a terminal of another encoding: neither is an error of the user's."""
    script = directive({"text": "naïve → words " * 40, "chunks": 30, "chunk_delay": 0.2})
    run = subprocess.Popen(
        [*HOSTLER, "run", "claude_code", script, *MODEL, "--json"],
        env={**env, "PYTHONIOENCODING": "ascii"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline()
    run.stdout.close()
    assert run.wait(20) == 141
    assert run.stderr is not None
    assert run.stderr.read() == ""
    run.stderr.close()


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, args: list[str], env: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [*HOSTLER, *args], {**env, "TERM": "xterm", "COLUMNS": "40"})
        self.seen = ""

    def wait_for(self, words: str, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.seen:
            assert time.monotonic() < end, self.seen
            if not self._read():
                raise AssertionError(self.seen)

    def press(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def exit_code(self, seconds: float = 20.0) -> int:
        end = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < end, self.seen
        os.close(self._fd)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _read(self) -> bool:
        if select.select([self._fd], [], [], 0.1)[0]:
            try:
                piece = os.read(self._fd, 65536)
            except OSError:
                return False
            self.seen += piece.decode()
        return True


@pytest.fixture
def slow(tmp_path: Path) -> tuple[list[str], Path]:
    state = tmp_path / "state.json"
    prompt = "CODEWORD-hay " + directive({"shell": "echo begun; tail -f /dev/null"})
    return ["run", "claude_code", prompt, *MODEL, "--state", str(state)], state


LAST_TURN = """
import hostler, sys
with hostler.agent_resume(hostler.State.loads(open(sys.argv[1]).read())) as session:
    session.cancel()
    print(session.run("What was it?").text)
"""


def end(state: Path, env: dict[str, str]) -> str:
    """What the session remembers in a last turn, after which nothing is kept."""
    run = [sys.executable, "-c", LAST_TURN, str(state)]
    return subprocess.run(run, env=env, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.real
def test_ctrl_c_cancels_the_turn_and_the_session_goes_on(env: dict[str, str], slow: tuple[list[str], Path]) -> None:
    args, state = slow
    terminal = Terminal(args, env)
    terminal.wait_for("tail -f")
    terminal.press(b"\x03")
    assert terminal.exit_code() == 130
    assert "Cancelling the turn" in terminal.seen
    assert "cancelled ·" in terminal.seen
    assert "Traceback" not in terminal.seen
    assert "CODEWORD-hay" in end(state, env)


@pytest.mark.real
def test_a_second_ctrl_c_leaves_at_once_and_the_session_is_not_lost(
    env: dict[str, str], slow: tuple[list[str], Path]
) -> None:
    args, state = slow
    terminal = Terminal(args, env)
    terminal.wait_for("tail -f")
    os.kill(terminal.pid, signal.SIGINT)
    os.kill(terminal.pid, signal.SIGTERM)  # two of one kind could melt into one
    assert terminal.exit_code(5) in (130, 143)
    assert "Left." in terminal.seen
    assert "CODEWORD-hay" in end(state, env)


@pytest.mark.real
@pytest.mark.parametrize(("keys", "ran"), [(b"y\n", True), (b"n\n", False)], ids=["yes", "no"])
def test_questions_are_asked_in_the_terminal(env: dict[str, str], tmp_path: Path, keys: bytes, ran: bool) -> None:
    workdir = tmp_path / "workdir"
    workdir.mkdir()
    prompt = directive({"shell": "echo hi > made.txt"})
    args = ["run", "claude_code", prompt, *MODEL, "--permissions", "ask", "--workdir", str(workdir)]
    terminal = Terminal(args, env)
    terminal.wait_for("allow? [y/N]")
    terminal.press(keys)
    assert terminal.exit_code() == 0
    assert (workdir / "made.txt").exists() == ran


@pytest.mark.real
def test_where_nobody_can_be_asked_the_answer_is_no(env: dict[str, str], tmp_path: Path) -> None:
    workdir = tmp_path / "workdir"
    workdir.mkdir()
    args = ["run", "claude_code", directive({"shell": "echo hi > made.txt"}), *MODEL, "--permissions", "ask"]
    done = hostler(*args, "--workdir", str(workdir), env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    assert "Nobody is there to answer" in done.stderr
    assert not (workdir / "made.txt").exists()


@pytest.mark.real
def test_doctor(env: dict[str, str], tmp_path: Path) -> None:
    done = hostler("doctor", env=env)
    assert done.returncode == 0
    assert re.search(r"claude_code +[0-9.]+", done.stdout)
    assert re.search(r"codex +codex-cli", done.stdout)
    assert "fake-model" in done.stdout
    assert "made when first used" in done.stdout
    (tmp_path / "file").write_text("")
    broken = hostler(
        "doctor",
        env={
            **env,
            "LITELLM_PROXY_API_BASE": "http://127.0.0.1:1",
            "HOSTLER_STATE_DIR": str(tmp_path / "file" / "state"),
        },
    )
    assert "does not answer" in broken.stdout
    assert "cannot be made" in broken.stdout


@pytest.mark.real
@pytest.mark.parametrize("harness", ["claude_code", "codex"])
def test_demo(harness: str) -> None:
    done = hostler("demo", "--harness", harness)
    assert done.returncode == 0, done.stdout
    assert "resumed: attached" in done.stdout
    assert "remembered" in done.stdout
    assert "cost unknown" not in done.stdout


@pytest.mark.real
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_closed_standard_streams_are_no_reason_to_fail(env: dict[str, str], closed: str) -> None:
    line = f'exec "$0" -m hostler.cli run claude_code hi --model litellm_proxy/m {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert (done.stdout == b"") == (closed == ">&-")
    assert (done.stderr == b"") == (closed == "2>&-")


def test_help_does_not_load_the_engine() -> None:
    code = "import sys, hostler.cli; print(*[m for m in sys.modules if m.split('.')[0] in ('sqlalchemy', 'httpx', 'rich', 'pydantic', 'mcp')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True).stdout
    assert out.split() == []
    assert "Exit code" in hostler("run", "--help").stdout
