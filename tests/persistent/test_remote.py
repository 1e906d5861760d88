"""fsspec_dir: object stores, tried with a real S3-speaking server, and memory://."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.persistent.support import Session
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler.harness import ToolResult
from hostler.persistent import remote
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(server: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options for a bucket of the test's own (``name`` is its name)."""
    name = f"b{abs(hash(request.node.name)) % 10**9}"
    urllib.request.urlopen(urllib.request.Request(f"{server}/{name}", method="PUT"), timeout=10).close()
    options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": server, "region_name": "us-east-1"}}
    return {"name": name, "options": options}


@pytest.fixture(params=["s3", "memory"])
def where(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.param == "s3":
        s3 = request.getfixturevalue("s3")
        return f"s3://{s3['name']}/notes", s3["options"]
    return f"memory://{abs(hash(request.node.name))}/notes", {}


def stored(where: tuple[str, dict[str, Any]]) -> dict[str, bytes]:
    fs, root = fsspec.core.url_to_fs(where[0], **where[1])
    fs.invalidate_cache()
    return {name[len(root) + 1 :]: fs.cat_file(name) for name in fs.find(root)}


def test_there_and_back(where: Any, tmp_path: Path) -> None:
    dir = hostler.fsspec_dir(where[0], storage_options=where[1])
    first, second = Session(tmp_path, dir, "first"), Session(tmp_path, dir, "second")
    assert dir.path == "/persistent/notes"
    for session in (first, second):
        session.refresh()
        assert session.files() == {}
    odd = {
        "a.md": b"1",
        "sub/b": b"\0\xff",
        "empty": b"",
        "A.md": b"2",
        "a b?#%'": b"3",
        "\u00e9": b"4",
        "e\u0301": b"5",
    }
    for name, content in odd.items():
        first.write(name, content)
    assert first.commit().status == "committed"
    assert stored(where) == odd
    second.refresh("t2")
    assert second.files() == odd
    (second.path / "sub/b").unlink()
    second.write("a.md", b"changed")
    assert second.commit("t2").status == "committed"
    first.refresh("t3")
    assert first.files() == second.files() == stored(where)
    assert first.commit("t3").status == "clean"


def test_conflicts(where: Any, tmp_path: Path) -> None:
    dir = hostler.fsspec_dir(where[0], storage_options=where[1])
    first, second = Session(tmp_path, dir, "first"), Session(tmp_path, dir, "second")
    first.refresh()
    first.write("a", b"base")
    first.write("b", b"base")
    first.commit()
    first.refresh("t2")
    second.refresh("t2")
    first.write("a", b"first")
    second.write("a", b"second")
    second.write("c", b"second")
    assert first.commit("t2").status == "committed"
    assert second.commit("t2").conflicts == ("a",)
    assert stored(where) == {"a": b"first", "b": b"base"}
    assert second.files() == {"a": b"second", "b": b"base", "c": b"second"}
    first.write("b", b"first")
    (second.path / "a").write_bytes(b"first")
    assert first.commit("t3").status == second.commit("t3").status == "committed"
    assert stored(where) == {"a": b"first", "b": b"first", "c": b"second"}


def test_s3_stores_only_what_nobody_else_has_stored(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when another process writes between the look and the put."""
    url = f"s3://{s3['name']}/notes"
    dir = hostler.fsspec_dir(url, storage_options=s3["options"])
    session = Session(tmp_path, dir)
    session.refresh()
    session.write("a", b"base")
    session.commit()
    fs, _ = fsspec.core.url_to_fs(url, **s3["options"])
    real = remote._info

    def meanwhile(fs_: Any, name: str) -> Any:
        info = real(fs_, name)
        fs.pipe_file(name, b"by another process")
        return info

    session.write("a", b"mine")
    session.write("new", b"mine")
    monkeypatch.setattr(remote, "_info", meanwhile)
    report = session.commit("t2")
    monkeypatch.setattr(remote, "_info", real)
    assert report.status == "conflict"
    assert stored((url, s3["options"]))["a"] == b"by another process"
    assert session.commit("t3").conflicts == ("a", "new")
    assert session.files() == {"a": b"mine", "new": b"mine"}


@pytest.mark.soak
def test_an_object_of_many_parts(s3: Any, tmp_path: Path) -> None:
    url = f"s3://{s3['name']}/notes"
    dir = hostler.fsspec_dir(url, storage_options=s3["options"])
    session, other = Session(tmp_path, dir), Session(tmp_path, dir, "other")
    session.refresh()
    with open(session.path / "big", "wb") as file:
        file.truncate(101 << 20)
    assert session.commit().status == "committed"
    other.refresh()
    assert (other.path / "big").stat().st_size == 101 << 20
    session.refresh("t2")
    assert session.commit("t2").status == "clean"


def test_many_files_at_once(s3: Any, tmp_path: Path) -> None:
    dir = hostler.fsspec_dir(f"s3://{s3['name']}/notes", storage_options=s3["options"])
    sessions = [Session(tmp_path, dir, f"s{n}") for n in range(2)]
    for session in sessions:
        session.refresh()
        for number in range(20):
            session.write(f"{session.key}/{number}", session.key.encode())
    with ThreadPoolExecutor(2) as pool:
        assert [r.status for r in pool.map(Session.commit, sessions)] == ["committed", "committed"]
    for session in sessions:
        session.refresh("t2")
        assert len(session.files()) == 40


def test_keys_are_not_stored(s3: Any, models: ModelServer, nothing_left: None, state_dir: Path) -> None:
    options = {**s3["options"], "secret": "planted-s3-secret-9a1f"}
    dir = hostler.fsspec_dir(f"s3://{s3['name']}/notes", storage_options=options)
    with hostler.agent_session(FAKE, persistent_dirs=[dir], **FAKE_PROGRAM.options(models)) as session:
        session.run('[{"shell": "echo kept > /persistent/notes/a"}]')
        state = session.stop()
    with pytest.raises(hostler.OptionsMismatch, match="persistent dir /persistent/notes"):
        hostler.agent_resume(state, **FAKE_PROGRAM.options(models))
    with hostler.agent_session(FAKE, persistent_dirs=[dir], **FAKE_PROGRAM.options(models)) as session:
        result = session.run('[{"shell": "cat /persistent/notes/a"}]')
        assert [e.output for e in result.events if isinstance(e, ToolResult)] == ["kept\n"]
    for file in state_dir.rglob("*"):
        if file.is_file():
            assert b"planted-s3-secret" not in file.read_bytes(), file


def test_urls_with_passwords_are_not_stored() -> None:
    assert hostler.fsspec_dir("memory://x/notes").spec == {"kind": "fsspec", "url": "memory://x/notes"}
    assert hostler.fsspec_dir("ftp://user:word@host/notes").spec is None


def test_without_fsspec_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(hostler.CapabilityUnsupported, match=r"hostler\[fsspec\]"):
        hostler.fsspec_dir("memory://notes")
