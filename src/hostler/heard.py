"""What a turn has heard of its program, and said to it, since its last step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from . import outcome as endings
from .progress import Item, Progress, advance
from .steps import Step
from .store.journal import Journalled
from .types.events import Answered
from .types.runtime import Answer, Codec, Ended, Frame, Send

_UNREAD = 1 << 18  # bytes of the program's log that may wait to be stored or acknowledged
_FRAME = 16  # bytes that a frame takes beside its data


@dataclass(slots=True)
class Heard:
    """Takes item after item; `step` gives what they come to. ``events`` are as the codec gave them: whoever takes them out
    masks them. ``required``: MCP servers without which there is no turn, of those that are ``missing``; ``spoke``: the program
    has said something, in this turn or before; ``unread`` bytes of its log are not acknowledged yet."""

    codec: Codec
    progress: Progress
    required: frozenset[str]
    events: list[Journalled]
    sends: list[Send] = field(default_factory=list)
    native_id: str | None = None
    missing: frozenset[str] = frozenset()
    spoke: bool = False
    unread: int = 0

    def take(self, item: Item) -> Ended | None:
        """One more item; how the turn ends with it, if it does."""
        step = advance(self.codec, self.progress, item)
        self.progress = step.progress
        self.events += step.events
        self.sends += step.sends
        self.native_id = step.native_id or self.native_id
        self.missing |= step.missing
        if isinstance(item, Frame):
            self.spoke = self.spoke or item.kind == "out"
            self.unread += len(item.data) + _FRAME
        elif isinstance(item, Answer):
            answers = dict(item.answers) if item.answers else None
            self.events.append((Answered(item.id, item.allow, item.reason, answers), None))
        if step.unfit is not None:
            return endings.unfit(step.unfit)
        if lacking := self.required & self.missing:
            return endings.without_server(lacking)
        return step.end

    def stop(self, reason: str) -> None:
        """The turn is to end."""
        self.progress = replace(self.progress, stop=reason)

    @property
    def due(self) -> bool:
        """Whether the keeper has to hear how far its log is read."""
        return self.unread >= _UNREAD

    def step(self, told: list[Journalled]) -> Step:
        """What all items since the last step have come to, with the events as they are told."""
        step = Step(self.progress, tuple(told), tuple(self.sends), self.native_id, self.due)
        self.sends, self.native_id = [], None
        return step
