"""Who cannot reach a keeper: another user, another session's agent, and the session's own agent."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import hostler
from hostler.testing.model_server import ModelServer
from tests.sessions.programs import CLAUDE, FAKE_PROGRAM, KEY, Program, ids

FAKE = FAKE_PROGRAM.harness


@pytest.fixture(autouse=True)
def _in_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walls that stand where the sandbox has none; bubblewrap's own are tried in tests/sandboxes."""
    monkeypatch.setenv("HOSTLER_SANDBOX", "local")


NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


@pytest.fixture
def open_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state dir and sockets in a folder that everybody may enter: what keeps others out is hostler's own."""
    place = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    place.chmod(0o755)
    (place / "run").mkdir()
    monkeypatch.setenv("HOSTLER_STATE_DIR", str(place / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "run"))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    shutil.rmtree(place)


def address_of(place: Path, key: str) -> dict[str, Any]:
    database = sqlite3.connect(place / "state" / "store.db")
    try:
        ((program,),) = database.execute("select program from sessions where key = ?", (key,)).fetchall()
    finally:
        database.close()
    return dict(json.loads(program)["address"])


def as_somebody_else(attempts: dict[str, Callable[[], object]]) -> dict[str, str]:
    """What became of each attempt in a process of another user: the error's name, or "ok"."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child runs nothing of the other threads'
        pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = {}
            for name, attempt in attempts.items():
                try:
                    attempt()
                    said[name] = "ok"
                except OSError as error:
                    said[name] = type(error).__name__
            os.write(theirs, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return dict(json.loads(answer))


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(path)


def read_some(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


@needs_root
def test_another_user_reaches_nothing(models: ModelServer, open_place: Path) -> None:
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session:
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        address = address_of(open_place, session.key)
        program = next(p for p in psutil.Process(address["pid"]).children(recursive=True) if "--agent" in p.cmdline())
        (endpoint,) = open_place.glob("hostler-*/endpoint.sock")
        sessions = next(iter((open_place / "state" / "sessions").iterdir()))
        said = as_somebody_else(
            {
                "keeper's socket": lambda: connect(address["socket"]),
                "endpoint's socket": lambda: connect(str(endpoint)),
                "keeper's memory": lambda: read_some(f"/proc/{address['pid']}/mem"),
                "keeper's environment": lambda: read_some(f"/proc/{address['pid']}/environ"),
                "program's environment": lambda: read_some(f"/proc/{program.pid}/environ"),
                "signal": lambda: os.kill(address["pid"], 15),
                "store": lambda: read_some(str(open_place / "state" / "store.db")),
                "sessions": lambda: os.listdir(sessions),
                "spool": lambda: os.listdir(address["dir"]),
                "list of sockets": lambda: os.listdir(os.path.dirname(address["socket"])),
                "own files": lambda: read_some("/proc/self/status"),
            }
        )
        assert said.pop("own files") == "ok"  # the attempts do work where they may
        assert set(said.values()) == {"PermissionError"}, said
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text


@needs_root
def test_another_user_gets_no_model_without_the_token(models: ModelServer, open_place: Path) -> None:
    """The model address of a local program is a port, which all users of the machine can reach."""
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session:
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        address = address_of(open_place, session.key)
        command = next(
            line
            for p in psutil.Process(address["pid"]).children(recursive=True)
            if "--model-url" in (line := p.cmdline())
        )
        url = command[command.index("--model-url") + 1]
        before = len(models.requests)
        for headers in ({}, {"x-api-key": "guessed"}, {"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            body = {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
            answer = httpx.post(url + "/v1/messages", json=body, headers=headers, timeout=20)
            assert answer.status_code in (401, 403), answer.text
        assert len(models.requests) == before
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text


# As the agent runs it in its shell: looks for keepers, and tries to take each of them over.
ATTACK = r"""
import json, os, pathlib, socket, struct, sys
header = struct.Struct(">QcI")
mine = int(sys.argv[2])
said = {"sees": os.path.exists(f"/proc/{mine}/cmdline") and b"holder" in open(f"/proc/{mine}/cmdline", "rb").read()}
said["answers"] = []
for path in pathlib.Path(sys.argv[1]).rglob("*.sock"):
    for token in ("", "0" * 64, os.environ.get("FAKE_TOKEN", ""), os.environ.get("HOSTLER_RUN", "")):
        for more in ({"after": 0, "upstream": None}, {"command": "end", "grace": 0}, {"command": "probe"}):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(5)
                sock.connect(str(path))
                hello = {"protocol": 1, "token": token, "epoch": 1 << 40, "holder": "agent", **more}
                payload = json.dumps(hello).encode()
                sock.sendall(header.pack(0, b"A", len(payload)) + payload)
                answer = sock.recv(4096)
                kind, said_so = answer[8:9].decode(), json.loads(answer[header.size:] or b"null")
                said["answers"].append([kind, (said_so or {}).get("reason")])
try:
    os.kill(mine, 0)
    said["kills"] = True
except OSError:
    said["kills"] = False
said["secrets"] = sorted(name for name, value in os.environ.items() if sys.argv[3] in value)
print("SAID" + json.dumps(said))
"""


def attack(session: Any, program: Program, place: Path, pid: int) -> dict[str, Any]:
    script = place / "attack.py"
    script.write_text(ATTACK)
    command = f"{sys.executable} -I -S {script} {place / 'run'} {pid} {KEY[:12]}"
    result = session.run(program.shell(command, "try"))
    outputs = [e.output for e in result.events if isinstance(e, hostler.harness.ToolResult)]
    (said,) = [line for output in outputs for line in output.splitlines() if line.startswith("SAID")]
    return dict(json.loads(said[4:]))


@pytest.fixture(params=["", "guardian"], ids=["namespace", "guardian"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param:
        monkeypatch.setenv("HOSTLER_GUARD", request.param)
    return str(request.param)


@pytest.mark.parametrize("program", [FAKE_PROGRAM, pytest.param(CLAUDE, marks=pytest.mark.real)], ids=ids)
def test_no_agent_takes_a_keeper_over(program: Program, guard: str, models: ModelServer, open_place: Path) -> None:
    """Neither the session's own, nor another one's."""
    options = program.options(models)
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as other:
        other.run(FAKE_PROGRAM.say("CODEWORD-other"))
        theirs = address_of(open_place, other.key)
        with hostler.agent_session(program.harness, **options) as session:
            session.run(program.say("CODEWORD-one"))
            own = address_of(open_place, session.key)
            for address in (own, theirs):
                said = attack(session, program, open_place, address["pid"])
                assert len(said["answers"]) == 2 * 4 * 3
                assert {tuple(answer) for answer in said["answers"]} == {("R", "token")}
                assert said["secrets"] == []
                if own["guard"] == "pidns":
                    assert said["sees"] is False
                    assert said["kills"] is False
            assert "CODEWORD-one" in session.run(program.recall()).text
        assert "CODEWORD-other" in other.run(FAKE_PROGRAM.recall()).text


RUNS = """
import ctypes, hostler, sys
from hostler.testing.fake_runtime import FAKE
with hostler.agent_session(FAKE, model="claude-sonnet-4-5", api_base=sys.argv[1], api_key="planted-gateway-key-7f3a") as s:
    print(s.run('[{"shell": "true"}, {"model": "go"}]').stop_reason, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""

# Opens a host as another user, and has a process of the same user look at it.
LOOKED_AT = """
import ctypes, os, subprocess, sys
from hostler import portal
from hostler.host import Host
portal.run(portal.run(Host.open(sys.argv[1])).close())  # all modules are loaded: nobody could not read them
os.setgroups([]); os.setgid(65534); os.setuid(65534)
assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0  # as for an app that this user has started
os.environ["HOSTLER_NONDUMPABLE"] = sys.argv[3]
host = portal.run(Host.open(sys.argv[2]))
print(subprocess.run(["cat", f"/proc/{os.getpid()}/environ"], stdout=-3, stderr=-3).returncode)
portal.run(host.close())
"""


def test_an_app_that_is_closed_to_others_runs_programs_as_ever(models: ModelServer) -> None:
    for value, dumpable in (("1", "0"), ("", "1")):
        done = subprocess.run(
            [sys.executable, "-c", RUNS, models.url],
            env={**os.environ, "HOSTLER_NONDUMPABLE": value},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.split() == ["done", dumpable]


@needs_root
@pytest.mark.parametrize(("value", "readable"), [("1", False), ("", True)], ids=["set", "not set"])
def test_the_app_can_be_closed_to_its_own_user(value: str, readable: bool, open_place: Path) -> None:
    """HOSTLER_NONDUMPABLE=1: the agent of a `local` session does not read the app's keys out of its environment."""
    folder = open_place / "of-nobody"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    done = subprocess.run(
        [sys.executable, "-c", LOOKED_AT, str(open_place / "first"), str(folder), value],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout.strip() == "0") is readable
