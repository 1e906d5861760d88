"""A desk in memory, for tool servers without a session."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

from hostler.toolserver import Now
from hostler.types.events import CallbackFailed
from hostler.types.tools import ToolAnswer, ToolCallAsked, ToolContext, Verdict


@dataclass
class MemoryDesk:
    """Permits everything but what ``verdict`` says, and remembers calls as a store does."""

    loop: Any = None
    turn: str | None = "t1"
    verdict: Any = None  # an async function of the call
    hidden: set[str] = field(default_factory=set)
    failures: list[CallbackFailed] = field(default_factory=list)
    begun: dict[str, ToolAnswer | None] = field(default_factory=dict)
    calls: list[ToolCallAsked] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    full: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def now(self, frame: int | None) -> Now | None:
        return None if self.turn is None else Now(self.turn, self.stopping, self.over, self.loop)

    def shows(self, tool: str) -> bool:
        return tool not in self.hidden

    def context(self, call: ToolCallAsked, cancel: threading.Event) -> ToolContext:
        nothing: Any = None
        return ToolContext("key", call.turn, call.call, nothing, nothing, {"user": 7}, cancel)

    async def permit(self, call: ToolCallAsked) -> Verdict:
        self.calls.append(call)
        return Verdict(True) if self.verdict is None else await self.verdict(call)

    async def begin(self, call: ToolCallAsked) -> ToolAnswer | None:
        if call.key in self.begun:
            return self.begun[call.key] or ToolAnswer("unknown", is_error=True)
        self.begun[call.key] = None
        return None

    async def finish(self, call: ToolCallAsked, answer: ToolAnswer) -> ToolAnswer:
        self.begun[call.key] = answer
        return answer

    async def put(self, call: ToolCallAsked, data: bytes, ext: str) -> str:
        if self.full:
            raise OSError(28, "No space left on device")
        path = f"/artifacts/tool-results/{call.tool}/{call.call}.{ext}"
        self.files[path] = data
        return path

    def failed(self, failure: CallbackFailed) -> None:
        self.failures.append(failure)
