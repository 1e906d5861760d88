"""Artifacts: the results of each turn, kept as they were."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.programs import ALL, FAKE_PROGRAM, REAL, Program, ids

import hostler
from hostler.testing.model_server import ModelServer
from hostler.types.events import Notice
from hostler.workspace import SessionDirs
from hostler.workspace.artifacts import Vault
from hostler.workspace.roots import Roots

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness


@pytest.fixture
def session(models: ModelServer) -> Iterator[hostler.Session]:
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session:
        yield session


def shell(command: str) -> str:
    return json.dumps([{"shell": command}])


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_what_the_agent_leaves_under_artifacts_is_a_result(program: Program, models: ModelServer) -> None:
    with hostler.agent_session(program.harness, **program.options(models)) as session:
        result = session.run(program.shell("printf one > $HOSTLER_ARTIFACTS/r.md && mkdir -p /artifacts/d"))
        (ref,) = result.artifacts
        assert (ref.path, ref.bytes, ref.media_type) == ("/artifacts/r.md", 3, "text/markdown")
        assert ref.sha256 == hashlib.sha256(b"one").hexdigest()
        assert session.artifacts.list() == (ref,)
        assert session.artifacts.read("/artifacts/r.md") == b"one"
        assert session.run(program.say("nothing")).artifacts == ()


def test_each_version_stays(session: hostler.Session) -> None:
    turns = [session.run(shell(f"printf {n} > /artifacts/r; printf same > /artifacts/same")) for n in range(3)]
    versions = session.artifacts.versions("/artifacts/r")
    assert [v.sha256 for v in versions] == [r.artifacts[0].sha256 for r in turns]
    session.run(shell("rm -rf /artifacts/*"))
    assert [session.artifacts.read(v.sha256) for v in versions] == [b"0", b"1", b"2"]
    assert session.artifacts.read("/artifacts/r") == b"2"
    assert b"".join(session.artifacts.open("/artifacts/r")) == b"2"
    assert len(session.artifacts.versions("/artifacts/same")) == 1
    assert [f.path for f in session.artifacts.list(turn=turns[1].turn_id)] == ["/artifacts/r"]
    assert session.run(shell("printf 2 > /artifacts/r")).artifacts == ()  # as it was when it was last kept
    assert [f.path for f in session.run(shell("printf 0 > /artifacts/r")).artifacts] == ["/artifacts/r"]

    async def twins() -> None:
        assert len(await session.artifacts.alist()) == 2
        assert [p async for p in session.artifacts.aopen(versions[0].sha256)] == [b"0"]

    asyncio.run(twins())
    for unknown in ("/artifacts/none", "0" * 64, "/session/r"):
        with pytest.raises(FileNotFoundError, match="no artifact"):
            session.artifacts.read(unknown)
    with pytest.raises(hostler.PathError):
        session.artifacts.read("../../x")


def test_a_marked_file_is_a_result_wherever_it_is(session: hostler.Session) -> None:
    ref = session.files.write("draft.txt", b"v1", artifact=True, media_type="text/x-draft")
    assert ref.artifact
    first = session.run("look").artifacts
    assert first == (ref,)
    (second,) = session.run(shell("printf v2 > draft.txt; printf no > other.txt")).artifacts
    assert (second.path, second.media_type) == ("/session/draft.txt", "text/x-draft")
    session.files.write("draft.txt", b"v3")  # not marked any more
    assert session.run("look").artifacts == ()
    assert [session.artifacts.read(v.sha256) for v in session.artifacts.versions("draft.txt")] == [b"v1", b"v2"]


def test_a_file_that_another_process_marks_in_mid_turn_is_a_result(session: hostler.Session, state_dir: Path) -> None:
    ref = session.files.write("draft", b"v1")
    stream = session.stream(shell("while [ ! -e go ]; do sleep 0.02; done"))
    with closing(sqlite3.connect(state_dir / "store.db", timeout=20)) as other, other:
        other.execute("update sessions set marked = ?", (json.dumps({ref.path: "text/x-draft"}),))
    session.files.write("go", b"")
    (kept,) = stream.wait().artifacts
    assert (kept.path, kept.media_type, kept.sha256) == (ref.path, "text/x-draft", ref.sha256)
    assert session.run(shell("true")).artifacts == ()


def test_links_and_special_files_are_no_results(session: hostler.Session, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    result = session.run(
        shell(
            f"cd $HOSTLER_ARTIFACTS; ln -s {tmp_path}/secret link; ln -s {tmp_path} folder; mkfifo pipe; printf x > 'a\nb'"
        )
    )
    assert [f.path for f in result.artifacts] == ["/artifacts/a\nb"]
    session.files.write("marked", b"1", artifact=True)
    work = Path(session.workdir)
    (work / "marked").unlink()
    (work / "marked").symlink_to(tmp_path / "secret")
    assert session.run("look").artifacts == ()


def test_artifacts_outlive_the_session_object_and_go_with_the_session(models: ModelServer, tmp_path: Path) -> None:
    host = hostler.local_host(data_dir=tmp_path / "host")
    harness = hostler.create_harness(host=host, runtime=FAKE, **FAKE_PROGRAM.options(models))
    hostler.generate_harness(harness=harness, prompt=shell("printf 1 > /artifacts/r"), session="k")
    other = harness.sessions.get_or_create("other")
    session = harness.sessions.get("k")
    (ref,) = session.artifacts.list()
    with pytest.raises(FileNotFoundError):
        other.artifacts.read(ref.sha256)
    session.close()
    assert session.artifacts.read(ref.sha256) == b"1"
    for key in ("k", "other"):
        harness.sessions.delete(key)
    again = harness.sessions.get_or_create("k")
    assert again.artifacts.list() == ()
    harness.sessions.delete("k")


def test_a_kept_content_that_was_changed_is_kept_anew(session: hostler.Session, state_dir: Path) -> None:
    (ref,) = session.run(shell("printf 1 > /artifacts/r")).artifacts
    (blob,) = state_dir.glob(f"sessions/*/private/artifacts/{ref.sha256}")
    assert blob.stat().st_mode & 0o777 == 0o400
    blob.unlink()
    session.run("look")
    assert session.artifacts.read(ref.sha256) == b"1"


def test_too_much_is_said_and_the_rest_is_kept(
    models: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOSTLER_ARTIFACT_LIMIT", "1000")
    options: dict[str, Any] = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE, state_dir=str(tmp_path / "own"), **options) as session:
        result = session.run(shell("cd $HOSTLER_ARTIFACTS; truncate -s 1T a; printf b > b; head -c 900 /dev/zero > c"))
        assert [f.path for f in result.artifacts] == ["/artifacts/b", "/artifacts/c"]
        (notice,) = [e for e in result.events if isinstance(e, Notice)]
        assert notice.code == "artifact_not_kept"
        assert "/artifacts/a" in notice.message
        assert result.warnings == (notice.message,)
        assert [f.path for f in session.run(shell("rm /artifacts/a")).artifacts] == []


def test_a_full_disk_costs_the_artifact_and_not_the_turn(
    session: hostler.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hostler.workspace.blobs.Blobs.put", full)
    result = session.run(shell("printf 1 > /artifacts/r"))
    assert (result.stop_reason, result.artifacts) == ("done", ())
    assert "No space left" in result.warnings[0]
    monkeypatch.undo()
    assert [f.path for f in session.run("look").artifacts] == ["/artifacts/r"]


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = SessionDirs.of(tmp_path, "k")
    dirs.make()
    vault = Vault(Roots(dirs.workspace().mounts), os.path.join(dirs.private, "artifacts"))
    for n in range(50):
        Path(dirs.artifacts, f"{n:02}").write_bytes(b"%d" % n)
    first = vault.collect({}, 1 << 20)
    assert len(first.files) == 50
    read: list[str] = []
    put = vault._kept
    monkeypatch.setattr(vault, "_kept", lambda root, name, room: read.append(name) or put(root, name, room))
    Path(dirs.artifacts, "07").write_bytes(b"x")  # as long as it was, right behind the look
    second = vault.collect({}, 1 << 20)
    assert read == ["07"]
    assert [a.path for a, b in zip(first.files, second.files, strict=True) if a != b] == ["/artifacts/07"]
    Path(dirs.private, "artifacts", "index.json").write_text('{"/artifacts/08": 7}')
    assert vault.collect({}, 1 << 20).files == second.files


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_an_agent_that_may_edit_may_leave_results(program: Program, models: ModelServer, tmp_path: Path) -> None:
    """And nothing beside them."""
    outside = tmp_path / "outside.md"
    if program.harness is hostler.Harness.CLAUDE_CODE:  # it gets no shell that it cannot confine
        paths = ("/artifacts/r.md", str(outside))
        steps: list[dict[str, Any]] = [{"tool": "Write", "args": {"file_path": p, "content": "x"}} for p in paths]
    else:
        steps = [{"shell": f"echo x > /artifacts/r.md; echo x > {outside}"}]
    with hostler.agent_session(program.harness, permissions="edit", **program.options(models)) as session:
        result = session.run(f"@@{json.dumps(steps)}@@")
        assert [f.path for f in result.artifacts] == ["/artifacts/r.md"]
    assert not outside.exists()
