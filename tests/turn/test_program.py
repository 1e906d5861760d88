"""A program as a host holds it: what it has said is handed out in order, a part at a time, and none of it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hostler.program import Program
from hostler.running import Stop
from hostler.types.runtime import Frame


class Held:
    """A keeper with so many frames in its log, all there at once."""

    def __init__(self, count: int, size: int = 1) -> None:
        self.frames = [Frame(n, "out", b"x" * size) for n in range(1, count + 1)]
        self.read = 0

    async def batches(self) -> AsyncIterator[Sequence[Frame]]:
        for at in range(0, len(self.frames), 1000):
            self.read = at + 1000
            yield self.frames[at : at + 1000]
            await asyncio.sleep(0)
        await asyncio.Event().wait()


def holding(held: Held, left: int = 0) -> Program:
    return Program(held, epoch=1, token="t", tool_token=None, fingerprint="f", left=left)  # type: ignore[arg-type]


async def until_full(held: Held) -> int:
    for _ in range(1000):
        await asyncio.sleep(0)
    return held.read


def test_a_flood_is_handed_out_a_part_at_a_time() -> None:
    async def main() -> None:
        held = Held(50_000)
        program = holding(held)
        assert await until_full(held) < 25_000, "the rest waits where it is until there is room"
        program.put_first(Stop("cancelled"))  # type: ignore[arg-type]
        numbers: list[int] = []
        turns = 0
        while len(numbers) < 50_000:
            part = await asyncio.wait_for(program.items(), 5)
            assert len(part) <= 1000
            if not turns:
                assert part.pop(0) == Stop("cancelled"), "an end that is wanted does not wait"
            turns += 1
            numbers += [item.no for item in part if isinstance(item, Frame)]
        assert numbers == list(range(1, 50_001))

    asyncio.run(main())


def test_the_loop_has_its_turn_between_the_parts() -> None:
    async def main() -> None:
        held, beats = Held(20_000), 0
        program = holding(held)
        await until_full(held)

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0)

        beating = asyncio.create_task(beat())
        parts = 0
        seen: list[Any] = []
        while len(seen) < 10_000:
            seen += await program.items()
            parts += 1
        assert beats >= parts - 1 > 5
        beating.cancel()

    asyncio.run(main())


def test_what_was_put_back_comes_first() -> None:
    async def main() -> None:
        program = holding(Held(3000))
        part = await program.items()
        program.put_back(part[-10:])
        again = await program.items()
        assert again[:10] == part[-10:]
        assert again[10] == Frame(part[-1].no + 1, "out", b"x")  # type: ignore[union-attr]

    asyncio.run(main())


def test_what_an_idle_program_said_is_all_taken_up_and_no_more() -> None:
    async def main() -> None:
        held = Held(2500)
        program = holding(held)
        await until_full(held)
        program.put_first(Stop("cancelled"))  # type: ignore[arg-type]  # of the turn before
        parts = [part async for part in program.arrived()]
        assert [item for part in parts for item in part] == held.frames
        assert len(parts) > 2
        program.put(Frame(2501, "out", b"y"))
        assert await program.items() == [Frame(2501, "out", b"y")]

    asyncio.run(main())


def test_a_prompt_far_back_in_the_log_is_found() -> None:
    """More of it than is read ahead otherwise; and what was looked at is still there."""

    async def main() -> None:
        held = Held(60_000)
        held.frames[40_000] = Frame(40_001, "in", b"", "t")
        assert await asyncio.wait_for(holding(held, left=60_000).was_given("t"), 10)
        other = holding(held, left=60_000)
        assert not await asyncio.wait_for(other.was_given("u"), 10)
        found = [item async for part in other.arrived() for item in part]
        assert found == held.frames

    asyncio.run(main())
