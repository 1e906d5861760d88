"""The store: leases, the inbox, the journal; damage and newer versions."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from hostler.store import Store, inbox, journal, queries, schema
from hostler.types.errors import LeaseLost, SessionBusy, StoreError
from hostler.types.events import Accepted, Done, Text
from hostler.types.result import Result, Usage


def dead(*ids: str) -> Callable[[Any], bool]:
    return lambda row: row.id in ids


def new_session(conn: Any, key: str = "k") -> Any:
    return queries.create_session(
        conn, key=key, harness="fake", new_id="n", workdir="/w", owned=True, rules={}, callables=[], now=1.0
    )


def accept(conn: Any, session: int, turn: str, host: str, is_dead: Any = None, reject: bool = False) -> Any:
    return inbox.accept(
        conn,
        session,
        turn=turn,
        host=host,
        input={"prompt": turn},
        accepted=Accepted(),
        reject_busy=reject,
        is_dead=is_dead or dead(),
        now=2.0,
    )


def finish(conn: Any, lease: Any, turn: str, **result: Any) -> Any:
    return journal.finish(
        conn,
        lease,
        turn=turn,
        events=[],
        result=Result(**result),
        program=journal.read_up_to(1, {}),
        native=None,
        native_id=None,
        now=3.0,
    )


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Store]:
    store = Store.open(str(path / "store.db"))
    try:
        for host in ("a", "b"):
            await store.write(
                lambda conn, host=host: queries.put_host(conn, id=host, machine="m", pid=1, lock="l", now=0, uptime=0)
            )
        yield store
    finally:
        store.close()


def test_turns_run_in_the_order_of_their_acceptance(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            row = await store.write(new_session)
            _, lease, _ = await store.write(lambda c: accept(c, row.id, "t1", "a"))
            assert lease is not None
            assert lease.epoch == 1
            for turn, host in (("t2", "b"), ("t3", "a")):
                _, none, _ = await store.write(lambda c, turn=turn, host=host: accept(c, row.id, turn, host))
                assert none is None
            await store.write(lambda c: finish(c, lease, "t1"))
            head, none = await store.write(lambda c: inbox.next_turn(c, row.id, "a", dead()))  # type: ignore[misc]
            assert head.id == "t2"  # b's: a must not run it
            assert none is None
            head, second = await store.write(lambda c: inbox.next_turn(c, row.id, "b", dead()))  # type: ignore[misc]
            assert (head.id, second.epoch) == ("t2", 2)
            with pytest.raises(LeaseLost):
                await store.write(lambda c: finish(c, lease, "t1"))
            await store.write(lambda c: finish(c, second, "t2"))
            head, third = await store.write(lambda c: inbox.next_turn(c, row.id, "a", dead()))  # type: ignore[misc]
            assert (head.id, third.epoch) == ("t3", 3)

    asyncio.run(main())


def test_a_dead_holder_is_replaced_and_can_no_longer_write(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            row = await store.write(new_session)
            _, old, _ = await store.write(lambda c: accept(c, row.id, "t1", "a"))
            assert await store.write(lambda c: queries.claim(c, row.id, "b", dead())) is None
            turn, lease = await store.write(lambda c: inbox.next_turn(c, row.id, "b", dead("a")))  # type: ignore[misc]
            assert turn.status == "running"  # to be recovered, not begun
            assert lease.epoch == old.epoch + 1
            with pytest.raises(LeaseLost, match="taken over"):
                await store.write(
                    lambda c: journal.append(
                        c, old, turn="t1", events=[(Text("i", "x"), None)], frame=3, progress={}, native_id=None, now=1
                    )
                )
            after = await store.read(lambda c: queries.get_session(c, row.id))
            assert after.seq == 1  # only the Accepted

    asyncio.run(main())


def test_a_failed_job_undoes_only_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            row = await store.write(new_session)

            def half(conn: Any) -> None:
                new_session(conn, "half")
                raise SessionBusy("no")

            outcomes = await asyncio.gather(
                store.write(lambda c: new_session(c, "one")),
                store.write(half),
                store.write(lambda c: new_session(c, "two")),
                return_exceptions=True,
            )
            assert isinstance(outcomes[1], SessionBusy)
            keys = {r.key for r in await store.read(queries.list_sessions)}
            assert keys == {row.key, "one", "two"}
            with pytest.raises(SessionBusy):
                await store.write(half)
            assert {r.key for r in await store.read(queries.list_sessions)} == keys

    asyncio.run(main())


@asynccontextmanager
async def held_up(store: Store) -> AsyncIterator[None]:
    """Nothing that is queued in here begins before the end."""
    begun, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(conn: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        go.wait(30)

    waiting = store.write(wait)
    await begun.wait()
    yield
    go.set()
    await waiting


def stop(conn: Any) -> None:
    raise StopIteration("no more")


def test_a_job_that_raises_stop_iteration_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            async with held_up(store):
                jobs = [store.write(job) for job in (new_session, stop, queries.all_keys)]
            before, stopped, behind = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 10)
            assert (before.key, behind) == ("k", ["k"])
            assert isinstance(stopped, RuntimeError)
            assert "no more" in str(stopped)
            with pytest.raises(RuntimeError, match="no more"):
                await asyncio.wait_for(store.read(stop), 10)
            assert await store.read(queries.all_keys) == ["k"]

    asyncio.run(main())


def test_a_job_that_nobody_waits_for_is_skipped_unless_it_has_begun(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            async with held_up(store):
                left, kept = store.write(lambda c: new_session(c, "left")), store.write(new_session)
                left.cancel()
            await kept
            assert await store.read(queries.all_keys) == ["k"]

    asyncio.run(main())


def test_who_waits_is_woken_once_for_a_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            loop, woken = asyncio.get_running_loop(), []
            wake = loop.call_soon_threadsafe
            async with held_up(store):
                jobs = [store.write(lambda c, n=n: new_session(c, f"{n}")) for n in range(20)]
                monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: woken.append(call) or wake(*call))
            assert len({row.id for row in await asyncio.gather(*jobs)}) == 20
            assert len(woken) == 2  # for the job that held them up, and for them

    asyncio.run(main())


def test_a_loop_that_is_closed_meanwhile_breaks_nothing(tmp_path: Path) -> None:
    store, go = Store.open(str(tmp_path / "store.db")), threading.Event()

    async def leave() -> list[asyncio.Future[Any]]:
        return [store.write(lambda c: go.wait(30)), store.read(lambda c: go.wait(30)), store.write(new_session)]

    async def come() -> list[str]:
        await asyncio.wait_for(store.write(lambda c: None), 10)
        return await asyncio.wait_for(store.read(queries.all_keys), 10)

    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(leave())
    loop.close()
    go.set()
    assert asyncio.run(come()) == ["k"]
    assert not any(future.done() for future in left)
    store.close()


def test_a_store_that_somebody_else_keeps_locked_is_a_store_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostler.store.store._BUSY_MS", 50)
    fresh, path = tmp_path / "fresh.db", tmp_path / "store.db"
    with closing(sqlite3.connect(fresh, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked"):
            Store.open(str(fresh))
        other.execute("COMMIT")

    async def main() -> None:
        async with opened(tmp_path) as store:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                for durable in (False, True):
                    jobs = [store.write(lambda c, n=n: new_session(c, f"{n}"), durable=durable) for n in range(3)]
                    for outcome in await asyncio.gather(*jobs, return_exceptions=True):
                        assert isinstance(outcome, StoreError)
                        assert "locked" in str(outcome)
                assert await store.read(queries.all_keys) == []
                with pytest.raises(StoreError, match="locked"):
                    Store.open(str(path))
                other.execute("COMMIT")
            assert (await store.write(new_session, durable=True)).key == "k"

    asyncio.run(main())


def test_sums_and_numbers(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            row = await store.write(new_session)
            for n, cost in ((1, 0.5), (2, None), (3, 0.25)):
                _, lease, _ = await store.write(lambda c, n=n: accept(c, row.id, f"t{n}", "a"))
                await store.write(
                    lambda c, n=n, lease=lease, cost=cost: finish(
                        c, lease, f"t{n}", usage=Usage(100, 10, 5, 1), cost=cost
                    )
                )
            after = await store.read(lambda c: queries.get_session(c, row.id))
            assert (after.usage["input_tokens"], after.cost, after.unpriced, after.finished) == (300, 0.75, 1, 3)
            records = await store.read(lambda c: journal.read_records(c, row.id, 0))
            assert [r.seq for r in records] == [1, 2, 3, 4, 5, 6]
            assert [type(r.event) for r in records] == [Accepted, Done] * 3

    asyncio.run(main())


def test_reject_when_busy(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            row = await store.write(new_session)
            await store.write(lambda c: accept(c, row.id, "t1", "a"))
            with pytest.raises(SessionBusy, match="runs a turn already"):
                await store.write(lambda c: accept(c, row.id, "t2", "b", reject=True))

    asyncio.run(main())


def test_first_writes_of_many_at_once_lose_nothing(tmp_path: Path) -> None:
    """Several stores on one fresh file, as several processes would have (case B01)."""

    def one(n: int, barrier: threading.Barrier, errors: list[BaseException]) -> None:
        async def work() -> None:
            barrier.wait(10)
            store = Store.open(str(tmp_path / "fresh.db"))
            try:
                for i in range(5):
                    await store.write(lambda c, i=i: new_session(c, f"{n}-{i}"))
                    await store.write(lambda c: new_session(c, "shared"))
            finally:
                store.close()

        try:
            asyncio.run(work())
        except BaseException as error:
            errors.append(error)

    barrier, errors = threading.Barrier(8), []
    threads = [threading.Thread(target=one, args=(n, barrier, errors)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    with sqlite3.connect(tmp_path / "fresh.db") as db:
        assert db.execute("select count(*) from sessions").fetchone()[0] == 41
    db.close()


@pytest.mark.parametrize("damage", ["garbage", "newer", "foreign", "directory"])
def test_a_store_that_cannot_be_used_is_a_clear_error_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.db"
    if damage == "garbage":
        path.write_bytes(b"not a database at all" * 300)
    elif damage == "directory":
        path.mkdir()
    else:
        db = sqlite3.connect(path)
        if damage == "newer":
            db.execute("create table meta(name text primary key, value text)")
            db.execute("insert into meta values('version', '999')")
        else:
            db.execute("create table something(a)")
        db.commit()
        db.close()
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError, match="Nothing was changed") as raised:
        Store.open(str(path))
    assert str(path) in str(raised.value)
    if damage == "newer":
        assert "newer hostler" in str(raised.value)
    if before is not None and damage == "garbage":
        assert path.read_bytes() == before


def test_an_older_store_is_brought_up_to_date(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    Store.open(path).close()
    with sqlite3.connect(path) as db:
        new = db.execute("select name, sql from sqlite_master where type = 'table' order by name").fetchall()
        db.execute("alter table turns drop column answers")
        db.execute("alter table sessions drop column always")
        db.execute("alter table sessions drop column branch")
        db.execute("drop table spoken")
        db.execute("drop table attached")
        db.execute("drop table tool_calls")
        db.execute("update meta set value = '1'")
    db.close()

    async def use() -> dict[str, Any]:
        store = Store.open(path)
        row = await store.write(new_session)
        store.close()
        return dict(row._mapping)

    assert asyncio.run(use())["always"] == {}
    with sqlite3.connect(path) as db:
        assert db.execute("select value from meta where name = 'version'").fetchone() == (str(schema.VERSION),)
        columns = {name: {c[1] for c in db.execute(f"pragma table_info({name})")} for name, _ in new}
    db.close()
    assert columns == {t.name: {c.name for c in t.columns} for t in schema.metadata.sorted_tables} | {
        name: columns[name] for name, _ in new if name.startswith("sqlite_")
    }


def test_a_torn_wal_tail_loses_no_committed_record(tmp_path: Path) -> None:
    async def fill() -> None:
        store = Store.open(str(tmp_path / "store.db"))
        row = await store.write(new_session)
        await store.write(
            lambda c: queries.put_host(c, id="a", machine="m", pid=1, lock="l", now=time.time(), uptime=0)
        )
        _, lease, _ = await store.write(lambda c: accept(c, row.id, "t1", "a"), durable=True)
        await store.write(lambda c: finish(c, lease, "t1"), durable=True)
        for name in ("store.db", "store.db-wal"):  # as a machine that lost power would leave them
            (tmp_path / f"copy-{name}").write_bytes((tmp_path / name).read_bytes())
        store.close()

    asyncio.run(fill())
    wal = tmp_path / "copy-store.db-wal"
    wal.write_bytes(wal.read_bytes() + b"\0" * 5000)

    async def look() -> None:
        store = Store.open(str(tmp_path / "copy-store.db"))
        try:
            rows = await store.read(queries.list_sessions)
            assert [(r.key, r.finished, r.seq) for r in rows] == [("k", 1, 2)]
        finally:
            store.close()

    asyncio.run(look())
