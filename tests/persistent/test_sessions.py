"""Persistent dirs in sessions: before, in and behind turns."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import keepers_of
from tests.persistent.support import Shelf, Storage
from tests.sessions.programs import ALL, CLAUDE, CODEX, FAKE_PROGRAM, OPENCODE, REAL, Program, ids

import hostler
from hostler.harness import (
    CheckedOut,
    Committed,
    Done,
    Notice,
    PersistenceFailed,
    Result,
    ToolResult,
)
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer

pytestmark = pytest.mark.usefixtures("nothing_left")


def shell(command: str) -> str:
    return json.dumps([{"shell": command}, {"text": "done"}])


def said(session: Any, turn: str | None = None) -> list[Any]:
    """The host's events about persistent dirs, up to the session's last turn."""
    found = []
    for record in session.follow(0):
        if isinstance(record.event, (CheckedOut, Committed, PersistenceFailed)):
            found.append(record.event)
        if isinstance(record.event, Done) and record.turn == (turn or record.turn):
            break
    return found


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_an_agent_edits_and_the_app_stores(program: Program, models: ModelServer) -> None:
    store = Storage({"a.md": b"one\n"})
    with hostler.agent_session(program.harness, persistent_dirs=[store.dir()], **program.options(models)) as session:
        result = session.run(
            program.shell("cat /persistent/notes/a.md; echo two >> /persistent/notes/a.md; echo > /persistent/notes/b")
        )
        assert (result.stop_reason, result.persistence.status) == ("done", "committed")
        (commit,) = result.persistence.commits
        assert (commit["path"], commit["created"], commit["updated"]) == ("/persistent/notes", ["b"], ["a.md"])
        assert store.files == {"a.md": b"one\ntwo\n", "b": b"\n"}
        assert any("one" in e.output for e in result.events if isinstance(e, ToolResult))
        assert [type(e) for e in said(session)] == [CheckedOut, Committed]
        result = session.run(program.say("word"))
        assert (result.persistence.status, result.persistence.commits) == ("clean", ())
        assert store.calls == ["load", "store", "load"]


def test_a_failed_turn_keeps_its_changes(options: dict[str, Any]) -> None:
    store = Storage({"a": b"x"})
    with hostler.agent_session(FAKE, persistent_dirs=[store.dir()], **options) as session:
        result = session.run(json.dumps([{"shell": "echo new > /persistent/notes/a"}, {"error": "boom"}]))
        assert result.stop_reason == "error"
        assert (result.persistence.status, result.persistence.commits[0]["updated"]) == ("uncommitted", ["a"])
        assert store.files == {"a": b"x"}
        store.put(b=b"theirs")
        state = session.detach()
    with hostler.agent_resume(state, persistent_dirs=[store.dir()], **options) as session:
        result = session.run(shell("cat /persistent/notes/a /persistent/notes/b"))
        assert result.persistence.status == "committed"
        assert [e.output for e in result.events if isinstance(e, ToolResult)] == ["new\ntheirs"]
        assert store.files == {"a": b"new\n", "b": b"theirs"}


def test_changes_outlive_a_failed_commit_and_the_session_itself(options: dict[str, Any]) -> None:
    store = Storage()

    def down(ctx: Any) -> None:
        raise ConnectionError("the database is down")

    store.fault = down
    with hostler.agent_session(FAKE, persistent_dirs=[store.dir()], **options) as session:
        result = session.run(shell("echo kept > /persistent/notes/a"))
        assert (result.stop_reason, result.error) == ("done", None)
        (commit,) = result.persistence.commits
        assert (result.persistence.status, commit["status"], commit["created"]) == ("failed", "failed", ["a"])
        assert commit["error"]["code"] == "persistence_error"
        assert "ConnectionError: the database is down" in commit["error"]["message"]
        failed = said(session)[-1]
        assert (failed.path, failed.step, failed.message) == ("/persistent/notes", "commit", commit["error"]["message"])
        state = session.state()
    store.fault = None
    with hostler.agent_resume(state, persistent_dirs=[store.dir()], **options) as session:
        assert session.commit().status == "committed"
        assert store.files == {"a": b"kept\n"}
        assert session.commit() == hostler.harness.Persistence()


def test_the_model_is_told_nothing_of_failures(models: ModelServer, options: dict[str, Any]) -> None:
    store = Storage({"a": b"x"})
    store.fault = lambda ctx: (_ for _ in ()).throw(RuntimeError("SECRET-FAULT"))
    with hostler.agent_session(FAKE, persistent_dirs=[store.dir()], **options) as session:
        assert "SECRET-FAULT" in str(session.run(shell("echo y > /persistent/notes/a")).persistence)
        session.run(json.dumps([{"model": "again", "memory": True}, {"text": "done"}]))
    assert len(models.calls) == 1
    assert "SECRET-FAULT" not in str([request.body for request in models.calls])


@pytest.mark.parametrize("how", ["hangs", "hangs async", "exits", "raises"])
def test_a_callback_that_fails_costs_no_result(how: str, options: dict[str, Any]) -> None:
    store = Storage()
    free = threading.Event()
    contexts: list[Any] = []

    def bad(ctx: Any, changes: Any, cursor: Any) -> None:
        contexts.append(ctx)
        if how == "exits":
            raise SystemExit(3)
        if how == "raises":
            raise KeyError("no such row")
        free.wait(20)

    async def bad_async(ctx: Any, changes: Any, cursor: Any) -> None:
        contexts.append(ctx)
        await asyncio.sleep(20)

    store_function = bad_async if how == "hangs async" else bad
    dir = hostler.persistent_dir("/persistent/notes", load=store.load, store=store_function, timeout=0.3)
    with hostler.agent_session(FAKE, persistent_dirs=[dir], **options) as session:
        result = session.run(shell("echo y > /persistent/notes/a"))
        assert (result.stop_reason, result.persistence.status) == ("done", "failed")
        assert result.text.endswith("done")
        message = result.persistence.commits[0]["error"]["message"]
        words = {"exits": "SystemExit: 3", "raises": "KeyError: 'no such row'"}.get(how, "no answer within 0.3 s")
        assert words in message
        assert repr(session.key) in message
        began = time.monotonic()
        with pytest.raises(hostler.PersistenceError, match=words.split(":")[0]) as raised:
            session.commit()
        assert raised.value.persistence.status == "failed"
        assert time.monotonic() - began < 3
        assert contexts[0].cancel.is_set() == how.startswith("hangs")
        free.set()
        session.run("[]")


def test_a_commit_that_hangs_does_not_hold_up_a_cancel(options: dict[str, Any]) -> None:
    store = Storage()
    begun = threading.Event()

    def hang(ctx: Any) -> None:
        begun.set()
        ctx.cancel.wait(30)
        raise OSError("nobody waits")

    store.fault = hang
    with hostler.agent_session(FAKE, persistent_dirs=[store.dir()], **options) as session:
        stream = session.stream(shell("echo y > /persistent/notes/a"))
        assert begun.wait(20)
        began = time.monotonic()
        stream.cancel()
        result = stream.wait()
        assert time.monotonic() - began < 5
        assert result.persistence.status == "failed"
        store.fault = None
        assert session.commit().status == "committed"


def test_what_happens_to_errors_is_the_apps_choice(options: dict[str, Any]) -> None:
    store = Storage()
    store.fault = lambda ctx: (_ for _ in ()).throw(OSError("down"))
    heard: list[Exception] = []
    told = threading.Event()

    def hear(error: Exception) -> None:
        heard.append(error)
        told.set()

    with hostler.agent_session(FAKE, persistent_dirs=[store.dir()], on_persistence_error=hear, **options) as session:
        assert session.run(shell("echo y > /persistent/notes/a")).persistence.status == "failed"
        assert told.wait(5)
        assert isinstance(heard[0], hostler.PersistenceError)
        with pytest.raises(hostler.PersistenceError, match="down") as raised:
            session.run("[]", on_persistence_error="raise")
        assert isinstance(raised.value.result, Result)
        assert raised.value.result.stop_reason == "done"
        with pytest.raises(hostler.PersistenceError, match="down"):
            list(session.stream("[]", on_persistence_error="raise"))
        state = session.stop()
    with pytest.raises(hostler.OptionsMismatch, match="on_persistence_error"):
        hostler.agent_resume(state, persistent_dirs=[store.dir()], **options)
    with pytest.raises(ValueError, match="on_persistence_error"):
        hostler.agent_session(FAKE, on_persistence_error="ignore", **options)


def test_conflicts_between_two_sessions(options: dict[str, Any]) -> None:
    store = Storage({"a": b"base\n"})
    with (
        hostler.agent_session(FAKE, persistent_dirs=[store.dir()], **options) as one,
        hostler.agent_session(FAKE, persistent_dirs=[store.dir()], **options) as two,
    ):
        one.run("[]")
        two.run("[]")
        one.files.write("/persistent/notes/a", b"one")
        two.files.write("/persistent/notes/a", b"two")
        two.files.write("/persistent/notes/b", b"two")
        assert one.commit().status == "committed"
        with pytest.raises(
            hostler.PersistenceConflict, match="'a' changed in the session and in the storage"
        ) as raised:
            two.commit("/persistent/notes")
        assert raised.value.persistence.commits[0]["conflicts"] == ["a"]
        result = two.run("[]")
        assert (result.persistence.status, result.persistence.commits[0]["conflicts"]) == ("conflict", ["a"])
        assert store.files == {"a": b"one"}
        assert two.files.read("/persistent/notes/a") == b"two"
        failed = [e for e in said(two, result.turn_id) if isinstance(e, PersistenceFailed)]
        assert [(e.code, e.paths) for e in failed] == [("persistence_conflict", ("a",))] * 2
        assert two.commit(merge="ours").status == "committed"
        assert store.files == {"a": b"two", "b": b"two"}
        assert one.run(shell("cat /persistent/notes/*")).persistence.status == "clean"
        assert one.files.read("/persistent/notes/b") == b"two"


def test_manual_commits(options: dict[str, Any]) -> None:
    notes, other, fixed = Storage(), Storage(), Storage({"x": b""})
    dirs = [
        notes.dir(commit="manual"),
        other.dir("other", commit="manual"),
        fixed.dir("/persistent/fixed", commit="read-only"),
    ]
    with hostler.agent_session(FAKE, persistent_dirs=dirs, **options) as session:
        result = session.run(shell("echo 1 > /persistent/notes/a; echo 1 > /persistent/other/a"))
        assert result.persistence.status == "uncommitted"
        assert [c["path"] for c in result.persistence.commits] == ["/persistent/notes", "/persistent/other"]
        assert session.commit("/persistent/other").commits[0]["created"] == ["a"]
        assert (notes.files, other.files) == ({}, {"a": b"1\n"})
        with pytest.raises(hostler.PathError, match="has no persistent dir '/persistent/nope'"):
            session.commit("/persistent/nope")
        with pytest.raises(hostler.PersistenceError, match="read-only"):
            session.commit("/persistent/fixed")
        running = session.stream('[{"text": "a"}, {"sleep": 0.5}]')
        next(running)
        with pytest.raises(hostler.SessionBusy, match="when it is done"):
            session.commit()
        running.wait()
        assert asyncio.run(session.acommit()).status == "committed"
        assert notes.files == {"a": b"1\n"}
        keys = [*notes.keys, *other.keys]
        assert len(set(keys)) == 2
        assert None not in keys


def test_a_turn_waits_for_a_commit(options: dict[str, Any]) -> None:
    store = Storage()
    begun, free = threading.Event(), threading.Event()

    def slow(ctx: Any) -> None:
        begun.set()
        free.wait(10)

    with hostler.agent_session(FAKE, persistent_dirs=[store.dir()], **options) as session:
        session.run("[]")
        session.files.write("/persistent/notes/a", b"1")
        store.fault = slow
        thread = threading.Thread(target=session.commit)
        thread.start()
        assert begun.wait(5)
        stream = session.stream(shell("cat /persistent/notes/a"))
        time.sleep(0.2)
        assert store.calls.count("load") == 1
        free.set()
        store.fault = None
        assert stream.wait().stop_reason == "done"
        thread.join(5)
        assert store.files == {"a": b"1"}


@pytest.mark.parametrize("waits", [True, False])
def test_an_end_comes_behind_a_commit(waits: bool, options: dict[str, Any], state_dir: Path) -> None:
    """Whether or not anybody waits for that."""
    store = Storage()
    begun = threading.Event()

    def slow(ctx: Any) -> None:
        begun.set()
        time.sleep(0.5)

    async def main() -> None:
        session = await hostler.aagent_session(FAKE, persistent_dirs=[store.dir()], **options)
        await session.arun("[]")
        await session.files.awrite("/persistent/notes/a", b"1")
        store.fault = slow
        committing = asyncio.create_task(session.acommit())
        assert await asyncio.to_thread(begun.wait, 5)
        if not waits:
            committing.cancel()
        await asyncio.wait_for(session.aclose(), 20)
        assert store.files == {"a": b"1"}
        assert keepers_of(state_dir) == []
        await asyncio.gather(committing, return_exceptions=True)

    asyncio.run(main())


def test_what_the_app_writes_is_committed_and_read_only_is_refused_at_once(options: dict[str, Any]) -> None:
    notes, fixed = Storage(), Storage({"x": b"1"})
    dirs = [notes.dir(), fixed.dir("/persistent/fixed", commit="read-only")]
    with hostler.agent_session(FAKE, persistent_dirs=dirs, sandbox=hostler.sandbox.local, **options) as session:
        session.run("[]")
        session.files.write("/persistent/notes/sub/a", b"by the app")
        for write in (
            lambda: session.files.write("/persistent/fixed/x", b"2"),
            lambda: session.files.remove("/persistent/fixed/x"),
            lambda: session.files.move("/persistent/fixed/x", "/session/x"),
            lambda: session.files.move("/persistent/notes/sub/a", "/persistent/fixed/y"),
        ):
            with pytest.raises(hostler.PersistenceError, match="read-only"):
                write()
        with pytest.raises(hostler.PathError, match="in no persistent dir"):
            session.files.write("/persistent/typo/a", b"lost")
        result = session.run(shell("echo changed > /persistent/fixed/x; rm -f /persistent/fixed/y"))
        assert result.persistence.commits[0]["created"] == ["sub/a"]
        assert notes.files == {"sub/a": b"by the app"}
        assert session.files.read("/persistent/fixed/x") == b"1"
        assert "put back: x" in result.warnings[0]
        assert [e.code for e in result.events if isinstance(e, Notice)] == ["read_only_changed"]
        assert fixed.files == {"x": b"1"}
        assert [e.paths for e in said(session, result.turn_id) if isinstance(e, PersistenceFailed)] == [("x",)]


@pytest.mark.bubblewrap
def test_in_bubblewrap_the_mount_is_read_only(options: dict[str, Any]) -> None:
    """And a refresh between turns is seen by the program that lives on."""
    notes, fixed = Storage(), Storage({"x": b"1"})
    dirs = [notes.dir(), fixed.dir("/persistent/fixed", commit="read-only")]
    with hostler.agent_session(FAKE, persistent_dirs=dirs, sandbox=hostler.sandbox.bubblewrap, **options) as session:
        tries = "echo 2 > /persistent/fixed/x; rm /persistent/fixed/x; mv /persistent/fixed /persistent/y; echo n > /persistent/notes/n"
        result = session.run(shell(tries))
        assert result.text.count("Read-only file system") == 2
        assert "busy" in result.text
        assert result.warnings == ()
        assert (notes.files, fixed.files) == ({"n": b"n\n"}, {"x": b"1"})
        fixed.files["x"] = b"3"
        assert session.run(shell("cat /persistent/fixed/x")).text.startswith("3")


def test_a_resumed_session_wants_its_dirs_again(options: dict[str, Any], tmp_path: Path) -> None:
    store, shelf = Storage(), Shelf()
    source = tmp_path / "source"
    dirs = [store.dir(), shelf.dir("/persistent/shelf"), hostler.local_dir(source, at="kept")]
    with hostler.agent_session(FAKE, persistent_dirs=dirs, **options) as session:
        session.run(shell("echo 1 > /persistent/kept/a"))
        state = session.stop()
    for given in ([], dirs[:1]):
        with pytest.raises(hostler.OptionsMismatch, match="persistent dir /persistent/shelf"):
            hostler.agent_resume(state, persistent_dirs=given, **options)
    with hostler.agent_resume(state, persistent_dirs=dirs[:2], **options) as session:  # what can be stored is known
        assert session.run(shell("echo 2 >> /persistent/kept/a")).persistence.status == "committed"
        assert (source / "a").read_text() == "1\n2\n"
        with pytest.raises(hostler.CapabilityUnsupported, match="persistent_dirs"):
            session.run("[]", persistent_dirs=dirs)


def test_a_dir_that_cannot_be_loaded(models: ModelServer, options: dict[str, Any]) -> None:
    store = Storage({"a": b"x"})
    broken = True

    def load(ctx: Any) -> Any:
        if broken:
            raise TimeoutError("no database")
        return store.load(ctx)

    dir = hostler.persistent_dir("notes", load=load, store=store.store)
    with hostler.agent_session(FAKE, persistent_dirs=[dir], **options) as session:
        with pytest.raises(hostler.PersistenceError, match="no database"):
            session.run(shell("echo y > /persistent/notes/a"))
        assert models.requests == []
        broken = False
        assert session.run("[]").stop_reason == "done"
        broken = True  # from now on there is something to go on with
        result = session.run(shell("cat /persistent/notes/a"))
        assert [e.output for e in result.events if isinstance(e, ToolResult)] == ["x"]
        assert isinstance(said(session, result.turn_id)[-1], PersistenceFailed)
        with pytest.raises(hostler.PersistenceError, match="no database"):
            session.run("[]", on_persistence_error="raise")


def test_callbacks_are_told_who_asks(models: ModelServer, tmp_path: Path) -> None:
    stores = {"ada": Storage({"a": b"of ada"}), "bob": Storage({"a": b"of bob"})}
    contexts: list[Any] = []

    async def load(ctx: Any) -> Any:
        return stores[ctx.extra_body["user"]].load(ctx)

    def store(ctx: Any, changes: Any, cursor: Any) -> Any:
        contexts.append(ctx)
        return stores[ctx.extra_body["user"]].store(ctx, changes, cursor)

    harness = hostler.create_harness(
        host=hostler.local_host(tmp_path / "data"),
        runtime=FAKE,
        persistent_dirs=[hostler.persistent_dir("notes", load=load, store=store)],
        **FAKE_PROGRAM.options(models),
    )
    for user in ("ada", "bob"):
        result = hostler.generate_harness(
            harness=harness,
            session=f"chat-{user}",
            extra_body={"user": user},
            prompt=shell("cat /persistent/notes/a; echo more >> /persistent/notes/a"),
        )
        assert [e.output for e in result.events if isinstance(e, ToolResult)] == [f"of {user}"]
        assert contexts[-1].turn == result.turn_id
        assert contexts[-1].session == f"chat-{user}"
        assert contexts[-1].path == "/persistent/notes"
        assert result.turn_id in contexts[-1].idempotency_key
    session = harness.sessions.get("chat-ada")
    session.files.write("/persistent/notes/b", b"1")
    assert session.commit().status == "committed"  # with the context of the last turn
    assert (contexts[-1].turn, contexts[-1].extra_body) == (None, {"user": "ada"})
    assert stores["ada"].files == {"a": b"of adamore\n", "b": b"1"}
    assert stores["bob"].files == {"a": b"of bobmore\n"}
    for key in ("chat-ada", "chat-bob"):
        harness.sessions.delete(key)


def test_the_agent_is_told_of_its_dirs_once(models: ModelServer, options: dict[str, Any]) -> None:
    store = Storage({"a": b"x"})
    dirs = [store.dir(), store.dir("/persistent/handbook", commit="read-only")]
    prompt = json.dumps([{"say": "memory"}])
    with hostler.agent_session(FAKE, persistent_dirs=dirs, **options) as session:
        session.run("Hello.")
        told = session.run(prompt).text
        assert told.count("kept beyond this session") == 1
        assert "/persistent/notes\n" in told
        assert "/persistent/handbook (read-only" in told
        state = session.stop()
    with hostler.agent_resume(state, persistent_dirs=dirs, **options) as session:
        assert session.run(prompt).text.count("kept beyond this session") == 1


def test_instructions_name_the_real_folder(options: dict[str, Any]) -> None:
    with hostler.agent_session(
        FAKE,
        sandbox=hostler.sandbox.local,
        persistent_dirs=[Storage().dir()],
        instructions="Keep notes in /persistent/notes.",
        **options,
    ) as session:
        rules = json.loads(session.run('[{"say": "rules"}]').text)
        assert "Keep notes in /" in str(rules)
        assert " /persistent/notes" not in str(rules)
        assert "/sessions/" in str(rules)


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_an_agent_that_may_edit_may_edit_them(program: Program, models: ModelServer, tmp_path: Path) -> None:
    store = Storage({"sub/a": b"x"})
    outside = tmp_path / "outside.md"
    options = program.options(models)
    paths = ("/persistent/notes/sub/new", str(outside))
    if program is CODEX:
        steps: list[dict[str, Any]] = [{"shell": f"echo x > {path}"} for path in paths]
    elif program is CLAUDE:  # like OpenCode it gets no shell that it cannot confine
        steps = [{"tool": "Write", "args": {"file_path": path, "content": "x"}} for path in paths]
    else:
        tools = {
            "opencode": ("write", "filePath"),
            "deep_agents": ("write_file", "file_path"),
            "gemini_cli": ("write_file", "file_path"),
        }
        tool, name = tools.get(program.name, ("write", "path"))
        steps = [{"tool": tool, "args": {name: path, "content": "x"}} for path in paths]
        if program is OPENCODE:
            options["model"] = CLAUDE.model  # for others it has another tool
    with hostler.agent_session(
        program.harness, permissions="edit", persistent_dirs=[store.dir()], **options
    ) as session:
        result = session.run(f"@@{json.dumps(steps)}@@")
        assert result.persistence.commits[0]["created"] == ["sub/new"]
    assert set(store.files) == {"sub/a", "sub/new"}
    assert not outside.exists()


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: hostler.persistent_dir("/persistent/a/b", load=print, store=print), hostler.PathError, "one folder"),
        (lambda: hostler.persistent_dir("/elsewhere", load=print, store=print), hostler.PathError, "outside"),
        (lambda: hostler.persistent_dir("/persistent", load=print, store=print), hostler.PathError, "one folder"),
        (lambda: hostler.persistent_dir("a", load=print), TypeError, "store="),
        (lambda: hostler.persistent_dir("a"), TypeError, "either load="),
        (lambda: hostler.persistent_dir("a", load=print, list=print), TypeError, "either load="),
        (lambda: hostler.persistent_dir("a", list=print, read=print), TypeError, "write="),
        (lambda: hostler.persistent_dir("a", load=print, store=print, commit="never"), ValueError, "'manual'"),
        (lambda: hostler.persistent_dir("a", load=print, store=print, merge="mine"), ValueError, "'theirs'"),
        (lambda: hostler.persistent_dir("a", load=print, store=print, timeout=0), ValueError, "seconds"),
    ],
)
def test_bad_dirs_name_themselves(make: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_bad_lists_of_dirs_are_refused_before_anything_is_stored(options: dict[str, Any], state_dir: Path) -> None:
    dir = Storage().dir()
    for given, error, says in (
        ([dir, dir], ValueError, "Two persistent dirs"),
        ([{"path": "notes"}], TypeError, "persistent_dirs takes"),
        ("notes", TypeError, "a list"),
    ):
        with pytest.raises(error, match=says):
            hostler.agent_session(FAKE, persistent_dirs=given, **options)
        with pytest.raises(error, match=says):
            hostler.create_harness(
                host=hostler.local_host(state_dir / "h"), runtime=FAKE, persistent_dirs=given, **options
            )
    assert not os.path.exists(state_dir / "sessions") or not os.listdir(state_dir / "sessions")
