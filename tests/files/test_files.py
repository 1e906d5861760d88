"""The app's side of a session's files: what goes in and comes out, and what is kept out."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler import sandbox
from hostler.harness import PathError
from hostler.testing.model_server import ModelServer
from hostler.types.events import FileStaged, Record, ToolResult
from hostler.types.result import FileEntry

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness


@pytest.fixture
def session(models: ModelServer) -> Iterator[hostler.Session]:
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session:
        yield session


def records(session: hostler.Session) -> list[Record]:
    """The whole journal so far; its numbers are gapless."""
    seq = asyncio.run(_last(session))
    follow = session.follow(after=0)
    found: list[Record] = []
    while len(found) < seq:
        found.append(next(follow))
    follow.close()
    assert [r.seq for r in found] == list(range(1, seq + 1))
    return found


async def _last(session: hostler.Session) -> int:
    from hostler import portal
    from hostler.store import queries

    live = session._core._live

    async def read() -> int:
        row = await live.host.store.read(lambda conn: queries.get_session(conn, live.id))
        return int(row.seq)

    return await portal.arun(read())


def staged(session: hostler.Session) -> list[FileStaged]:
    return [r.event for r in records(session) if isinstance(r.event, FileStaged)]


# ---- E11: bytes in, the same bytes out --------------------------------------------------------------------------------

CONTENTS = {
    "every byte": bytes(range(256)),
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "nul": b"\0" * 1000,
    "crlf": b"a\r\nb\nc\r",
    "empty": b"",
    "base64": base64.b64encode(b"looks like an encoding"),
    "no utf-8": b"\xff\xfe\xc3\x28",
    "megabytes": os.urandom(3 << 20),
}


def as_iterable(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


async def as_stream(data: bytes) -> AsyncIterator[bytes]:
    for piece in as_iterable(data):
        await asyncio.sleep(0)
        yield piece


class Upload:
    """What web frameworks give: a file with an async ``read``."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    async def read(self, size: int) -> bytes:
        return self._file.read(size)


KINDS: list[Any] = [bytes, bytearray, memoryview, io.BytesIO, as_iterable, as_stream, Upload]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_goes_in_comes_out(kind: Any, session: hostler.Session) -> None:
    for name, data in CONTENTS.items():
        path = f"in/{name}.bin"
        ref = session.files.write(path, kind(data), media_type="application/x-test", source="test")
        digest = hashlib.sha256(data).hexdigest()
        assert (ref.path, ref.bytes, ref.sha256) == (f"/session/{path}", len(data), digest)
        assert session.files.read(path) == data
        with session.files.open(ref.path) as stream:
            assert b"".join(stream) == data
    assert [s.file.sha256 for s in staged(session)] == [hashlib.sha256(d).hexdigest() for d in CONTENTS.values()]


def test_the_async_twins(session: hostler.Session) -> None:
    async def work() -> None:
        files = session.files
        loops: list[Any] = []

        async def content() -> AsyncIterator[bytes]:
            for n in range(3):
                loops.append(asyncio.get_running_loop())
                yield b"%d" % n

        ref = await files.awrite("/session/a/b.txt", content(), metadata={"n": 1})
        assert set(loops) == {asyncio.get_running_loop()}  # the app's own, where its generator belongs
        assert await files.aread("a/b.txt") == b"012"
        assert [piece async for piece in files.aopen("a//./b.txt")] == [b"012"]
        assert await files.alist("a") == (FileEntry("/session/a/b.txt", "file", 3),)
        await files.amove("a/b.txt", "/artifacts/c.txt")
        assert (await files.astat("/artifacts/c.txt")).path == "/artifacts/c.txt"
        with pytest.raises(FileNotFoundError):
            await files.aread(ref.path)
        await files.aremove("/session/a")
        assert await files.alist() == ()

    asyncio.run(work())


def test_async_content_of_a_sync_call_in_a_loop(session: hostler.Session) -> None:
    """The call holds its loop up, so the content cannot be read there."""

    async def work() -> None:
        session.files.write("x", as_stream(b"abc"))

    asyncio.run(asyncio.wait_for(work(), 10))
    assert session.files.read("x") == b"abc"


def test_a_file_is_there_whole_or_not_at_all(session: hostler.Session) -> None:
    session.files.write("x", b"old")

    def broken() -> Iterator[bytes]:
        yield b"n" * 3_000_000
        raise RuntimeError("the app's own")

    async def abroken() -> AsyncIterator[bytes]:
        for piece in broken():
            yield piece

    for content in (broken(), abroken()):
        with pytest.raises(RuntimeError, match="the app's own"):
            session.files.write("x", content)
    for wrong in ("text", 7, None, {"a": b"b"}, ["text"], io.StringIO("text")):
        with pytest.raises(TypeError, match="content must"):
            session.files.write("x", wrong)  # type: ignore[arg-type]
    assert session.files.read("x") == b"old"
    assert [entry.path for entry in session.files.list()] == ["/session/x"]
    assert len(staged(session)) == 1


def test_a_cancelled_write_leaves_nothing(session: hostler.Session) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 500_000
            await asyncio.sleep(0.001)

    def blocked() -> Iterator[bytes]:
        yield b"x"
        gate.wait(10)
        yield b"y"

    async def work() -> None:
        for content in (endless(), blocked()):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.files.awrite("x", content), 0.3)

    gate = threading.Event()
    asyncio.run(work())
    session.files.list()  # the engine has heard of it
    gate.set()
    assert wait_for_no_file(session), os.listdir(session.workdir)
    assert staged(session) == []


def wait_for_no_file(session: hostler.Session) -> bool:
    from tests.conftest import wait_until

    return wait_until(lambda: os.listdir(session.workdir) == [], 5)


def test_writing_after_close_is_refused_and_reading_is_not(models: ModelServer) -> None:
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session:
        session.files.write("x", b"1")
    assert session.files.read("x") == b"1"
    for call in (lambda: session.files.write("y", b""), lambda: session.files.remove("x")):
        with pytest.raises(hostler.SessionClosed):
            call()


# ---- E01, E02: nothing outside ----------------------------------------------------------------------------------------

OUTSIDE = [
    *("/a", "//a", "/etc/passwd", "C:\\a", "C:/a", "\\\\host\\a", "~/a", "a/../../b", "..", "", "a\0b", "\ud800"),
    *("/sessions/x", "/artifacts/../session/x", "/session/../etc/passwd", "/", "/persistent/../../x", "x" * 256),
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_one_rule_for_every_path(path: str, session: hostler.Session, tmp_path: Path) -> None:
    files = session.files
    before = {p for p in tmp_path.rglob("*") if p.is_dir() or "store.db" not in p.name}
    calls: list[Any] = [files.read, files.list, files.stat, files.remove, lambda p: files.open(p).read()]
    calls += [lambda p: files.write(p, b"out"), lambda p: files.move(p, "y"), lambda p: files.move("y", p)]
    for call in calls:
        with pytest.raises(PathError) as refused:
            call(path)
        assert isinstance(refused.value, ValueError)
    after = {p for p in tmp_path.rglob("*") if p.is_dir() or "store.db" not in p.name}
    assert after == before
    assert staged(session) == []


@pytest.mark.parametrize("path", ["./a", "a/./b", "a//b", "/session/a", "/session//a/", "a/"])
def test_spellings_of_one_place(path: str, session: hostler.Session) -> None:
    ref = session.files.write(path, b"1")
    assert ref.path == "/session/" + "/".join(p for p in path.removeprefix("/session").split("/") if p not in ("", "."))
    assert (Path(session.workdir) / ref.path.removeprefix("/session/")).read_bytes() == b"1"


def test_a_tool_may_be_given_the_real_path(session: hostler.Session) -> None:
    """Where the agent has no /session it says where things really are."""
    session.files.write("d/x", b"1")
    assert session.files.read(f"{session.workdir}/d/x") == b"1"
    assert session.files.stat(session.workdir + "/d/x").path == "/session/d/x"
    for outside in (session.workdir + "x/d", session.workdir + "/../native/x", str(Path(session.workdir).parent)):
        with pytest.raises(PathError):
            session.files.read(outside)


def test_links_are_never_followed(session: hostler.Session, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    work = Path(session.workdir)
    (work / "real").mkdir()
    for name, target in {
        "file": outside / "secret",
        "folder": outside,
        "chain": work / "folder",
        "loop": work / "loop",
        "dangling": outside / "new",
        "inside": work / "real",
    }.items():
        (work / name).symlink_to(target)
    files = session.files
    for path in ("file", "folder/secret", "chain/secret", "loop", "dangling", "inside/x"):
        for call in (files.read, lambda p: files.write(p, b"out"), lambda p: files.open(p).read()):
            with pytest.raises(PathError, match="link"):
                call(path)
    assert {e.path: e.kind for e in files.list()}["/session/folder"] == "symlink"
    for name in ("file", "folder"):
        files.remove(name)  # the link itself
    assert sorted(os.listdir(outside)) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"
    os.mkfifo(work / "fifo")
    with pytest.raises(PathError):
        files.read("fifo")


def test_a_folder_that_is_swapped_for_a_link_meanwhile(session: hostler.Session, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    work = Path(session.workdir)
    (work / "real").mkdir()
    (work / "link").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for a, b in (("real", "d"), ("d", "real"), ("link", "d"), ("d", "link")):
                try:
                    os.rename(work / a, work / b)
                except OSError:  # a write has made the folder meanwhile
                    with contextlib.suppress(OSError):
                        os.rename(work / "d", work / f"made-{time.monotonic_ns()}")

    thread = threading.Thread(target=swap)
    thread.start()
    refused = 0
    try:
        for n in range(150):
            try:
                session.files.write(f"d/{n}", b"x")
            except (PathError, OSError):
                refused += 1
    finally:
        stop.set()
        thread.join(10)
    assert os.listdir(outside) == []
    assert refused < 150


# ---- E13, E17, E08: names, aliases and the caller's own directory -------------------------------------------------------

NAMES = ["ä", "e\u0301", "公共", "a b", 'quo"te', "tab\there", "new\nline", "-dash", "a -> b", "$(x)", "'", "\u202e"]


def test_names_round_trip(session: hostler.Session) -> None:
    for name in NAMES:
        ref = session.files.write(f"n/{name}.txt", name.encode())
        assert session.files.read(ref.path) == name.encode()
    assert sorted(e.path for e in session.files.list("n")) == sorted(f"/session/n/{name}.txt" for name in NAMES)
    result = session.run(json.dumps([{"shell": 'for f in n/*; do printf changed >> "$f"; done'}]))
    assert sorted(f.path for f in result.files) == sorted(f"n/{name}.txt" for name in NAMES)
    with open(os.fsencode(session.workdir) + b"/n/\xff", "wb"):
        pass
    odd = next(e.path for e in session.files.list("n") if not e.path.isprintable() and "\udcff" in e.path)
    assert session.files.read(odd) == b""


def test_the_callers_own_directory_stays_his(models: ModelServer, workspace: Path, tmp_path: Path) -> None:
    (workspace / "sentinel").write_bytes(b"mine")
    alias = tmp_path / "alias"
    alias.symlink_to(workspace)
    options = FAKE_PROGRAM.options(models)
    session = hostler.agent_session(FAKE, sandbox=sandbox.local(alias), **options)
    session.files.write("/session/a", b"1")
    session.files.write("/artifacts/b", b"2")
    assert (workspace / "a").read_bytes() == b"1"
    state = session.detach()
    with hostler.agent_resume(state, sandbox=sandbox.local(workspace), **options) as again:
        assert again.files.read("a") == b"1"
        with pytest.raises(RuntimeError, match="boom"), again:
            raise RuntimeError("boom")
    assert sorted(os.listdir(workspace)) == ["a", "sentinel"]
    host = hostler.local_host(data_dir=os.environ["HOSTLER_STATE_DIR"])
    harness = hostler.create_harness(host=host, runtime=FAKE, sandbox=sandbox.local(workspace), **options)
    harness.sessions.delete(state.session)
    assert (workspace / "sentinel").read_bytes() == b"mine"
    assert not any((tmp_path / "state" / "sessions").iterdir())


# ---- E04: a path that is refused is an answer to the model, not the end of the turn -------------------------------------


def test_a_tool_of_the_app_that_is_asked_for_an_outside_path(models: ModelServer) -> None:
    def fetch(path: str) -> str:
        """Reads a file of the session."""
        return session.files.read(path).decode()

    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE, tools=[fetch], **options) as session:
        session.files.write("x", b"inside")
        steps = [{"mcp": "fetch", "arguments": {"path": path}} for path in ("../../x", "/etc/passwd", "x")]
        result = session.run(json.dumps([*steps, {"text": "went on"}]))
        assert result.stop_reason == "done"
        assert result.text.endswith("went on")
        outputs = [e for e in result.events if isinstance(e, ToolResult)]
        assert [(o.is_error, "PathError" in o.output) for o in outputs] == [(True, True), (True, True), (False, False)]
        assert "inside" in outputs[2].output
