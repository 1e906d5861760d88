"""One model call of a program: forwarded, counted, and reported before the program sees its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from hostler.types.events import ModelCall
from hostler.types.result import Usage

from . import price
from .failures import Failure, final_answer, told_in_stream
from .routes import Route, WireName
from .scrub import Scrub
from .serving import Send
from .upstream import Answer, Cut, Upstream
from .wires import Seen

CUTS = 3  # in a row, then the next call is refused
LONG_WAIT = 5.0  # seconds that a program has spent waiting between broken calls: then two are enough
REFUSAL_TTL = 60.0  # seconds: a program that does not come back within them is in another turn
_PRICE_TIMEOUT = 2.0
_RESPONSE_HEADERS = ("content-type", "request-id", "x-request-id", "cache-control")
_log = logging.getLogger(__name__)


class Call(Protocol):
    """A model call under way."""

    task: asyncio.Task[None] | None

    def abandon(self) -> None:
        """Report it as it stands."""


@dataclass(eq=False)
class Client:
    """A session's access to its model: what was opened for a token, and how its last calls went. ``translating``: it
    is that of a translation, which asks OpenAI in either of its wires, as the model demands."""

    route: Route
    on_call: Callable[[ModelCall], None]
    tag: Mapping[str, str]
    models: frozenset[str]
    budget: Callable[[], str | None]
    ready: Callable[[], Awaitable[None]] | None = None
    admit: Callable[[bool], Awaitable[str | None] | None] = lambda sub_agent: None
    sub_agent_header: str | None = None
    calls: set[Call] = field(default_factory=set)
    broken: Failure | None = None
    cuts: int = 0
    cut_at: float = 0.0
    waited: float = 0.0
    translating: bool = False

    def asking(self, wire: WireName) -> Client | None:
        """This client for a call in ``wire``, or None when it may not ask in it."""
        if wire == self.route.asked:
            return self
        if self.translating and {wire, self.route.wire} == {"chat", "responses"}:
            return replace(self, route=replace(self.route, wire=wire))
        return None

    def note_broken(self, failure: Failure, began: float) -> None:
        """Count a stream that ended early. Streams that ran side by side and broke together count once."""
        if began >= self.cut_at:
            self.cuts += 1
        self.cut_at, self.broken = time.monotonic(), failure

    def note_whole(self) -> None:
        self.broken, self.cuts, self.waited = None, 0, 0.0

    def take_refusal(self) -> Failure | None:
        """The failure that a call which begins now is refused with, once: after silence, or too many cuts."""
        broken, pause = self.broken, time.monotonic() - self.cut_at
        if broken is None:
            return None
        if pause > REFUSAL_TTL:
            self.note_whole()
            return None
        self.waited += pause
        enough = self.cuts >= CUTS or (self.cuts > 1 and self.waited > LONG_WAIT)
        if not enough and broken.code != "model_silent":
            return None
        times = f", {self.cuts} times in a row" if self.cuts > 1 else ""
        self.note_whole()
        return Failure(broken.code, broken.message + times)


class Forward:
    """One model call on its way. ``cut`` closes the connection to the program."""

    def __init__(
        self, client: Client, upstream: Upstream, send: Send, cut: Callable[[], None], *, sub_agent: bool = False
    ) -> None:
        self._client = client
        self._sub_agent = sub_agent
        self._route = client.route
        self._upstream = upstream
        self._send = send
        self._cut = cut
        self._scrub = Scrub(client.route.key)
        self._began = time.monotonic()
        self._reported = False
        self._doubtful = False
        self._answer: Answer | None = None
        self._prices: asyncio.Task[None] | None = None
        self.task: asyncio.Task[None] | None = None

    async def run(self, url: str, headers: Mapping[str, str], content: bytes, *, counted: bool = True) -> None:
        """Forward the call. ``counted`` is False for a question that no model answers (counting tokens)."""
        self._reported = not counted
        try:
            outcome = await self._upstream.ask(self._route, url, headers, content)
            self._doubtful = outcome.doubtful
            if outcome.answer is None:
                assert outcome.failure is not None
                silent = outcome.failure.code == "model_silent"
                await self._fail("silent" if silent else "refused", outcome.failure)
                return
            self._answer = outcome.answer
            if counted and not price.loaded(self._route):  # the lists take a while to import: beside the answer
                self._prices = asyncio.create_task(price.load(self._route, self._upstream.client))
            if self._client.ready is not None:
                await self._client.ready()
            try:
                await (self._stream(outcome.answer) if outcome.answer.whole is None else self._whole(outcome.answer))
            finally:
                outcome.answer.close()
        finally:
            self.abandon()  # a call that was cancelled before its end
            if self._prices is not None:
                self._prices.cancel()

    async def refuse(self, failure: Failure) -> None:
        """Answer, without asking the model, with an error that the program does not repeat."""
        await self._fail("refused", failure, asked=False)

    async def _fail(self, status: Literal["refused", "silent"], failure: Failure, *, asked: bool = True) -> None:
        self._report(status, Seen(), failure, asked=asked)
        code, body = final_answer(self._route.asked, failure)
        await answer_json(self._send, code, body, {"x-should-retry": "false"})

    def abandon(self) -> None:
        """Report the call as it stands, because nobody waits for its end any more."""
        self._report("cut", self._answer.seen if self._answer else Seen(), None)

    # ---- answers

    async def _whole(self, answer: Answer) -> None:
        assert answer.whole is not None
        await self._report_answer(answer)
        await self._start(answer)
        await self._write(self._scrub.all(answer.whole), more=False)

    async def _stream(self, answer: Answer) -> None:
        try:
            await self._start(answer)
            async with contextlib.aclosing(self._upstream.pieces(self._route, answer)) as pieces:
                async for piece in pieces:
                    if answer.seen.whole:
                        await self._report_answer(answer)
                    await self._write(self._scrub.feed(piece))
                    if answer.seen.error is not None:
                        await self._stream_failed(answer)
                        return
        except Cut as cut:
            self._broken(cut.failure)
            return
        await self._report_answer(answer)
        self._upstream.release(answer)
        await self._write(self._scrub.rest(), more=False)

    async def _stream_failed(self, answer: Answer) -> None:
        """The provider told an error in the stream and the program has it: broken off, or refused for good."""
        assert answer.seen.error is not None
        failure = told_in_stream(self._route, answer.seen.error)
        if failure.again:
            self._broken(Failure("model_cut", failure.message))
        else:
            self._report("refused", answer.seen, failure)
            answer.close()
            await self._write(self._scrub.rest(), more=False)

    def _broken(self, failure: Failure) -> None:
        assert self._answer is not None
        self._client.note_broken(failure, self._began)
        self._report("silent" if failure.code == "model_silent" else "cut", self._answer.seen, failure)
        self._cut()

    async def _start(self, answer: Answer) -> None:
        given = answer.headers
        headers = [(n, self._scrub.all(given[n].encode())) for n in _RESPONSE_HEADERS if n in given]
        raw = [(n.encode(), v) for n, v in headers]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": raw})

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if data or not more:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    # ---- the report

    async def _report_answer(self, answer: Answer) -> None:
        if self._reported:
            return
        if self._prices is not None:
            await asyncio.wait([self._prices], timeout=_PRICE_TIMEOUT)
        self._client.note_whole()
        self._report("ok", answer.seen, None)

    def _report(
        self,
        status: Literal["ok", "refused", "cut", "silent"],
        seen: Seen,
        failure: Failure | None,
        *,
        asked: bool = True,
    ) -> None:
        """Tell the session, once. A call that may have run unseen has an unknown cost, a refused one has none; one that
        was never ``asked`` is no call of the provider's."""
        if self._reported:
            return
        self._reported = True
        tokens = seen.tokens
        complete = status == "ok" and tokens.known and not self._doubtful
        usage = Usage(tokens.input or 0, tokens.output or 0, tokens.cache_read, 1, partial=not complete)
        if not asked:
            usage = Usage()
        cost: float | None = None
        if status == "ok" and not self._doubtful and self._answer is not None:
            cost = price.cost(self._route, seen, self._answer.headers)
        elif status == "refused" and not self._doubtful and self._answer is None:
            cost = 0.0
        http_status = self._answer.status if self._answer else failure.status if failure else None
        error = failure.info if failure else None
        call = ModelCall(self._route.model, usage, cost, status, http_status, error, self._sub_agent)
        try:
            self._client.on_call(call)
        except Exception:
            _log.exception("A model call could not be reported to its session; the call is cut.")
            self._cut()


async def answer_json(send: Send, status: int, body: bytes | dict[str, Any], headers: Mapping[str, str] = {}) -> None:
    """A whole JSON answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"content-type": "application/json", "content-length": str(len(data)), **headers}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": data})
