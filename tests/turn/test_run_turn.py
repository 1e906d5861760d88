"""The pipeline by itself: a program that says what the test has it say, and a journal that is a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from hostler.keeper import KeeperGone
from hostler.outcome import Outcome
from hostler.program import Gone
from hostler.progress import Progress
from hostler.running import Running
from hostler.steps import Journal
from hostler.store.journal import Journalled
from hostler.telemetry.redaction import Masker
from hostler.turn import Bounds, run_turn
from hostler.types.events import ModelCall, Record, Started, Text
from hostler.types.runtime import Command, Ended, Folded, Frame, Identified, LaunchContext, Prompt, Send

QUIET = b"." * 100_000


class Lines:
    """A codec of lines: ``id X`` names the conversation, ``say X`` is text, ``end`` the end; what else it is tells nothing."""

    version = 1

    def start(self, ctx: LaunchContext) -> Folded:
        return Folded({})

    def fold(self, state: dict[str, Any], item: Frame | ModelCall) -> Folded:
        word, _, rest = (
            item.data.decode().partition(" ") if isinstance(item, Frame) and item.kind == "out" else [""] * 3
        )
        known = {"id": Identified(rest), "say": Text("i", rest), "end": Ended("done")}
        return Folded(state, (known[word],) if word in known else ())

    def encode(self, state: dict[str, Any], command: Command) -> Folded:
        assert isinstance(command, Prompt)
        return Folded(state, sends=(Send(command.turn, command.text.encode()),))


class Script:
    """What is there when the turn begins, and what comes then; what it is told, or how it is gone."""

    def __init__(
        self, there: Sequence[Any], then: Sequence[Any], gone: Exception | None = None, *, stalls: bool = False
    ) -> None:
        self.there, self.then = list(there), [[item] for item in then]
        self.gone = None if stalls else gone  # one that stalls comes to itself later
        self.deaf = gone
        self.killed = False
        self.told: list[str] = []
        self.read = 0
        self.stored: list[int] = []

    async def open_turn(self) -> None: ...

    async def arrived(self) -> AsyncIterator[list[Any]]:
        found, self.there = self.there, []
        yield found

    async def items(self) -> list[Any]:
        for _ in range(5):
            await asyncio.sleep(0)
        found, self.there = self.there, []
        return found or self.then.pop(0)

    def put(self, item: Any) -> None:
        self.there.append(item)

    def put_first(self, item: Any) -> None:
        self.there.insert(0, item)

    async def send(self, sends: Sequence[Send]) -> None:
        if self.deaf is not None and sends:
            raise self.deaf
        self.told += [send.key for send in sends]

    async def kill(self) -> None:
        self.killed = True

    async def read_up_to(self, frame: int) -> None:
        assert frame <= max(self.stored, default=0), "the keeper forgets what the store does not have"
        self.read = frame


def out(number: int, data: bytes) -> Frame:
    return Frame(number, "out", data)


def given(number: int) -> Frame:
    return Frame(number, "in", b"go", "t")


def turn(program: Script) -> tuple[Outcome, list[tuple[list[Any], Progress, str | None]]]:
    """How it ended, and the steps that were committed."""
    steps: list[tuple[list[Any], Progress, str | None]] = []

    async def append(events: Sequence[Journalled], progress: Progress, native_id: str | None) -> list[Record]:
        await asyncio.sleep(0)
        steps.append(([event for event, _ in events], progress, native_id))
        program.stored.append(progress.frame)
        return []

    journal = Journal(append, lambda records: None)
    first = (Started(None, 1, False),)
    work = run_turn(
        Running("t"),
        first,
        program,  # type: ignore[arg-type]
        Progress({}, 1),
        Lines(),
        Prompt("t", "go"),
        Bounds(),
        journal,
        Masker(),
        None,
    )
    return asyncio.run(asyncio.wait_for(work, 10)), steps


def test_the_name_that_an_idle_program_gave_its_conversation_is_stored_with_the_first_step() -> None:
    program = Script([out(1, b"id X")], [given(2), out(3, b"say hello"), out(4, b"end")])
    outcome, steps = turn(program)
    assert (outcome.ended.stop_reason, outcome.native_id, program.told) == ("done", "X", ["t"])
    assert steps[0][2] == "X"


def test_what_the_log_tells_before_the_prompt_is_of_no_turn() -> None:
    program = Script([out(1, b"say old"), given(2), out(3, b"say new"), out(4, b"end")], [])
    outcome, _ = turn(program)
    texts = [event.delta for event, _ in outcome.events if isinstance(event, Text)]
    assert (outcome.ended.stop_reason, texts) == ("done", ["new"])


def test_the_keeper_forgets_nothing_that_is_not_stored() -> None:
    """Much of the log that tells nothing."""
    program = Script([], [given(1), *(out(n, QUIET) for n in range(2, 10)), out(10, b"end")])
    outcome, _ = turn(program)
    assert outcome.ended.stop_reason == "done"
    assert program.read > 0


def test_a_program_that_is_gone_when_it_is_spoken_to_ends_the_turn_with_all_that_is_known() -> None:
    program = Script([], [], gone=KeeperGone("it was killed"))
    outcome, steps = turn(program)
    assert outcome.ended.error is not None
    assert outcome.ended.error.code == "program_lost"
    events = [event for step in steps for event in step[0]] + [event for event, _ in outcome.events]
    assert [type(event) for event in events] == [Started]


def test_a_keeper_that_takes_nothing_is_ended_lest_it_gives_the_prompt_later() -> None:
    program = Script([], [], gone=KeeperGone("it takes nothing for 5 s"), stalls=True)
    outcome, _ = turn(program)
    assert outcome.ended.error is not None
    assert outcome.ended.error.code == "program_lost"
    assert (program.killed, outcome.program_alive) == (True, False)


def test_a_program_that_goes_in_the_middle_leaves_what_it_said() -> None:
    program = Script([], [given(1), out(2, b"say all"), Gone(KeeperGone("it was killed"))])
    outcome, steps = turn(program)
    events = [event for step in steps for event in step[0]] + [event for event, _ in outcome.events]
    assert [event.delta for event in events if isinstance(event, Text)] == ["all"]
