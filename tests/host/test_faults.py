"""What a host does when it is killed, the disk is full or read-only, the clock goes backwards, or the log was torn."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import SOAK, keepers_of, processes_of, wait_until
from tests.host.test_storm import APP, check_alone_and_once, journal
from tests.sessions.programs import FAKE_PROGRAM

import hostler
from hostler import portal
from hostler.harness import StoreError, Text
from hostler.host import Host
from hostler.host.identity import is_dead, machine_id, uptime
from hostler.testing.model_server import ModelServer

FAKE = FAKE_PROGRAM.harness
KILLS = 10  # of one test
ALL_KILLS = int(os.environ.get("HOSTLER_KILLS") or (500 if SOAK else 30))


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE_PROGRAM.options(models)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "state"
    yield path
    assert wait_until(lambda: not processes_of(path), 20), [p.cmdline() for p in processes_of(path)]


class Watcher:
    """An app that runs one turn and prints each record that it is given."""

    def __init__(self, data_dir: Path, options: dict[str, Any], key: str, prompt: str, *, label: str = "one") -> None:
        turn = {"key": key, "label": label, "prompt": prompt}
        job = {"harness": "fake", "data_dir": str(data_dir), "options": options, "caller": "c", "turns": [turn]}
        self._out = data_dir.parent / f"{key}-{label}.out"
        with self._out.open("w") as out:
            self.process = subprocess.Popen([sys.executable, str(APP), json.dumps({**job, "watch": True})], stdout=out)

    def saw(self) -> list[Any]:
        lines = self._out.read_text().splitlines(keepends=True)
        return [json.loads(line[4:]) for line in lines if line.startswith("saw ") and line.endswith("\n")]

    def until(self, kind: str) -> None:
        assert wait_until(lambda: any(event["type"] == kind for _, _, event in self.saw()), 20), self._out.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def stored(data_dir: Path, key: str) -> list[Any]:
    """The records of a session as they lie in the database."""
    database = sqlite3.connect(data_dir / "store.db")
    try:
        rows = database.execute(
            "select seq, turn, event from records where session = (select id from sessions where key = ?) order by seq",
            (key,),
        ).fetchall()
    finally:
        database.close()
    return [[seq, turn, json.loads(event)] for seq, turn, event in rows]


@pytest.mark.longer
@pytest.mark.timeout(240)
@pytest.mark.parametrize("chunk", range(-(-ALL_KILLS // KILLS)))
def test_what_a_subscriber_saw_is_in_the_store(
    chunk: int, options: dict[str, Any], data_dir: Path, record_property: Callable[[str, object], None]
) -> None:
    """kill -9 at random moments: journal first, then everybody else."""
    data_dir.parent.mkdir(exist_ok=True)
    harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
    seen = 0
    for number in range(KILLS):
        rng, key = random.Random(f"{chunk}-{number}"), f"chat-{number}"
        prompt = json.dumps(
            [{"deltas": 150, "gap": 0.001}, {"shell": "echo 1 >> log"}, {"deltas": 150}, {"text": "end"}]
        )
        app = Watcher(data_dir, options, key, prompt)
        app.until("accepted")
        time.sleep(rng.uniform(0, 0.7))
        app.kill()
        kept, saw = stored(data_dir, key), app.saw()
        assert saw == kept[: len(saw)]
        assert [seq for seq, _, _ in saw] == list(range(1, len(saw) + 1))
        result = hostler.generate_harness(
            harness=harness, prompt=prompt, session=key, run_id="one", extra_body={"caller": "c", "label": "one"}
        )
        assert (result.stop_reason, result.text[-3:]) == ("done", "end")
        records = journal(harness, key, 1)
        check_alone_and_once(records)
        assert harness.sessions.get(key).files.read("log") == b"1\n"
        assert stored(data_dir, key)[: len(kept)] == kept
        harness.sessions.delete(key)
        seen += len(saw)
        over = any(event["type"] == "done" for _, _, event in kept)
        record_property("kill", ["a host", "killed after its Done" if over else "killed before its Done"])
    assert seen > KILLS, "every app died before it saw anything"


# ---- the disk -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0 or not _mounted("-t", "tmpfs", "-o", "size=6m", "tmpfs", str(path)):
        pytest.skip("no file system can be mounted here")
    try:
        yield path
        assert wait_until(lambda: not processes_of(path), 20), [p.cmdline() for p in processes_of(path)]
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=10)


def _mounted(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], check=False, timeout=10, capture_output=True).returncode == 0


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass


def closed(host_dir: Path) -> None:
    """Close this process's host on a folder that will be gone."""

    async def close() -> None:
        from hostler.host import local

        await local._hosts.pop(os.path.realpath(host_dir)).close()

    portal.run(close())


def test_a_full_disk_is_a_clear_error_and_room_is_enough_to_go_on(small_disk: Path, options: dict[str, Any]) -> None:
    data_dir, filler = small_disk / "state", small_disk / "filler"
    harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
    try:
        assert hostler.generate_harness(harness=harness, prompt="before", session="chat").stop_reason == "done"
        fill(filler)
        kept = stored(data_dir, "chat")
        for _ in range(2):
            with pytest.raises(StoreError, match="the disk is full"):
                hostler.generate_harness(harness=harness, prompt="x" * 100_000, session="chat")
        with pytest.raises(OSError, match="No space left"):
            harness.sessions.get("chat").files.write("a", b"x" * 100_000)
        assert stored(data_dir, "chat") == kept
        filler.unlink()
        result = hostler.generate_harness(harness=harness, prompt=json.dumps([{"say": "memory"}]), session="chat")
        assert "before" in result.text
        check_alone_and_once(journal(harness, "chat", 2))
    finally:
        closed(data_dir)


def test_a_disk_that_fills_up_in_the_middle_of_a_turn(small_disk: Path, options: dict[str, Any]) -> None:
    """The turn fails for who waits, the records it had stay, and after there is room it has its one Done."""
    data_dir, filler = small_disk / "state", small_disk / "filler"
    harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
    try:
        prompt = json.dumps([{"text": "begin"}, {"sleep": 0.3}, {"deltas": 50, "gap": 0.001}, {"text": "end"}])
        stream = hostler.stream_harness(harness=harness, prompt=prompt, session="chat", run_id="one")
        assert isinstance(next(stream), Text)
        fill(filler)
        with pytest.raises(StoreError, match="the disk is full"):
            stream.wait()
        kept = stored(data_dir, "chat")
        assert [event["type"] for _, _, event in kept][:3] == ["accepted", "started", "text"]
        filler.unlink()
        result = hostler.generate_harness(harness=harness, prompt=prompt, session="chat", run_id="one")
        assert (result.stop_reason, result.text.count("begin"), result.text[-3:]) == ("done", 1, "end")
        check_alone_and_once(journal(harness, "chat", 1))
        assert stored(data_dir, "chat")[: len(kept)] == kept
    finally:
        closed(data_dir)


def test_a_disk_that_stays_full_is_told_to_all_and_holds_nobody_up(
    small_disk: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs, what waits and what comes is told at once; the program ends with its time; then there is room."""
    monkeypatch.setenv("HOSTLER_ORPHAN_TTL", "1.5")
    data_dir, filler = small_disk / "state", small_disk / "filler"
    harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
    calls = [json.dumps([{"text": "begin"}, {"sleep": 0.3}, {"deltas": 20, "gap": 0.01}, {"hang": True}]), "waits"]
    try:
        hostler.generate_harness(harness=harness, prompt="before", session="chat")
        streams = [
            hostler.stream_harness(harness=harness, prompt=prompt, session="chat", run_id=str(n))
            for n, prompt in enumerate(calls)
        ]
        assert isinstance(next(streams[0]), Text)
        fill(filler)
        start = time.monotonic()
        session = harness.sessions.get("chat")
        told: list[Callable[[], Any]] = [stream.wait for stream in streams]
        told += [
            lambda: hostler.generate_harness(harness=harness, prompt="comes", session="chat"),
            lambda: hostler.generate_harness(harness=harness, prompt="comes", session="new"),
            lambda: session.run("comes"),
            session.cancel,
            lambda: harness.sessions.cancel("chat"),
            lambda: harness.sessions.delete("chat"),
        ]
        for call in told:
            with pytest.raises(StoreError, match="the disk is full"):
                call()
        assert harness.sessions.status("chat").turns == 1  # what only reads works
        assert session.state().session == "chat"
        assert time.monotonic() - start < 5
        assert wait_until(lambda: not processes_of(small_disk), 8)
        filler.unlink()
        results = [
            hostler.generate_harness(harness=harness, prompt=prompt, session="chat", run_id=str(n))
            for n, prompt in enumerate(calls)
        ]
        assert results[0].error is not None
        assert results[0].error.code in ("program_exited", "program_lost")  # as far as its log could be written
        assert results[0].text.startswith("begin")
        assert results[1].stop_reason == "done"
        recall = hostler.generate_harness(harness=harness, prompt=json.dumps([{"say": "memory"}]), session="chat")
        assert "before" in recall.text
        check_alone_and_once(journal(harness, "chat", 4))
    finally:
        closed(data_dir)


FULL = """
import json, sys
import hostler
from pathlib import Path
from hostler.testing.fake_runtime import FAKE
from tests.host.test_faults import fill
disk = Path(sys.argv[1])
options = json.loads(sys.argv[2])
harness = hostler.create_harness(host=hostler.local_host(disk / "state"), runtime=FAKE, **options)
hostler.generate_harness(harness=harness, prompt="before", session="idle")
stream = hostler.stream_harness(harness=harness, prompt='[{"text": "a"}, {"hang": true}]', session="chat", run_id="one")
next(stream)
session = hostler.agent_session(FAKE, state_dir=str(disk / "state"), **options)
session.run("before")
fill(disk / "filler")
try:
    session.close()
except hostler.StoreError as error:
    print(error)
"""


def test_an_app_that_ends_on_a_full_disk_leaves_no_program(small_disk: Path, options: dict[str, Any]) -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(small_disk), json.dumps(options)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert time.monotonic() - start < 20
    assert "the disk is full" in done.stdout
    assert done.stderr == ""
    assert not processes_of(small_disk)
    (small_disk / "filler").unlink()
    harness = hostler.create_harness(host=hostler.local_host(small_disk / "state"), runtime=FAKE, **options)
    try:
        again = {"prompt": '[{"text": "a"}, {"hang": true}]', "session": "chat", "run_id": "one"}
        result = hostler.generate_harness(harness=harness, **again)  # type: ignore[arg-type]
        assert (result.text, result.stop_reason) == ("a", "error")
        assert harness.sessions.get("idle").run(json.dumps([{"say": "memory"}])).text.startswith("before")
    finally:
        closed(small_disk / "state")


def test_a_program_that_says_more_than_the_disk_takes_waits_for_room(small_disk: Path, options: dict[str, Any]) -> None:
    data_dir, filler = small_disk / "state", small_disk / "filler"
    harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
    try:
        prompt = json.dumps(
            [
                {"text": "begin"},
                {"sleep": 0.3},
                {"raw": '{"ev": "text", "item": "x", "delta": "%s"}' % ("y" * 200_000)},
                {"text": "end"},
            ]
        )
        stream = hostler.stream_harness(harness=harness, prompt=prompt, session="chat")
        assert isinstance(next(stream), Text)
        fill(filler)
        time.sleep(0.8)
        filler.unlink()
        events = list(stream)
        assert stream.result.stop_reason == "done"
        assert sum(len(event.delta) for event in events if isinstance(event, Text)) == 200_003
        check_alone_and_once(journal(harness, "chat", 1))
    finally:
        closed(data_dir)


def test_a_read_only_data_dir_is_a_clear_error(small_disk: Path, options: dict[str, Any]) -> None:
    data_dir = small_disk / "state"
    harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
    hostler.generate_harness(harness=harness, prompt="before", session="chat")
    closed(data_dir)
    kept = stored(data_dir, "chat")
    assert _mounted("-o", "remount,ro", str(small_disk))
    start = time.monotonic()
    with pytest.raises(StoreError, match=r"(?i)read-?only"):
        hostler.generate_harness(harness=harness, prompt="x", session="chat")
    with pytest.raises(StoreError, match=r"(?i)read-?only"):
        harness.sessions.list()
    assert time.monotonic() - start < 10
    assert _mounted("-o", "remount,rw", str(small_disk))
    assert stored(data_dir, "chat") == kept
    try:
        assert hostler.generate_harness(harness=harness, prompt="x", session="chat").stop_reason == "done"
    finally:
        closed(data_dir)


# ---- the clock ------------------------------------------------------------------------------------------------------

CLOCK = """
import json, sys, time
real, offset = time.time, [0.0]
time.time = lambda: real() + offset[0]
import hostler
from hostler.harness import Done
from hostler.testing.fake_runtime import FAKE
data_dir, options = sys.argv[1], json.loads(sys.argv[2])
harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
def turn(*steps, **more):
    stream = hostler.stream_harness(harness=harness, prompt=json.dumps(steps), session="chat", **more)
    next(stream)
    offset[0] -= 86400.0
    return stream.wait().stop_reason
start = time.monotonic()
print(turn({"text": "a"}, {"sleep": 0.2}, {"text": "b"}))
print(turn({"text": "a"}, {"hang": True}, timeout=0.5))
print(turn({"text": "a"}, {"say": "memory"}))
harness.sessions.get("chat").detach()
harness.sessions.get_or_create("other")
print([info.id for info in harness.sessions.list()])
assert time.monotonic() - start < 20
seen = []
for record in harness.sessions.follow("chat", 0):
    seen.append((record.seq, record.at))
    if isinstance(record.event, Done) and len([1]) and record.turn and (done := globals().setdefault("done", [])) is not None:
        done.append(record.turn)
        if len(done) == 3:
            break
assert [seq for seq, _ in seen] == list(range(1, len(seen) + 1))
assert seen[-1][1] < seen[0][1] - 80000
harness.sessions.delete("chat")
"""


def test_a_clock_that_goes_backwards_hurts_nothing(options: dict[str, Any], data_dir: Path) -> None:
    """Three days in three turns: numbers, deadlines and recovery do not ask the clock on the wall."""
    done = subprocess.run(
        [sys.executable, "-c", CLOCK, str(data_dir), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["done", "timeout", "done"]
    assert "other" in done.stdout


@pytest.mark.parametrize("wall", [-1e6, 0.0, 1e6])
def test_who_is_dead_is_not_asked_of_the_clock_on_the_wall(wall: float, tmp_path: Path) -> None:
    """On this machine: by the kernel's lock, then by a clock that nobody sets."""
    host = portal.run(Host.open(str(tmp_path / "state")))
    try:
        lock, here = host._lock.path, machine_id()

        def row(**given: Any) -> Any:
            return SimpleNamespace(
                **{"machine": here, "lock": lock, "uptime": uptime(), "heartbeat": time.time() + wall} | given
            )

        assert not is_dead(row(), here, 600)
        assert is_dead(row(uptime=uptime() - 16), here, 600)
        assert is_dead(row(lock=str(tmp_path / "nobody.lock")), here, 600)
    finally:
        portal.run(host.close())


# ---- the log of the database ----------------------------------------------------------------------------------------


def zeroed(wal: Path, keep: int) -> None:
    size = wal.stat().st_size
    with wal.open("r+b") as file:
        file.seek(keep)
        file.write(b"\0" * (size - keep))


def torn(wal: Path, keep: int) -> None:
    os.truncate(wal, keep)


def scrambled(wal: Path, keep: int) -> None:
    size = wal.stat().st_size
    with wal.open("r+b") as file:
        file.seek(keep)
        file.write(random.Random(keep).randbytes(size - keep))


@pytest.mark.parametrize("alive", [True, False], ids=["keeper alive", "power lost"])
@pytest.mark.parametrize("damage", [zeroed, torn, scrambled])
def test_a_damaged_end_of_the_write_ahead_log(
    damage: Callable[[Path, int], None], alive: bool, options: dict[str, Any], data_dir: Path
) -> None:
    """What was acknowledged stays; a turn that ran has its one Done, and with its program alive it loses nothing."""
    data_dir.parent.mkdir(exist_ok=True)
    first = Watcher(data_dir, options, "chat", "CODEWORD-one", label="zero")
    assert first.process.wait(20) == 0
    kept = stored(data_dir, "chat")
    prompt = json.dumps([{"sleep": 0.3}, {"deltas": 200, "gap": 0.001}, {"sleep": 0.5}, {"text": "end"}])
    app = Watcher(data_dir, options, "chat", prompt)
    app.until("started")
    wal = data_dir / "store.db-wal"
    time.sleep(0.1)
    safe = wal.stat().st_size  # the accepted turn and its program are below
    app.until("text")
    time.sleep(0.15)
    keepers = keepers_of(data_dir)  # before the kill: the last connection that closes takes the log along
    app.kill()
    if not alive:
        for keeper in keepers:
            keeper.kill()
        assert wait_until(lambda: not processes_of(data_dir), 5)
    whole = wal.stat().st_size
    assert whole > safe
    damage(wal, random.Random(damage.__name__).randrange(safe, whole))
    harness = hostler.create_harness(host=hostler.local_host(data_dir), runtime=FAKE, **options)
    start = time.monotonic()
    result = hostler.generate_harness(
        harness=harness, prompt=prompt, session="chat", run_id="one", extra_body={"caller": "c", "label": "one"}
    )
    after = hostler.generate_harness(harness=harness, prompt=json.dumps([{"say": "memory"}]), session="chat")
    assert time.monotonic() - start < 20
    if alive:
        assert result.stop_reason == "done"
        assert result.text == "".join(f"{n} " for n in range(200)) + "end"
    else:
        assert result.error is not None
        assert result.error.code == "program_lost"
    assert "CODEWORD-one" in after.text
    records = journal(harness, "chat", 3)
    check_alone_and_once(records)
    assert stored(data_dir, "chat")[: len(kept)] == kept
    harness.sessions.delete("chat")
