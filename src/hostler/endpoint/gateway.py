"""The door of the model gateway: a UNIX socket, tokens, and what a program may ask for."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hostler.types.events import ModelCall

from . import bodies
from .failures import Failure, final_answer
from .forwarding import Call, Client, Forward, answer_json
from .google import COUNTS, asked, told_once
from .routes import Route, WireName
from .serving import CUT, PEER, App, Receive, Scope, Send, Serving, listen_private, serve, while_connected
from .translated import Translated
from .translation import Untranslatable, translatable
from .translator import Translator
from .upstream import Upstream
from .wires import PATHS, pin, write_error

_log = logging.getLogger(__name__)
TOOLS_PATH = "/hostler/tools"
COUNT_PATH = "/v1/messages/count_tokens"
MODELS_PATH = "/v1/models"
BODY_LIMIT = 64 * 1024 * 1024
IN_FLIGHT = 50
_BODY_TIMEOUT = 60.0
_PATIENCE = 8.0
_TRANSLATION = 30.0
_REQUEST_HEADERS = frozenset(
    {"accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta"}
)


def silence_limit() -> float:
    """Seconds without a byte after which a model counts as gone: ``HOSTLER_MODEL_SILENCE``, default 300."""
    try:
        seconds = float(os.environ.get("HOSTLER_MODEL_SILENCE", ""))
    except ValueError:
        return 300.0
    return seconds if 0 < seconds < float("inf") else 300.0


class Endpoint:
    """The model gateway of this process's sessions, on the loop that `start` runs on.

    ``patience`` is how many seconds a failed call is tried again before the program is told, ``silence`` how long a
    model may say nothing.
    """

    def __init__(self, *, patience: float = _PATIENCE, silence: float | None = None) -> None:
        self.socket_path = ""
        self._patience = patience
        self._silence = silence
        self._clients: dict[str, Client] = {}
        self._tools: dict[str, tuple[App, int | None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._upstream: Upstream | None = None
        self._translator: Translator | None = None
        self._serving: Serving | None = None

    # ---- what the host calls

    async def start(self, directory: str) -> None:
        """Serve on ``<directory>/endpoint.sock``; the directory is made private to this user."""
        os.makedirs(directory, mode=0o700, exist_ok=True)
        os.chmod(directory, 0o700)
        path = os.path.join(directory, "endpoint.sock")
        listener = listen_private(path)
        silence = silence_limit() if self._silence is None else self._silence
        self._upstream = Upstream(patience=self._patience, silence=silence)
        # one attempt may begin at the end of the patience, and be silent
        self._translator = Translator(directory, path, patience=self._patience + silence + _TRANSLATION)
        self._serving = await serve(self._app, listener)
        self.socket_path = path

    def open(
        self,
        token: str,
        route: Route,
        *,
        on_call: Callable[[ModelCall], None],
        tag: Mapping[str, str] = {},
        models: frozenset[str] = frozenset(),
        budget: Callable[[], str | None] = lambda: None,
        ready: Callable[[], Awaitable[None]] | None = None,
        admit: Callable[[bool], Awaitable[str | None] | None] = lambda sub_agent: None,
        sub_agent_header: str | None = None,
    ) -> None:
        """Let ``token`` ask for ``route.model`` (also under the names in ``models``), from now on and with what is
        given now; opening it again begins a new turn.

        ``on_call`` gets each call before the end of its answer goes to the program; it must not block. ``tag`` is
        told to a gateway as spend metadata. ``budget`` gives the reason why no more calls are made, or None. ``ready`` is waited for before the
        program is given any of an answer. ``admit`` gives None for a call that may go out at once, else what is waited for
        before, which gives the reason when it may not; it is told whether the call has the ``sub_agent_header``.
        """
        client = Client(route, on_call, dict(tag), models | {route.model}, budget, ready, admit, sub_agent_header)
        if (before := self._clients.get(token)) is not None:
            client.calls = before.calls
        self._clients[token] = client
        if self._upstream is not None:
            self._spawn(self._upstream.warm(route))
        if self._translator is not None and route.program is not None:
            self._spawn(self._translator.warm())

    def close_token(self, token: str) -> None:
        """Forget a token, of a session or of its tools; calls under way are reported as they stand, and end."""
        self._tools.pop(token, None)
        if (client := self._clients.pop(token, None)) is not None:
            for call in list(client.calls):
                call.abandon()
                if call.task is not None:
                    call.task.cancel()

    def mount_tools(self, token: str, app: App, peer: int | None = None) -> None:
        """Serve an ASGI app under /hostler/tools (its ``root_path``) for whoever shows ``token``, and comes through the
        process ``peer`` when that is given: a token is worth nothing at another session's address."""
        self._tools[token] = app, peer

    async def aclose(self) -> None:
        """End all calls and stop serving."""
        for token in [*self._clients, *self._tools]:
            self.close_token(token)
        if self._serving is not None:
            await self._serving.aclose()
            self._serving = None
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._translator is not None:
            await self._translator.aclose()
            self._translator = None
        if self._upstream is not None:
            await self._upstream.aclose()
            self._upstream = None
        if self.socket_path:
            try:
                os.unlink(self.socket_path)
            except FileNotFoundError:
                pass

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ---- requests

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._route_request(scope, receive, send)
        except Exception:
            _log.exception("A request to the model endpoint failed.")
            scope[CUT]()

    async def _route_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path, method = scope["path"], scope["method"]
        if path == TOOLS_PATH or path.startswith(TOOLS_PATH + "/"):
            await self._serve_tools(scope, receive, send, headers)
            return
        body = await _read(receive)
        wire = _wire_of(path) or ("anthropic" if "anthropic-version" in headers else "chat")
        client = self._clients.get(_token(headers))
        if client is None:
            await _refuse(send, wire, 401, "authentication_error", "This token is not one of an open session.")
        elif method == "GET" and path == MODELS_PATH:
            await answer_json(send, 200, _models(client))
        elif method == "POST" and _wire_of(path) is not None:
            await self._model(client, scope, receive, send, headers, body)
        else:
            await _refuse(send, wire, 404, "not_found_error", f"{method} {path} is not forwarded to the model.")

    async def _serve_tools(self, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str]) -> None:
        app, peer = self._tools.get(_token({"authorization": headers.get("authorization", "")}), (None, None))
        if app is None or (peer is not None and scope.get(PEER) not in (None, peer)):
            await _read(receive)
            await _refuse(
                send, "chat", 401, "authentication_error", "This token is not one of an open session's tools."
            )
            return
        await app({**scope, "root_path": scope.get("root_path", "") + TOOLS_PATH}, receive, send)

    async def _model(
        self,
        client: Client,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Mapping[str, str],
        raw: bytes | None,
    ) -> None:
        path = scope["path"]
        wire, google = _wire_of(path) or "chat", asked(path)
        counting = path == COUNT_PATH or (google is not None and google.method == COUNTS)
        asking = client.asking(wire)
        if asking is None or (counting and asking.route.program is not None):
            await _refuse(send, wire, 404, "not_found_error", f"The model of this session is not asked at {path}.")
            return
        client, route = asking, asking.route
        if raw is None:
            await _refuse(send, wire, 413, "request_too_large", f"A request may have {BODY_LIMIT} bytes.")
            return
        body = bodies.read(raw)
        if body is None:
            await _refuse(send, wire, 400, "invalid_request_error", "The request is not a JSON object.")
            return
        model = (google.model if google is not None else str(body.fields.get("model")))[:200]
        if model not in client.models:
            names = ", ".join(sorted(client.models))
            await _refuse(send, wire, 403, "permission_error", f"This session may ask for {names}, not for {model}.")
            return
        if len(client.calls) >= IN_FLIGHT:
            message = f"This session has {IN_FLIGHT} model calls under way."
            await answer_json(send, 429, write_error(wire, "rate_limit_error", message), {"retry-after": "1"})
            return
        assert self._upstream is not None
        sub_agent = client.sub_agent_header is not None and client.sub_agent_header in headers
        forward = Forward(client, self._upstream, send, scope[CUT], sub_agent=sub_agent)
        reason = client.budget()
        if reason is None and not counting and (waiting := client.admit(sub_agent)) is not None:
            admitting = asyncio.ensure_future(waiting)
            await while_connected(admitting, receive)
            if admitting.cancelled():
                return  # nobody waits for it any more
            reason = admitting.result()
        if reason is not None:
            status, answer = final_answer(
                wire, Failure("turn_ended", f"No more model calls in this turn: {reason}", 409)
            )
            await answer_json(send, status, answer, {"x-should-retry": "false"})
            return
        if not counting and (refusal := client.take_refusal()) is not None:
            await forward.refuse(refusal)
            return
        call: Call = forward
        if route.program is not None:
            call = translated = self._translated(client, scope, send, sub_agent)
            try:
                call.task = asyncio.create_task(translated.run(translatable(wire, body.fields)))
            except Untranslatable as error:
                await forward.refuse(Failure("model_refused", f"The request is no {wire} request: {error}", 400))
                return
        else:
            url = route.url_for(google.method) if google is not None else route.url
            url += "/count_tokens" if path == COUNT_PATH else ""
            if wire == "anthropic" and scope["query_string"] == b"beta=true":
                url += "?beta=true"
            sent_body = pin(body.fields, route.model, wire, gateway=route.gateway)
            if client.translating and wire == "responses":
                sent_body["store"] = False  # the program did not ask to have its conversation kept there
            if google is not None:
                sent_body = told_once(sent_body)
            content = body.written(sent_body)
            sent = _sent_headers(client, headers)
            call.task = asyncio.create_task(forward.run(url, sent, content, counted=not counting))
        client.calls.add(call)
        try:
            await while_connected(call.task, receive)
        finally:
            client.calls.discard(call)
        if call.task.cancelled():  # its token was closed
            scope[CUT]()

    def _translated(self, client: Client, scope: Scope, send: Send, sub_agent: bool) -> Translated:
        assert self._translator is not None
        return Translated(
            client,
            self._translator,
            send,
            scope[CUT],
            admit=self._clients.__setitem__,
            dismiss=self.close_token,
            sub_agent=sub_agent,
        )


async def _read(receive: Receive) -> bytes | None:
    """The whole request body, or None when it is too large. It is read to its end in any case: a client that is
    still writing would not see the answer."""
    pieces, size = [], 0
    async with asyncio.timeout(_BODY_TIMEOUT):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b""
            size += len(message.get("body", b""))
            if size <= BODY_LIMIT:
                pieces.append(message.get("body", b""))
            else:
                pieces.clear()
            if not message.get("more_body"):
                return b"".join(pieces) if size <= BODY_LIMIT else None


def _wire_of(path: str) -> WireName | None:
    """The wire in which this path is asked; None for no model's."""
    if path == COUNT_PATH:
        return "anthropic"
    return PATHS.get(path) or ("gemini" if asked(path) is not None else None)


def _token(headers: Mapping[str, str]) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    return headers.get("x-api-key") or headers.get("x-goog-api-key", "")


def _sent_headers(client: Client, given: Mapping[str, str]) -> dict[str, str]:
    """The headers that go upstream: the program's harmless ones, hostler's credentials, the session's tags."""
    headers = {name: value for name, value in given.items() if name in _REQUEST_HEADERS}
    headers["accept-encoding"] = "identity"
    headers.update(client.route.credentials())
    if client.route.gateway and client.tag:
        headers["x-litellm-spend-logs-metadata"] = json.dumps(dict(client.tag))
        headers["x-litellm-tags"] = ",".join(f"{k}:{v}" for k, v in client.tag.items() if _plain(k + v))
    return headers


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and "," not in text


def _models(client: Client) -> dict[str, Any]:
    names = sorted(client.models)
    data = [
        {"id": n, "object": "model", "type": "model", "display_name": n, "created": 0, "owned_by": "hostler"}
        for n in names
    ]
    return {"object": "list", "data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}


async def _refuse(send: Send, wire: WireName, status: int, kind: str, message: str) -> None:
    await answer_json(send, status, write_error(wire, kind, message), {"x-should-retry": "false"})
