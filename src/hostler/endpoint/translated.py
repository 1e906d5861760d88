"""One model call of a program whose wire its upstream does not speak."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import httpx

from hostler.types.events import ModelCall
from hostler.types.result import Usage

from .failures import Failure, final_answer
from .forwarding import Client, answer_json
from .scrub import Scrub
from .serving import Send
from .translator import TranslationFailed, Translator
from .wires import read_error, stream_error

_log = logging.getLogger(__name__)


class Translated:
    """The call goes to the translator, which asks the upstream through the endpoint, as a client of its own for the
    time of this call: there it is forwarded, counted and reported like any other."""

    def __init__(
        self,
        client: Client,
        translator: Translator,
        send: Send,
        cut: Callable[[], None],
        *,
        admit: Callable[[str, Client], None],
        dismiss: Callable[[str], None],
        sub_agent: bool = False,
    ) -> None:
        self._client = client
        self._route = client.route
        self._translator = translator
        self._send = send
        self._cut = cut
        self._admit = admit
        self._dismiss = dismiss
        self._sub_agent = sub_agent
        self._token = secrets.token_urlsafe(32)
        self._scrub = Scrub(client.route.key)
        self._began = time.monotonic()
        self._heard: ModelCall | None = None  # how the upstream's last answer to this call ended
        self._started = False
        self.task: asyncio.Task[None] | None = None

    async def run(self, request: dict[str, Any]) -> None:
        """Ask ``request``, which is in the program's wire."""
        upstream = self._route.upstream
        models = frozenset({upstream.model})
        access = Client(
            upstream, self._hear, self._client.tag, models, lambda: None, self._client.ready, translating=True
        )
        self._admit(self._token, access)
        asked = {
            "wire": self._route.asked,
            "upstream": upstream.wire,
            "model": upstream.model,
            "token": self._token,
            "request": request,
        }
        try:
            async with self._translator.ask(asked) as response:
                if response.status_code != 200:
                    await self._failed(read_error(await response.aread())[1])
                elif request.get("stream"):
                    await self._stream(response)
                else:
                    await self._whole(response)
        except TranslationFailed as error:
            await self._failed(str(error), "model_unavailable")
        except httpx.HTTPError:
            self._broken()
        finally:
            self._dismiss(self._token)

    def abandon(self) -> None:
        """Report the call as it stands, because nobody waits for its end any more."""
        self._dismiss(self._token)

    def _hear(self, call: ModelCall) -> None:
        self._heard = call
        self._client.on_call(replace(call, sub_agent=self._sub_agent))

    # ---- answers

    async def _whole(self, response: httpx.Response) -> None:
        body = await response.aread()
        if self._heard is None or self._heard.status != "ok":
            await self._failed("the translator ended early")
            return
        await self._start("application/json")
        await self._write(self._scrub.all(body), more=False)
        self._client.note_whole()

    async def _stream(self, response: httpx.Response) -> None:
        whole = True
        try:
            async for piece in response.aiter_raw():
                if self._heard is not None and self._heard.status != "ok":
                    break  # LiteLLM may make an end of a broken answer
                await self._start("text/event-stream")
                await self._write(self._scrub.feed(piece))
        except httpx.HTTPError:
            whole = False
        heard = self._heard
        if not self._started and (heard is None or heard.status != "ok"):
            await self._failed("the translator ended early")
        elif heard is not None and heard.status == "refused" and heard.error is not None:
            _, body = final_answer(self._route.asked, Failure(heard.error.code, heard.error.message, 400))
            await self._write(self._scrub.rest() + stream_error(self._route.asked, body), more=False)
        elif heard is not None and heard.status == "ok" and whole:
            await self._start("text/event-stream")
            await self._write(self._scrub.rest(), more=False)
            self._client.note_whole()
        else:
            self._broken()

    async def _start(self, kind: str) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", kind.encode())]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if data or not more:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    # ---- failures

    def _broken(self) -> None:
        """The program is to ask again: its connection is cut, as the upstream's or the translator's was."""
        self._dismiss(self._token)  # a call that is still under way ends here, and is heard of
        failure = Failure("model_cut", f"The translation of an answer of {self._route.host} broke off")
        if self._heard is None:
            self._report(failure, "cut")
        if self._heard is not None and self._heard.error is not None:
            failure = Failure(self._heard.error.code, self._heard.error.message)
        self._client.note_broken(failure, self._began)
        self._cut()

    async def _failed(self, why: str, code: str = "model_refused") -> None:
        """Nothing has been given to the program: it is told the upstream's failure, or that of the translation."""
        self._dismiss(self._token)
        heard = self._heard
        if heard is not None and heard.status == "cut":
            self._broken()
            return
        if heard is not None and heard.error is not None:
            failure = Failure(heard.error.code, heard.error.message, heard.http_status)
        else:
            what = "request for" if heard is None else "answer of"
            why = self._scrub.all(why.encode()).decode()
            status = 400 if code == "model_refused" else None
            failure = Failure(code, f"The {what} {self._route.host} could not be translated: {why}", status)
        if heard is None:
            self._report(failure, "refused")
        http_status, body = final_answer(self._route.asked, failure)
        await answer_json(self._send, http_status, body, {"x-should-retry": "false"})

    def _report(self, failure: Failure, status: Literal["refused", "cut"]) -> None:
        """Of a call that came to nothing before the upstream was asked."""
        call = ModelCall(self._route.model, Usage(), 0.0, status, None, failure.info)
        try:
            self._hear(call)
        except Exception:
            _log.exception("A model call could not be reported to its session; the call is cut.")
            self._cut()
