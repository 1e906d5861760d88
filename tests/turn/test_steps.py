"""The steps of a turn: committed in order, one at a time, and nothing is shown or said before it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.progress import Progress
from hostler.steps import Journal, Step, Steps
from hostler.store.journal import Journalled
from hostler.types.events import Record, Text
from hostler.types.runtime import Send


class Book:
    """A journal whose commits end when the test says so, and what came of the steps, in order."""

    def __init__(self) -> None:
        self.log: list[tuple[str, object]] = []
        self.open: list[asyncio.Future[None]] = []
        self.problem: Exception | None = None
        self.failures = 0

    async def append(self, events: Sequence[Journalled], progress: Progress, native_id: str | None) -> list[Record]:
        assert not self.open, "two commits at once"
        self.open.append(asyncio.get_running_loop().create_future())
        await self.open[0]
        self.open.clear()
        if self.problem is not None:
            raise self.problem
        texts = [event.delta for event, _ in events if isinstance(event, Text)]
        self.log.append(("committed", (texts, progress.frame, native_id)))
        return [Record(n, 0.0, "k", "t", None, event) for n, (event, _) in enumerate(events)]

    def publish(self, records: list[Record]) -> None:
        self.log.append(("shown", [record.event.delta for record in records if isinstance(record.event, Text)]))

    async def landed(self, step: Step) -> None:
        self.log.append(("landed", (step.progress.frame, [send.key for send in step.sends])))

    def failed(self) -> None:
        self.failures += 1

    def steps(self) -> Steps:
        return Steps(Journal(self.append, self.publish), self.landed, self.failed)

    async def commit(self) -> None:
        await breathe()
        self.open[0].set_result(None)
        await breathe()


async def breathe() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def step(frame: int, *texts: str, sends: Sequence[str] = (), native_id: str | None = None) -> Step:
    events = tuple((Text("i", text), None) for text in texts)
    return Step(Progress({}, 1, frame=frame), events, tuple(Send(key, b"") for key in sends), native_id)


def test_what_comes_during_a_commit_is_one_step_behind_it() -> None:
    async def check() -> None:
        book = Book()
        steps = book.steps()
        steps.put(step(1, "a", sends=["s"]))
        await breathe()
        steps.put(step(2, "b", native_id="n"))
        steps.put(step(3, "c", sends=["t"]))
        await breathe()
        assert book.log == []
        await book.commit()
        await book.commit()
        await steps.landed_all()
        assert steps.idle
        assert book.log == [
            ("committed", (["a"], 1, None)),
            ("shown", ["a"]),
            ("landed", (1, ["s"])),
            ("committed", (["b", "c"], 3, "n")),
            ("shown", ["b", "c"]),
            ("landed", (3, ["t"])),
        ]

    asyncio.run(check())


def test_what_tells_nothing_is_not_committed_by_itself() -> None:
    async def check() -> None:
        book = Book()
        steps = book.steps()
        steps.put(step(4))
        await steps.landed_all()
        assert book.log == [("landed", (4, []))]
        steps.put(replace(step(5), due=True))  # unless the keeper is to forget it
        await book.commit()
        assert book.log[1:] == [("committed", ([], 5, None)), ("shown", []), ("landed", (5, []))]

    asyncio.run(check())


def test_the_end_of_a_turn_takes_what_waits_unless_it_has_something_to_say() -> None:
    async def check() -> None:
        book = Book()
        steps = book.steps()
        steps.put(step(1, "a"))
        await breathe()
        assert steps.take() is None
        steps.put(step(2, "b"))
        taken = steps.take()
        assert taken is not None
        assert taken.progress.frame == 2
        steps.put(step(3, "c", sends=["s"]))
        assert steps.take() is None
        await book.commit()
        await book.commit()
        assert [what for what in book.log if what[0] == "landed"] == [("landed", (1, [])), ("landed", (3, ["s"]))]

    asyncio.run(check())


def test_a_commit_that_fails_is_told_and_ends_it() -> None:
    async def check() -> None:
        book = Book()
        book.problem = RuntimeError("disk")
        steps = book.steps()
        steps.put(step(1, "a", sends=["s"]))
        await book.commit()
        assert book.failures == 1
        steps.put(step(2, "b"))
        with pytest.raises(RuntimeError, match="disk"):
            await steps.landed_all()
        assert book.log == []
        assert book.open == []
        await steps.drop()

    asyncio.run(check())


def test_nobody_waits_for_what_was_dropped() -> None:
    async def check() -> None:
        book = Book()
        steps = book.steps()
        steps.put(step(1, "a", sends=["s"]))
        await breathe()
        await steps.drop()
        assert book.open[0].cancelled()
        assert book.log == []

    asyncio.run(check())


@given(st.lists(st.sampled_from(["put", "send", "empty", "commit", "breathe"]), max_size=30))
def test_everything_lands_once_and_in_order(acts: list[str]) -> None:
    async def check() -> None:
        book = Book()
        steps = book.steps()
        texts: list[str] = []
        keys: list[str] = []
        for frame, act in enumerate(acts):
            if act == "put":
                texts.append(str(frame))
                steps.put(step(frame, str(frame)))
            elif act == "send":
                keys.append(str(frame))
                steps.put(step(frame, sends=[str(frame)]))
            elif act == "empty":
                steps.put(step(frame))
            elif act == "commit" and book.open:
                await book.commit()
            else:
                await breathe()
        while not steps.idle:
            await breathe()
            if book.open:
                await book.commit()
        said = [key for what, value in book.log if what == "landed" for key in value[1]]  # type: ignore[index]
        shown = [text for what, value in book.log if what == "shown" for text in value]  # type: ignore[attr-defined]
        assert (said, shown) == (keys, texts)
        frames = [value[0] for what, value in book.log if what == "landed"]  # type: ignore[index]
        assert frames == sorted(frames)

    asyncio.run(check())
