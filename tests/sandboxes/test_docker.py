"""What sandbox.docker is without an engine: its names, its folders, what is stored of it."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostler import OptionsMismatch, SandboxError, sandbox
from hostler.sandboxes import choice
from hostler.sandboxes.docker import box, daemon, look, programs
from hostler.sandboxes.docker.bridge.engine import ERR, OUT, Engine, EngineError, Stream
from hostler.types.sandbox import Folders
from hostler.workspace import SessionDirs


@pytest.fixture(autouse=True)
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A socket at which nobody answers."""
    for name in daemon.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    path = f"{tmp_path}/e.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        yield path


def test_nothing_is_asked_of_the_engine_before_it_is_needed(state_dir: Path) -> None:
    one, two = (sandbox.docker("image", name=name) for name in "ab")
    assert one.workdir == "/workspace"
    assert one.root.startswith(f"{state_dir}/containers/a-")
    assert one.root != two.root
    assert sandbox.docker("image", name="a").root == one.root
    assert sandbox.docker("image").name != sandbox.docker("image").name
    assert os.stat(one.root).st_mode & 0o077 == 0
    with pytest.raises(SandboxError, match="nobody listens"):
        one.prepare("full")
    one.close()


def test_the_engine_is_the_one_that_is_named(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert daemon.address() == engine
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("CONTAINER_HOST", "unix:///of/podman.sock")
    assert daemon.address() == "/of/podman.sock"
    monkeypatch.delenv("CONTAINER_HOST")
    monkeypatch.setattr(daemon, "_usual", lambda: [f"{tmp_path}/none", engine])
    assert daemon.address() == engine
    monkeypatch.setattr(daemon, "_usual", lambda: [f"{tmp_path}/none"])
    with pytest.raises(SandboxError, match=f"no socket at {tmp_path}/none.*set DOCKER_HOST"):
        daemon.address()
    monkeypatch.setenv("DOCKER_HOST", "ssh://far")
    with pytest.raises(SandboxError, match="must be one of this machine"):
        daemon.address()


def test_what_is_stored_makes_the_same_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    first = sandbox.docker(
        "image",
        name="a",
        workdir="/src",
        network="on",
        user=1000,
        limits=sandbox.Limits(processes=5),
        labels={"x": "y"},
        mounts={"/data": (tmp_path / "data", "ro")},
        runtime="runsc",
        life=60,
    )
    again = choice.again(first.recipe, first.root, "k")
    assert isinstance(again, sandbox.Docker)
    assert again.settings == first.settings
    assert again.recipe == first.recipe
    assert again.place == first.place
    with pytest.raises(OptionsMismatch, match="SECRET"):
        choice.again(sandbox.docker("image", name="a", env={"SECRET": "1"}).recipe, first.root, "k")
    assert "'1'" not in repr(sandbox.docker("image", name="a", env={"SECRET": "1"}).recipe)


def test_the_folders_of_a_session_as_its_program_sees_them(tmp_path: Path) -> None:
    dirs = SessionDirs.of(tmp_path / "data", "k")
    dirs.make()
    own = sandbox.docker("image", mounts=dirs.workspace().mounts)
    assert own.inside(dirs.folders(own.root)) == Folders(
        "/session", "/artifacts", "/persistent", "/skills", "/home/agent", "/tmp", "/run/hostler/launch"
    )
    assert own.name == box.own_name(dirs.session) != box.own_name(dirs.home)
    shared = sandbox.docker("image", name="a")
    with pytest.raises(SandboxError, match="cannot show it"):
        shared.inside(dirs.folders(shared.root))
    moved = dirs.move(shared.place.folders)
    inside = shared.inside(moved.folders(shared.root))
    assert inside.workdir == "/workspace"
    token = os.path.basename(os.path.dirname(moved.home))
    assert inside.home == f"/run/hostler/own/{token}/home"
    assert inside.launch == f"/run/hostler/given/{token}/launch"
    assert inside.artifacts == f"/run/hostler/kept/{token}/artifacts"


def test_the_environment_is_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("PATH", "/of/this/machine")
    found = sandbox.docker("image", name="a", env={"HTTPS_PROXY": "http://p"}).environment(home="/h", tmp="/t")
    assert found["TZ"] == "UTC"
    assert not {"PATH", "LC_ALL"} & set(found)
    assert (found["HOME"], found["TMPDIR"]) == ("/h", "/t")
    assert "127.0.0.1" in found["NO_PROXY"]


def test_what_an_image_lacks() -> None:
    assert "RUN npm install -g @openai/codex" in str(programs.missing("codex", "i", "c"))
    assert "COPY my-agent /usr/local/bin/my-agent" in str(programs.missing("my-agent", "i", "c"))


def test_streams_of_an_engine() -> None:
    """Output comes in frames, however it is cut."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sent = b"".join(
            struct.pack(">BxxxI", kind, len(data)) + data for kind, data in ((OUT, b"one"), (ERR, b"2"), (OUT, b""))
        )
        stream = Stream(ours, sent[:5])
        assert stream.parsed() == []
        found = []
        for at in range(5, len(sent)):
            theirs.send(sent[at : at + 1])
            found += stream.read() or []
        assert found == [(OUT, b"one"), (ERR, b"2"), (OUT, b"")]
        assert stream.read() == []
        theirs.close()
        assert stream.read() is None


def test_a_look_from_an_app_with_very_many_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than select() can bear."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, limits[1]))
    ours, theirs = socket.socketpair()
    high = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 1500)
    ours.close()
    monkeypatch.setattr(Engine, "start", lambda *_: ("id", Stream(socket.socket(fileno=high), b"")))
    monkeypatch.setattr(Engine, "call", lambda *_: {"ExitCode": 3})
    try:
        with theirs:
            theirs.send(struct.pack(">BxxxI", OUT, 4) + b"said")
            theirs.shutdown(socket.SHUT_WR)
            assert look._run(Engine(""), "container", ["true"], "") == (3, "said")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_an_engine_that_is_not_there(engine: str) -> None:
    with pytest.raises(EngineError, match="does not answer") as caught:
        Engine(engine).call("GET", "/_ping")
    assert caught.value.status == 0
