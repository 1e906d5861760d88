"""Followers: every record once and in order, whoever writes and whenever they come."""

from __future__ import annotations

import asyncio
import random

import pytest

from hostler.host.journal import Journal
from hostler.types.events import Done, Record, Text
from hostler.types.result import Result


class Written:
    """A store that holds records in a list, with reads that take a moment."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    async def read(self, session: int, after: int) -> list[Record]:
        found = self.records[after : after + 1000]
        await asyncio.sleep(random.random() / 500)
        return found


def record(seq: int, turn: str = "t") -> Record:
    return Record(seq, 0.0, "k", turn, None, Text("i", str(seq)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("here", [True, False])
def test_no_record_is_lost_or_doubled(seed: int, here: bool) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        store = Written()
        journal = Journal(None, lambda session: here)  # type: ignore[arg-type]
        journal.read = store.read  # type: ignore[method-assign]
        total = 300

        async def write() -> None:
            pending: list[Record] = []
            while len(store.records) < total:
                n = rng.randint(1, 5)
                fresh = [record(len(store.records) + i + 1) for i in range(n)]
                store.records += fresh
                pending += fresh
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.random() / 1000)  # a commit is seen before it is published
                if here:
                    journal.publish(1, pending)
                    pending = []
                await asyncio.sleep(0)
            journal.publish(1, pending)
            store.records.append(Record(len(store.records) + 1, 0.0, "k", "t", None, Done(Result())))
            if here:
                journal.publish(1, store.records[-1:])

        async def follow(after: int) -> None:
            await asyncio.sleep(rng.random() / 50)
            follower = journal.follow(1, after, "t")
            seen: list[int] = []
            while batch := await asyncio.wait_for(follower.batch(), 10):
                seen += [r.seq for r in batch]
                if rng.random() < 0.2:
                    await asyncio.sleep(rng.random() / 200)
            assert seen == list(range(after + 1, len(store.records) + 1))

        await asyncio.gather(write(), *(follow(after) for after in (0, 0, 3, 50, 120)))
        assert not journal._followers

    asyncio.run(main())


def test_a_failed_turn_reaches_those_who_wait_for_it() -> None:
    async def main() -> None:
        store = Written()
        journal = Journal(None, lambda session: True)  # type: ignore[arg-type]
        journal.read = store.read  # type: ignore[method-assign]
        mine, other = journal.follow(1, 0, "t"), journal.follow(1, 0, "u")
        waits = asyncio.create_task(mine.batch()), asyncio.create_task(other.batch())
        await asyncio.sleep(0.01)
        journal.fail(1, "t", OSError("disk full"))
        with pytest.raises(OSError, match="disk full"):
            await waits[0]
        assert not waits[1].done()
        other.close()
        assert await waits[1] == []

    asyncio.run(main())
