"""The app's tools in one session: what its rules make of a call, who is asked, what is kept of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection

from ..progress import HOST_ASKS
from ..running import Running
from ..store import tool_calls
from ..store.queries import Lease
from ..telemetry.redaction import Masker
from ..types.errors import HarnessError
from ..types.events import Approval, CallbackFailed
from ..types.questions import QUESTION
from ..types.rules import choose
from ..types.tools import ToolAnswer, ToolCallAsked, ToolContext, Verdict
from ..workspace.artifacts import FOLDER

if TYPE_CHECKING:
    from ..faces import Artifacts, Files
    from ..toolserver import HostTool, Now, ToolServer
    from .live import LiveSession

Reach: TypeAlias = "Callable[[LiveSession], tuple[Files, Artifacts]]"
_RESULTS = f"{FOLDER}/tool-results"
_LOOK = 0.1  # s between looks at a call that another process runs
_BEGINS = 10.0  # s in which a turn that has a program has given it the prompt


@dataclass(frozen=True, slots=True)
class _Turn:
    running: Running
    lease: Lease
    rules: Mapping[str, Any]
    extra_body: Any
    loop: asyncio.AbstractEventLoop | None
    asks: bool  # somebody can answer a question
    over: asyncio.Event = field(default_factory=asyncio.Event)


class SessionTools:
    """The desk (see `hostler.toolserver.Desk`) of one session's tool server, which is made when there are tools.
    ``reach`` gives the session's files and artifacts as a tool is to have them."""

    def __init__(self, live: LiveSession, reach: Reach) -> None:
        self._live = live
        self._reach = reach
        self._turn: _Turn | None = None
        self._masker = Masker()
        self._called = False
        self.server: ToolServer | None = None
        self._own: tuple[HostTool, ...] = ()

    def offer(self, tools: tuple[HostTool, ...]) -> None:
        """The tools of the app that the session has from now on."""
        self._own = tools
        if self.server is not None or tools:
            self._serve(tools)

    def _serve(self, tools: tuple[HostTool, ...]) -> None:
        from ..toolserver import ToolServer, question_tool  # slow to import, and most sessions have no tools

        if self._live.runtime.capabilities.questions == "tool" and QUESTION not in {tool.name for tool in tools}:
            tools = (*tools, question_tool())
        if self.server is not None:
            self.server.offer(tools)
        else:
            objects = self._live.runtime.capabilities.wants_objects
            self.server = ToolServer(tools, self, timeout=self._live.host.settings.tool_timeout, objects=objects)

    def digest(self, asks: bool) -> str | None:
        """Changes when the program would have to be told of other tools in a turn in which somebody can be asked, or
        nobody; None when it has none then."""
        asks = asks and self._live.runtime.capabilities.questions == "tool"
        if not self._own and not asks:
            return None
        from ..toolserver import digest

        if self.server is None:
            self._serve(self._own)
        return digest(self._own) + ("?" if asks else "")

    @property
    def names(self) -> frozenset[str]:
        return self.server.names if self.server is not None else frozenset()

    def begin_turn(
        self,
        running: Running,
        lease: Lease,
        rules: Mapping[str, Any],
        extra_body: Any,
        loop: asyncio.AbstractEventLoop | None,
        masker: Masker,
        *,
        asks: bool,
    ) -> None:
        """Calls that come from now on belong to this turn."""
        self._turn = _Turn(running, lease, rules, extra_body, loop, asks)
        self._masker = masker
        self._called = bool(running.events)  # by a host before us, maybe

    def end_turn(self) -> None:
        """The turn is over, and so is what it still called."""
        if self._turn is not None:
            self._turn.over.set()
            self._turn.running.drop_questions()
            self._turn = None

    def forget_calls(self, conn: Connection, turn: str) -> None:
        """With the turn's end: none of its calls can come again."""
        if self._called:
            tool_calls.forget(conn, self._live.id, turn)

    # ---- the desk ---------------------------------------------------------------------------------------------------

    async def now(self, frame: int | None) -> Now | None:
        from ..toolserver import Now

        turn = self._turn
        if turn is None:
            return None
        running = turn.running
        if frame is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.told.wait(), _BEGINS)
            if frame <= running.begun or not running.begun:
                return None  # of a turn that is over: the host that had it has died before it could answer
        if self._live.running is not running or self._turn is not turn:
            return None
        return Now(turn.running.turn, turn.running.stopping, turn.over, turn.loop)

    def shows(self, tool: str) -> bool:
        rules = self._turn.rules if self._turn is not None else self._live.rules
        if self._asks(tool) and not (self._turn is not None and self._turn.asks):
            return False
        return choose(rules, tool) != "deny"

    def _asks(self, tool: str) -> bool:
        """Whether it is no tool of the app but the one that puts questions."""
        return tool == QUESTION and all(own.name != QUESTION for own in self._own)

    def context(self, call: ToolCallAsked, cancel: threading.Event) -> ToolContext:
        assert self._turn is not None
        files, artifacts = self._reach(self._live)
        return ToolContext(self._live.key, call.turn, call.call, files, artifacts, self._turn.extra_body, cancel)

    async def permit(self, call: ToolCallAsked) -> Verdict:
        assert self._turn is not None
        if self._asks(call.tool):
            return await self._put_questions(call, self._turn)
        match choose(self._turn.rules, call.tool, call.about):
            case "deny":
                return Verdict(False)
            case "ask":
                question = Approval(f"{HOST_ASKS}{call.key[:16]}", call.tool, dict(call.input))
                answered = await self._turn.running.ask(question)
                return Verdict(answered.allow, answered.reason)
        return Verdict(True)

    async def _put_questions(self, call: ToolCallAsked, turn: _Turn) -> Verdict:
        from ..toolserver import asked, told

        if not turn.asks or choose(turn.rules, call.tool) == "deny":
            return Verdict(False, "Nobody is there to be asked.")
        questions = asked(call.input)
        shown = {"questions": [question.to_dict() for question in questions]}
        answered = await turn.running.ask(Approval(f"{HOST_ASKS}{call.key[:16]}", QUESTION, shown))
        return Verdict(True, answer=told(questions, answered.answers, answered.reason))

    async def begin(self, call: ToolCallAsked) -> ToolAnswer | None:
        from ..toolserver import OUTCOME_UNKNOWN

        host, id, turn = self._live.host, self._live.id, self._turn
        if turn is None:
            return ToolAnswer("The turn has ended.", is_error=True)
        self._called = True
        until = monotonic() + host.settings.tool_timeout
        try:
            found = await host.store.write(lambda conn: tool_calls.begin(conn, turn.lease, call, host.is_dead))
            if found is None:
                if (task := asyncio.current_task()) is not None:
                    host.tool_calls[id, call.key] = task
                    task.add_done_callback(lambda _: host.tool_calls.pop((id, call.key), None))
                return None
            while found is not None and found.answer is None:  # its host lives, but no longer has the session
                ours = host.tool_calls.get((id, call.key))
                if not found.alive or (found.host == host.id and ours is None) or monotonic() > until:
                    return OUTCOME_UNKNOWN
                await asyncio.sleep(_LOOK)
                found = await host.store.read(lambda conn: tool_calls.find(conn, id, call.key, host.is_dead))
        except HarnessError as error:
            return ToolAnswer(f"The call could not be journalled, and was not made: {error}", is_error=True)
        return OUTCOME_UNKNOWN if found is None else found.answer

    async def finish(self, call: ToolCallAsked, answer: ToolAnswer) -> ToolAnswer:
        host, id = self._live.host, self._live.id
        answer = self._masker.mask(answer)
        try:
            await host.store.write(lambda conn: tool_calls.finish(conn, id, host.id, call.key, answer))
        except HarnessError:
            pass  # the model is told; whoever is asked again says that the outcome is unknown
        return answer

    async def put(self, call: ToolCallAsked, data: bytes, ext: str) -> str:
        live = self._live
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", call.call).lstrip(".")[:80] or call.key
        path = f"{_RESULTS}/{call.tool}/{name}.{ext}"
        if ext in ("txt", "json"):
            data = self._masker.mask(data.decode()).encode()
        root, inner = live.roots.resolve(path)
        await asyncio.to_thread(root.write, inner, data)
        return path if live.names is None else live.names.real(live.roots.virtual(path))

    def failed(self, failure: CallbackFailed) -> None:
        running = self._live.running
        if running is not None and running.program is not None:
            running.program.put(failure)
