from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hostler import sandbox
from hostler.types.errors import SandboxError
from hostler.types.sandbox import Job, Sandbox
from hostler.workspace import SessionDirs

CANARIES = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DB_PASSWORD"]
CANARIES += ["LITELLM_PROXY_API_KEY", "HTTPS_PROXY", "SSH_AUTH_SOCK", "LD_PRELOAD", "PYTHONPATH", "HOSTLER_STATE_DIR"]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name in CANARIES:
        monkeypatch.setenv(name, "canary")
    for name, value in {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "LC_TIME": "C",
        "TZ": "UTC",
        "HOME": "/root",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/ca.pem")
    return monkeypatch


def test_the_environment_is_exactly_this(host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    box: Sandbox = sandbox.local(tmp_path)
    env = box.environment(home="/private/home", tmp="/private/tmp")
    assert env == {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "LC_TIME": "C",
        "TZ": "UTC",
        "USER": "me",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "TERM": "dumb",
        "HOME": "/private/home",
        "TMPDIR": "/private/tmp",
    }
    folders = SessionDirs.of(tmp_path, "k").folders(box.root)
    command = (sys.executable, "-c", "import os; print(dict(os.environ))")
    inside = box.enclose(Job(command, folders))
    assert (inside.wrap, inside.folders, inside.model_port) == ((), folders, 0)
    out = subprocess.run(
        inside.program, env=dict(env), cwd=inside.cwd, capture_output=True, text=True, timeout=30
    ).stdout
    assert "canary" not in out


def test_what_the_caller_gives_comes_in(host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    box = sandbox.local(
        tmp_path, env={"DATABASE": "x", "LANG": "de", "PATH": "/opt/bin"}, inherit=["GITHUB_TOKEN", "NONE"]
    )
    env = box.environment(home="/h", tmp="/t")
    assert (env["DATABASE"], env["LANG"], env["PATH"], env["GITHUB_TOKEN"]) == ("x", "de", "/opt/bin", "canary")
    assert "NONE" not in env
    assert "OPENAI_API_KEY" not in env


def test_a_proxy_is_not_asked_for_the_model(host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    env = sandbox.local(tmp_path, env={"no_proxy": "corp"}, inherit=["HTTPS_PROXY"]).environment(home="/h", tmp="/t")
    assert env["HTTPS_PROXY"] == "canary"
    assert env["NO_PROXY"] == env["no_proxy"] == "corp,127.0.0.1,localhost"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"env": {"HOME": "/x"}}, ValueError),
        ({"env": {"TMPDIR": "/x"}}, ValueError),
        ({"env": {"A=B": "x"}}, ValueError),
        ({"env": {"": "x"}}, ValueError),
        ({"env": {"A": "x\0"}}, ValueError),
        ({"env": {"A": 1}}, TypeError),
        ({"inherit": "PATH"}, TypeError),
    ],
)
def test_mistakes_are_said_at_once(tmp_path: Path, arguments: dict[str, Any], error: type[Exception]) -> None:
    for place in (tmp_path, None):
        with pytest.raises(error):
            sandbox.local(place, **arguments)


def test_relative_entries_of_path_are_dropped(host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = tmp_path / "evil"
    bad.write_text("#!/bin/sh\n")
    bad.chmod(0o755)
    host.chdir(tmp_path)
    host.setenv("PATH", f".::{os.path.relpath(tmp_path)}:/usr/bin:/bin")
    box = sandbox.local(tmp_path)
    assert box.environment(home="/h", tmp="/t")["PATH"] == "/usr/bin:/bin"
    assert box.which("evil") is None
    assert box.which("./evil") is None
    assert box.which(str(bad)) == str(bad)
    assert box.which("sh") in ("/usr/bin/sh", "/bin/sh")
    host.setenv("PATH", "")
    assert box.environment(home="/h", tmp="/t")["PATH"] == "/usr/local/bin:/usr/bin:/bin"


def test_which_looks_where_the_agent_looks(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert sandbox.local(tmp_path, env={"PATH": str(tool.parent)}).which("tool") == str(tool)
    assert sandbox.local(tmp_path).which("no-such-program-anywhere") is None


def test_the_directory_is_real_and_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "sentinel").write_text("mine")
    os.symlink("ws", tmp_path / "alias")
    monkeypatch.chdir(tmp_path)
    boxes = [sandbox.local(place) for place in (tmp_path / "ws", "ws", "./alias/", str(tmp_path / "alias"))]
    assert {box.workdir for box in boxes} == {str(tmp_path / "ws")}
    assert not boxes[0].confined
    for box in boxes:
        box.close()
        box.close()
    assert (tmp_path / "ws" / "sentinel").read_text() == "mine"
    for place in ("none", "ws/sentinel"):
        with pytest.raises(SandboxError, match="not an existing directory"):
            sandbox.local(place)


def test_it_is_a_factory_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLER_SANDBOX", "local")
    dirs = SessionDirs.of(tmp_path, "k")
    dirs.make()
    for factory in (sandbox.local, sandbox.auto, sandbox.local(env={"A": "1"})):
        box = factory(dirs.workspace())
        assert isinstance(box, sandbox.Local)
        assert box.workdir == dirs.session
    assert box.environment(home="/h", tmp="/t")["A"] == "1"
