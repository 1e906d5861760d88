"""One model call to the provider or gateway, with the attempts that it takes until the first byte of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp

from .failures import Failure, after_attempts, pause_before, refusal, told_in_stream
from .http_client import ERRORS, HttpClient, headers_of, is_lasting, new_client, piece, words_of
from .routes import Route
from .scrub import Scrub, scrubbed
from .wires import Events, Seen, absorb, read_whole

WHOLE_LIMIT = 64 * 1024 * 1024
_ERROR_LIMIT = 256 * 1024
_ERROR_TIMEOUT = 5.0
_CLOSE_TIMEOUT = 1.0


class Cut(Exception):
    """A stream ended before its last event, or fell silent."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass
class Answer:
    """An answer that has begun: whole, or a stream whose first piece is here already. Header names are in small
    letters."""

    response: aiohttp.ClientResponse
    status: int
    headers: Mapping[str, str]
    whole: bytes | None
    seen: Seen
    first: bytes = b""
    events: Events = field(default_factory=Events)
    released: bool = False

    def close(self) -> None:
        """Unless it was released to its `Upstream`."""
        if not self.released:
            self.response.close()


@dataclass(frozen=True)
class Outcome:
    """How the attempts ended. ``doubtful``: one of them broke after the request had gone out, so that it may have
    been answered, and paid, without us seeing it."""

    answer: Answer | None
    failure: Failure | None
    doubtful: bool


class Upstream:
    """Makes model calls. ``patience``: seconds within which further attempts begin; ``silence``: seconds without a
    byte after which a model counts as gone."""

    def __init__(self, *, patience: float, silence: float) -> None:
        self._clients: dict[bool, asyncio.Task[HttpClient]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._patience = patience
        self._silence = silence

    async def client(self, route: Route) -> HttpClient:
        """The client for this route, made when the first call needs it. Raises what keeps it from being made:
        certificates that cannot be read, a proxy that makes no sense."""
        secure = urlsplit(route.base).scheme == "https"
        making = self._clients.get(secure)
        if making is None or (making.done() and making.exception() is not None):
            making = self._clients[secure] = asyncio.create_task(new_client(secure=secure))
        return await asyncio.shield(making)

    async def warm(self, route: Route) -> None:
        """Make the client ahead of the first call, which is told if that fails."""
        with contextlib.suppress(Exception):
            await self.client(route)

    async def aclose(self) -> None:
        for ending in tuple(self._ending):
            ending.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        for made in await asyncio.gather(*self._clients.values(), return_exceptions=True):
            if isinstance(made, HttpClient):
                await made.aclose()

    async def ask(self, route: Route, url: str, headers: Mapping[str, str], content: bytes) -> Outcome:
        """The answer, or the final failure. An `Answer` must be closed."""
        start, attempt, doubtful = time.monotonic(), 0, False
        try:
            client = await self.client(route)
        except Exception as error:
            message = f"No connection to {route.host} can be made from here: {_words(error, route)}"
            return Outcome(None, Failure("model_refused", message), False)
        while True:
            attempt += 1
            try:
                return Outcome(await self._attempt(client, route, url, headers, content), None, doubtful)
            except _Failed as failed:
                doubtful |= failed.doubtful
                failure = failed.failure
            spent = time.monotonic() - start
            pause = pause_before(attempt, failure, spent, self._patience)
            if pause is None:
                return Outcome(None, after_attempts(failure, attempt, spent), doubtful)
            await asyncio.sleep(pause)

    async def _attempt(
        self, client: HttpClient, route: Route, url: str, headers: Mapping[str, str], content: bytes
    ) -> Answer:
        try:
            response = await client.send("POST", url, headers, content, silence=self._silence)
        except (*ERRORS, ValueError) as error:
            raise self._broken(route, error) from None
        try:
            answered = headers_of(response)
            if not 200 <= response.status < 300:
                raise _Failed(refusal(route.host, response.status, answered, await _error_body(response, route)))
            if "text/event-stream" in answered.get("content-type", ""):
                return await self._begin(route, Answer(response, response.status, answered, None, Seen()))
            return await self._whole(route, Answer(response, response.status, answered, None, Seen()))
        except ERRORS as error:
            response.close()
            raise self._broken(route, error, sent=True) from None
        except BaseException:
            response.close()
            raise

    async def _begin(self, route: Route, answer: Answer) -> Answer:
        """Read the first piece, so that a stream which begins with its failure can still be tried again."""
        answer.first = await piece(answer.response, as_cut=True)
        if not answer.first:
            failure = Failure("model_unavailable", f"{route.host} ended its answer before the first byte", again=True)
            raise _Failed(failure, doubtful=True)
        for data in answer.events.feed(answer.first):
            answer.seen = absorb(route.wire, answer.seen, data)
        if answer.seen.error and (failure := told_in_stream(route, answer.seen.error)).again:
            raise _Failed(failure)
        return answer

    async def _whole(self, route: Route, answer: Answer) -> Answer:
        pieces, size = [], 0
        while more := await piece(answer.response):
            pieces.append(more)
            size += len(more)
            if size > WHOLE_LIMIT:
                raise _Failed(
                    Failure("model_refused", f"{route.host} answered more than {WHOLE_LIMIT} bytes"), doubtful=True
                )
        answer.whole = b"".join(pieces)
        seen = read_whole(route.wire, answer.whole)
        if seen is None:
            kind = answer.headers.get("content-type", "none")[:100]
            message = f"{route.host} answered HTTP {answer.status}, but no model answer (content type {kind})"
            raise _Failed(Failure("model_refused", f"{message}: check the model address (api_base)"), doubtful=True)
        answer.seen = seen
        return answer

    async def pieces(self, route: Route, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The pieces of a stream as they come; ``answer.seen`` is always ahead of the piece just given. Raises Cut
        when it ends early."""
        yield answer.first
        try:
            while not answer.seen.whole:
                more = await piece(answer.response)
                if not more:
                    break
                for data in answer.events.feed(more):
                    answer.seen = absorb(route.wire, answer.seen, data)
                yield more
        except aiohttp.SocketTimeoutError:
            raise Cut(self._silent(route)) from None
        except ERRORS as error:
            if not answer.seen.whole:
                raise Cut(_cut(route, _words(error, route))) from None
        if not (answer.seen.whole or answer.seen.stopped or answer.seen.error):
            raise Cut(_cut(route, "no last event came"))

    def release(self, answer: Answer) -> None:
        """Nobody waits for the end of this stream, whose last event has come. It is read in the background, so that
        the connection can be used again."""
        answer.released = True
        if answer.response.closed:  # the end came with the last event
            return
        ending = asyncio.create_task(self._read_out(answer))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _read_out(self, answer: Answer) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                while await piece(answer.response):
                    pass
        except ERRORS:
            pass
        finally:
            answer.response.close()

    def _silent(self, route: Route) -> Failure:
        return Failure("model_silent", f"{route.host} sent nothing for {self._silence:g} s")

    def _broken(self, route: Route, error: Exception, *, sent: bool = False) -> _Failed:
        if isinstance(error, aiohttp.SocketTimeoutError):
            return _Failed(self._silent(route), doubtful=True)
        if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)) and not sent:
            failure = Failure(
                "model_unavailable", f"{route.host} cannot be reached: {_words(error, route)}", again=True
            )
            return _Failed(failure)
        message = f"The connection to {route.host} broke before an answer: {_words(error, route)}"
        return _Failed(Failure("model_unavailable", message, again=not is_lasting(error)), doubtful=True)


class _Failed(Exception):
    def __init__(self, failure: Failure, *, doubtful: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.doubtful = doubtful


def _cut(route: Route, why: str) -> Failure:
    return Failure("model_cut", f"{route.host} broke off in the middle of an answer: {why}", again=True)


def _words(error: Exception, route: Route) -> str:
    return scrubbed(words_of(error), route.key)


async def _error_body(response: aiohttp.ClientResponse, route: Route) -> bytes:
    body, scrub = b"", Scrub(route.key)
    try:
        async with asyncio.timeout(_ERROR_TIMEOUT):
            while more := await piece(response):
                body += scrub.feed(more)
                if len(body) > _ERROR_LIMIT:
                    break
            else:
                body += scrub.rest()
    except ERRORS:
        pass  # the status says enough
    response.close()
    return body
