"""Public fault cases of concurrent turns, of walls between sessions and of readers that come and go, by key."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import processes_of, wait_until
from tests.host.test_storm import check_alone_and_once, journal
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler import portal
from hostler.harness import Done, PathError, SessionBusy, Text
from hostler.host import Host, identity, local
from hostler.host.identity import HostLock, lock_is_free
from hostler.testing.model_server import ModelServer

FAKE = FAKE_PROGRAM.harness


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "state"
    yield path
    assert wait_until(lambda: not processes_of(path), 8), [p.cmdline() for p in processes_of(path)]


@pytest.fixture
def harness(models: ModelServer, data_dir: Path) -> Iterator[hostler.HarnessProfile]:
    made = hostler.create_harness(
        host=hostler.local_host(data_dir), runtime=FAKE, on_busy="queue", **FAKE_PROGRAM.options(models)
    )
    yield made
    for info in made.sessions.list():
        made.sessions.delete(info.id)


def say(harness: Any, key: str, *steps: Any, **more: Any) -> Any:
    return hostler.generate_harness(harness=harness, prompt=json.dumps(steps), session=key, **more)


# ---- B: concurrent turns, locks -------------------------------------------------------------------------------------

HOLD = """
import sys, time
from hostler.host.identity import HostLock
lock = HostLock(sys.argv[1])
print(lock.path, flush=True)
time.sleep(60)
"""


def test_the_lock_of_a_dead_owner_is_free_whatever_is_in_it(tmp_path: Path) -> None:
    """Case B04: it is a kernel lock; no process id is asked, and nothing is read from the file."""
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    path = child.stdout.readline().strip()
    assert not lock_is_free(path)
    child.kill()
    child.wait(10)
    child.stdout.close()
    assert lock_is_free(path)
    for content in (b"", b"\xff\x00 garbage", str(os.getpid()).encode()):
        Path(path).write_bytes(content)
        assert lock_is_free(path)
    mine = HostLock(str(tmp_path))
    assert not lock_is_free(mine.path)
    mine.release()
    assert lock_is_free(mine.path)


def test_many_who_are_told_that_it_is_busy_do_no_harm(harness: Any) -> None:
    """Case B07: busy is an error of its own, and the session is as it was."""
    running = hostler.stream_harness(harness=harness, prompt='[{"text": "a"}, {"sleep": 1.5}]', session="job")
    next(running)
    told: list[BaseException] = []

    def worker() -> None:
        try:
            say(harness, "job", {"text": "x"}, on_busy="reject")
        except BaseException as error:
            told.append(error)

    threads = [threading.Thread(target=worker) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {type(error) for error in told} == {SessionBusy}
    assert len(told) == 10
    assert running.wait().stop_reason == "done"
    assert say(harness, "job", {"text": "clean"}).text == "clean"
    check_alone_and_once(journal(harness, "job", 2))


def test_all_that_many_threads_do_at_once_is_kept(harness: Any) -> None:
    """Cases B08 and B10: turns, files and readers over each other; no number twice, each thread's own in its order."""
    session = harness.sessions.get_or_create("chat")
    barrier, failed = threading.Barrier(6), []

    def work(n: int) -> None:
        try:
            barrier.wait(10)
            for i in range(6):
                if n % 2:
                    session.files.write(f"{n}/{i}", b"x")
                else:
                    assert say(harness, "chat", {"text": f"{n}-{i}"}).text == f"{n}-{i}"
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    records = journal(harness, "chat", 18)
    check_alone_and_once(records)
    texts = [r.event.delta for r in records if isinstance(r.event, Text)]
    staged = [r.event.file.path for r in records if hasattr(r.event, "file")]
    for n in range(6):
        if n % 2:
            assert [p for p in staged if p.startswith(f"/session/{n}/")] == [f"/session/{n}/{i}" for i in range(6)]
        else:
            assert [t for t in texts if t.startswith(f"{n}-")] == [f"{n}-{i}" for i in range(6)]


JOINER = """
import json, sys
import hostler
from hostler.testing.fake_runtime import FAKE
harness = hostler.create_harness(host=hostler.local_host(sys.argv[1]), runtime=FAKE, **json.loads(sys.argv[2]))
stream = hostler.stream_harness(harness=harness, prompt=sys.argv[3], session="chat", run_id="one")
for event in stream:
    print(type(event).__name__, flush=True)
"""


def test_who_joined_a_turn_takes_it_over_when_its_owner_dies(models: ModelServer, harness: Any, data_dir: Path) -> None:
    prompt = json.dumps([{"text": "a"}, {"sleep": 2}, {"text": "b"}])
    options = json.dumps(FAKE_PROGRAM.options(models))
    owner = subprocess.Popen(
        [sys.executable, "-c", JOINER, str(data_dir), options, prompt], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "Text\n"
    stream = hostler.stream_harness(harness=harness, prompt=prompt, session="chat", run_id="one")
    assert isinstance(next(stream), Text)
    owner.kill()
    owner.wait(10)
    owner.stdout.close()
    start = time.monotonic()
    assert stream.wait().text == "ab"
    assert time.monotonic() - start < 15
    check_alone_and_once(journal(harness, "chat", 1))


def test_a_process_that_ends_leaves_the_turns_of_others_alone(
    models: ModelServer, harness: Any, data_dir: Path
) -> None:
    """It cancels its own, ends no program in the middle of a turn, and what it had taken over goes on elsewhere."""
    prompt = json.dumps([{"text": "a"}, {"shell": "echo 1 >> log"}, {"sleep": 2}, {"text": "b"}])
    options = json.dumps(FAKE_PROGRAM.options(models))
    code = JOINER.replace("for event in stream:", "next(stream)\nfor event in ():")
    dies = subprocess.run(
        [sys.executable, "-c", JOINER + "    import os; os.kill(os.getpid(), 9)\n", str(data_dir), options, prompt],
        timeout=30,
        check=False,
        capture_output=True,
    )
    assert dies.returncode == -9
    ends = subprocess.run(  # joins the dead one's turn, takes it over, and ends cleanly
        [sys.executable, "-c", code, str(data_dir), options, prompt], timeout=30, check=True, capture_output=True
    )
    assert ends.returncode == 0
    result = hostler.generate_harness(harness=harness, prompt=prompt, session="chat", run_id="one")
    assert (result.stop_reason, result.text) == ("done", "ab")
    assert harness.sessions.get("chat").files.read("log") == b"1\n"


def test_a_key_that_is_used_again_after_its_deletion_is_a_new_session(harness: Any) -> None:
    """Invariant 12: an id of the store is never given out twice, and no handle of the old one reaches the new."""
    first = harness.sessions.get_or_create("a")
    first.files.write("secret", b"x")
    harness.sessions.delete("a")
    second = harness.sessions.get_or_create("b")
    assert second.workdir != first.workdir
    assert second.files.list() == ()
    again = harness.sessions.get_or_create("a")
    assert again.files.list() == ()
    say(harness, "b", {"shell": "echo b > of-b"})
    assert Path(second.workdir, "of-b").read_text() == "b\n"


# ---- E: walls between sessions --------------------------------------------------------------------------------------


def test_nothing_of_another_session_by_the_api(harness: Any, data_dir: Path) -> None:
    """Cases E01, E02 between sessions: no path, no link that the agent makes, no hash and no id leads there."""
    say(harness, "b", {"shell": "echo secret > b.txt; echo secret > /artifacts/b.md"}, {"text": "b"}, run_id="run")
    b = harness.sessions.get("b")
    (artifact,) = b.artifacts.list()
    other = os.path.dirname(b.workdir)
    say(harness, "a", {"shell": f"ln -s {other} link; ln -s {b.workdir}/b.txt file; mkdir d; ln -s {other} d/deep"})
    a = harness.sessions.get("a")
    paths = [
        f"../../{os.path.basename(other)}/session/b.txt",
        f"{b.workdir}/b.txt",
        "link/session/b.txt",
        "file",
        "d/deep/session/b.txt",
    ]
    paths += [f"/session/../{os.path.basename(other)}/session/b.txt", f"/artifacts/../../{other}/session/b.txt"]
    for path in paths:
        for operation in (a.files.read, lambda p: list(a.files.open(p)), lambda p: a.files.write(p, b"x")):
            with pytest.raises(PathError):
                operation(path)
        if path != "file":  # a link itself may be moved
            with pytest.raises(PathError):
                a.files.move(path, "here")
    for name in (artifact.sha256, artifact.path, "/artifacts/b.md"):
        with pytest.raises((FileNotFoundError, PathError)):
            a.artifacts.read(name)
    assert a.artifacts.list() == ()
    assert b.files.read("b.txt") == b"secret\n"
    assert say(harness, "a", {"text": "own"}, run_id="run").text == "own"  # a run_id is a session's own
    records = [r.seq for r in journal(harness, "a", 2)]
    assert records == list(range(1, len(records) + 1))


def test_what_local_does_not_isolate(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the README says: the shell of an agent in `local` has the rights of the app's user."""
    monkeypatch.setenv("HOSTLER_SANDBOX", "local")
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    section = readme.split("## What `local` does not isolate")[1].split("\n## ")[0]
    assert "other sessions' workspaces" in " ".join(section.split())
    say(harness, "b", {"write": "b.txt", "content": "of-b"})
    b = harness.sessions.get("b")
    assert say(harness, "a", {"shell": f"cat {b.workdir}/b.txt"}).text == "of-b"


# ---- K: streams, reconnect ------------------------------------------------------------------------------------------


def test_a_reader_that_is_cut_anywhere_misses_nothing(harness: Any) -> None:
    """Case K01: at every number, during the turn and after it."""
    stream = hostler.stream_harness(harness=harness, prompt='[{"deltas": 60, "gap": 0.005}]', session="chat")
    next(stream)
    seen, after = [], 0
    while True:  # a new reader for each record, while the turn goes on
        reader = harness.sessions.follow("chat", after)
        record = next(iter(reader))
        reader.close()
        seen.append(record)
        after = record.seq
        if isinstance(record.event, Done):
            break
    whole = journal(harness, "chat", 1)
    assert seen == whole
    for cut in range(len(whole)):
        reader = harness.sessions.follow("chat", cut)
        rest = [record for _, record in zip(range(len(whole) - cut), reader, strict=False)]
        reader.close()
        assert rest == whole[cut:]


def test_any_client_cancels_and_each_reader_is_its_own(harness: Any) -> None:
    """Case K04: two attached readers, one that left, a cancel by key; the program is interrupted once."""
    first = hostler.stream_harness(
        harness=harness, prompt='[{"text": "a"}, {"hang": true}]', session="chat", run_id="one"
    )
    next(first)
    second, gone = (
        hostler.stream_harness(harness=harness, prompt='[{"text": "a"}, {"hang": true}]', session="chat", run_id="one")
        for _ in range(2)
    )
    assert isinstance(next(gone), Text)
    gone.close()  # a disconnect is not a cancel
    assert harness.sessions.status("chat").status == "running"
    harness.sessions.cancel("chat")
    for stream in (first, second):
        assert stream.wait().stop_reason == "cancelled"
    check_alone_and_once(journal(harness, "chat", 1))


def test_a_tool_that_takes_longer_than_the_lease_runs_once(
    models: ModelServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case K07: the lease is renewed while it runs; another host that looks all the time does not get it."""
    monkeypatch.setattr(identity, "SILENT_AFTER", 1.0)
    monkeypatch.setattr(local, "BEAT_EVERY", 0.2)
    calls: list[int] = []

    def slow() -> str:
        """Take your time."""
        calls.append(1)
        time.sleep(3)
        return "slept"

    made = hostler.create_harness(
        host=hostler.local_host(data_dir), runtime=FAKE, tools=[slow], **FAKE_PROGRAM.options(models)
    )
    other = portal.run(Host.open(str(data_dir)))
    try:
        stream = hostler.stream_harness(harness=made, prompt='[{"text": "a"}, {"mcp": "slow"}]', session="chat")
        next(stream)
        leases = []

        async def look() -> None:
            from hostler.store import queries

            leases.append(await other.store.write(lambda conn: queries.claim(conn, 1, other.id, other.is_dead)))

        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            portal.run(look())
            time.sleep(0.1)
        assert stream.wait().text == "aslept"
        assert set(leases) == {None}
        assert calls == [1]
        made.sessions.delete("chat")
    finally:
        portal.run(other.close())


# ---- many sessions --------------------------------------------------------------------------------------------------

REOPEN = """
import json, sys, time
import hostler
from hostler.testing.fake_runtime import FAKE
start = time.process_time()  # the benchmark measures the time; on a busy machine that says little
harness = hostler.create_harness(host=hostler.local_host(sys.argv[1]), runtime=FAKE, **json.loads(sys.argv[2]))
session = harness.sessions.get("many-7777")
print(time.process_time() - start)
assert len(harness.sessions.list()) == 10_001
session.detach()
"""


def multiply(data_dir: Path, count: int) -> None:
    """Rows like that of the session ``model``."""
    with closing(sqlite3.connect(data_dir / "store.db")) as database:
        columns = [row[1] for row in database.execute("pragma table_info(sessions)") if row[1] not in ("id", "key")]
        names = ", ".join(columns)
        database.executemany(
            f"insert into sessions (key, {names}) select ?, {names} from sessions where key = 'model'",
            [(f"many-{n}",) for n in range(count)],
        )
        database.commit()


def test_ten_thousand_sessions_are_opened_soon(models: ModelServer, data_dir: Path) -> None:
    options = FAKE_PROGRAM.options(models)
    made = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
    made.sessions.get_or_create("model")
    multiply(data_dir, 10_000)
    done = subprocess.run(
        [sys.executable, "-c", REOPEN, str(data_dir), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(f"reopened with 10,000 sessions in {float(done.stdout) * 1000:.0f} ms of CPU")
    assert float(done.stdout) < 3
