"""A scripted model server: real agent programs run against it, and every answer is known beforehand.

It speaks Anthropic Messages, OpenAI Responses, Chat Completions and Google's generateContent. The prompt carries the script: the last user
message with ``@@<json>@@`` in it, where the JSON is one step or a list of steps (one for each model call; a step
without tool calls ends the turn). ``server.script([...])`` queues steps that win over the prompt's. A step has

====================  ===============================================================================================
``text``              the final text
``think``             reasoning before the rest
``shell``             call the program's own shell tool with this command
``tool``, ``args``    call this tool (``namespace``, ``custom`` for Codex)
``tools``             a list of ``{"shell": ...}`` and ``{"tool": ..., "args": ...}`` called in parallel
``chunks``            number of pieces of the text, ``chunk_delay`` seconds between them
``delay``             seconds before the first byte
``hang``              seconds of silence in mid-stream
``drop``              true: cut the connection in mid-stream, ``"before"``: before the first byte
``truncate``          true: end the stream properly, but in the middle
``stream_error``      an error of this type as an event in mid-stream
``error``             HTTP status, with ``type``, ``message``, ``retry_after``
``usage``             tokens: ``input`` (cached included), ``output``, ``cached``, or the wire's own object as it is
``headers``           further response headers
====================  ===============================================================================================

Without a script the answer is ``ANSWER users=<n> memo=<every CODEWORD-xxx in the conversation>``, which shows what
the model was told: a session that remembers shows the code words of its earlier turns. A request for structured output
is then answered with the least that fits the schema.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hostler.endpoint.google import COUNTS, STREAMS, asked
from hostler.endpoint.serving import CUT, serve

from .model_google import Google
from .model_sample import structured
from .model_script import Step, calls_tools, next_step, prepare
from .model_wires import CREATED, Anthropic, Chat, Frame, Responses, Wire

_WIRES: dict[str, tuple[str, Wire]] = {
    "/messages": ("anthropic", Anthropic()),
    "/responses": ("responses", Responses()),
    "/chat/completions": ("chat", Chat()),
}
_START_TIMEOUT = 10.0


@dataclass(frozen=True)
class ModelRequest:
    """One request that the server got. ``api`` is anthropic, responses, chat, gemini, count_tokens, models or other;
    ``headers`` have lower-case names; ``at`` is seconds since the epoch."""

    api: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: Any = field(repr=False)
    at: float


class ModelServer:
    """The scripted model server in a thread of its own.

    ``key``: requests without it get 401. ``log``: a folder for one JSON file per request. ``prices``: dollars per
    token by model, ``{"name": {"input_cost_per_token": ..., "output_cost_per_token": ...}}``, told at
    ``/model/info`` as a LiteLLM gateway does.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        key: str | None = None,
        log: str | os.PathLike[str] | None = None,
        prices: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._port = port
        self._key = key
        self._log = log
        self._prices = dict(prices or {})
        self._requests: list[ModelRequest] = []
        self._steps: deque[Step] = deque()
        self._changed = threading.Condition()
        self._ids = itertools.count(1)
        self._files = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._ready = threading.Event()

    # ---- what tests use

    @property
    def url(self) -> str:
        """Scheme, host and port, without a path."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> list[ModelRequest]:
        """All requests so far, oldest first."""
        with self._changed:
            return list(self._requests)

    @property
    def calls(self) -> list[ModelRequest]:
        """The requests that asked a model for an answer."""
        return [r for r in self.requests if r.api in ("anthropic", "responses", "chat", "gemini")]

    def script(self, steps: Iterable[Step]) -> None:
        """Queue steps: each next model call takes one, whatever its prompt says."""
        with self._changed:
            self._steps.extend(steps)

    def clear(self) -> None:
        """Forget the requests and the queued steps."""
        with self._changed:
            self._requests.clear()
            self._steps.clear()

    def wait(self, count: int, timeout: float = 10.0) -> list[ModelRequest]:
        """The requests, once there are ``count`` of them. Raises TimeoutError after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._requests) >= count, timeout):
                raise TimeoutError(f"{len(self._requests)} of {count} model requests came within {timeout} s.")
            return list(self._requests)

    def start(self) -> ModelServer:
        self._thread = threading.Thread(target=self._run, name="hostler-model-server", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_TIMEOUT):
            raise TimeoutError("The model server did not start.")
        if self._failure:
            raise self._failure
        return self

    def stop(self) -> None:
        if self._loop and self._end and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end.set)
        if self._thread:
            self._thread.join(_START_TIMEOUT)

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- the server

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        serving = await serve(self._app(), listener)
        self._ready.set()
        try:
            await self._end.wait()
        finally:
            await serving.aclose(patience=0.2)

    def _app(self) -> Starlette:
        routes = []
        for root in ("", "/v1"):
            routes += [Route(root + path, self._model, methods=["POST"]) for path in _WIRES]
            routes += [
                Route(root + "/messages/count_tokens", self._count_tokens, methods=["POST"]),
                Route(root + "/models", self._models),
                Route(root + "/model/info", self._model_info),
            ]
        routes.append(Route("/v1beta/models/{call:path}", self._google, methods=["POST"]))
        methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        return Starlette(routes=[*routes, Route("/{path:path}", self._other, methods=methods)])

    async def _note(self, api: str, request: Request) -> Any:
        raw = await request.body()
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw.decode(errors="replace")
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        seen = ModelRequest(api, path, dict(request.headers), body, time.time())
        with self._changed:
            self._requests.append(seen)
            self._changed.notify_all()
        if self._log is not None:
            os.makedirs(self._log, exist_ok=True)
            with open(os.path.join(self._log, f"{next(self._files):05d}-{api}.json"), "w", encoding="utf-8") as file:
                json.dump({"path": path, "headers": seen.headers, "body": body, "at": seen.at}, file, indent=1)
        return body

    def _refused(self, request: Request, wire: Wire) -> Response | None:
        given = [request.headers.get(name) for name in ("x-api-key", "x-goog-api-key", "authorization")]
        if self._key is None or self._key in given or f"Bearer {self._key}" in given:
            return None
        return JSONResponse(wire.error(401, None, "The key is missing or wrong."), 401)

    async def _model(self, request: Request) -> Response:
        api, wire = _WIRES[request.url.path.removeprefix("/v1")]
        body = await self._note(api, request)
        return await self._answer(request, wire, body, streams=isinstance(body, dict) and bool(body.get("stream")))

    async def _google(self, request: Request) -> Response:
        wire, call = Google(), asked(request.url.path)
        if call is None:
            return await self._other(request)
        if call.method == COUNTS:
            await self._note("count_tokens", request)
            return self._refused(request, wire) or JSONResponse({"totalTokens": 123})
        body = await self._note("gemini", request)
        named = {**body, "model": call.model} if isinstance(body, dict) else body
        return await self._answer(request, wire, named, streams=call.method == STREAMS)

    async def _answer(self, request: Request, wire: Wire, body: Any, *, streams: bool) -> Response:
        if refused := self._refused(request, wire):
            return refused
        if not isinstance(body, dict):
            return JSONResponse(wire.error(400, None, "The body is not a JSON object."), 400)
        said, tools, raw = wire.said(body)
        queued = self._take(bool(tools))
        step = (
            next_step(said, tools, raw, structured(body)) if queued is None else prepare(queued, tools, {"text": "OK"})
        )
        if step.get("delay"):
            await asyncio.sleep(step["delay"])
        headers = {"request-id": self._new_id("req"), **{k: str(v) for k, v in step.get("headers", {}).items()}}
        if "error" in step:
            return self._error(wire, step, headers)
        if step.get("drop") == "before":
            return self._cut(request)
        reply = wire.reply(step, body, self._new_id)
        if streams:
            frames = _play(wire, step, reply.frames, request)
            return StreamingResponse(frames, media_type="text/event-stream", headers=headers)
        if step.get("hang"):
            await asyncio.sleep(step["hang"])
        return self._cut(request) if step.get("drop") else JSONResponse(reply.body, headers=headers)

    def _take(self, has_tools: bool) -> Step | None:
        """The next queued step; one that calls tools waits for a request that offers some (not a title or summary)."""
        with self._changed:
            if not self._steps or (calls_tools(self._steps[0]) and not has_tools):
                return None
            return self._steps.popleft()

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}_{next(self._ids):06d}"

    @staticmethod
    def _error(wire: Wire, step: Step, headers: dict[str, str]) -> Response:
        status = int(step["error"])
        if "retry_after" in step:
            headers["retry-after"] = str(step["retry_after"])
        message = step.get("message", f"scripted {status}")
        return JSONResponse(wire.error(status, step.get("type"), message), status, headers)

    @staticmethod
    def _cut(request: Request) -> Response:
        request.scope[CUT]()
        return Response(status_code=500)  # goes nowhere: the connection is closed

    async def _count_tokens(self, request: Request) -> Response:
        await self._note("count_tokens", request)
        return self._refused(request, Anthropic()) or JSONResponse({"input_tokens": 123})

    async def _models(self, request: Request) -> Response:
        await self._note("models", request)
        model = {"id": "fake-model", "object": "model", "created": CREATED, "owned_by": "scripted", "type": "model"}
        return JSONResponse({"object": "list", "data": [{**model, "display_name": "fake-model"}], "has_more": False})

    async def _model_info(self, request: Request) -> Response:
        await self._note("model_info", request)
        if refused := self._refused(request, Chat()):
            return refused
        if not self._prices:
            return JSONResponse({"error": {"message": "no prices are scripted"}}, 404)
        return JSONResponse({"data": [{"model_name": n, "model_info": dict(p)} for n, p in self._prices.items()]})

    async def _other(self, request: Request) -> Response:
        await self._note("other", request)
        return JSONResponse({"error": {"message": "not scripted", "type": "not_found_error"}}, 404)


async def _play(wire: Wire, step: Step, frames: list[Frame], request: Request) -> AsyncIterator[bytes]:
    """The frames as bytes; in their middle what the step asks for: silence, an error event, an early end, a cut."""
    for frame in frames:
        if frame.middle:
            if step.get("hang"):
                await asyncio.sleep(step["hang"])
            if kind := step.get("stream_error"):
                yield _encode(wire.stream_error(kind, step.get("message", f"scripted {kind}")))
                return
            if step.get("truncate"):
                return
            if step.get("drop"):
                request.scope[CUT]()
                await asyncio.sleep(_START_TIMEOUT)  # ended by the disconnect: a proper end must not be written
                return
        if frame.delta and step.get("chunk_delay"):
            await asyncio.sleep(step["chunk_delay"])
        yield _encode(frame)


def _encode(frame: Frame) -> bytes:
    data = frame.data if isinstance(frame.data, str) else json.dumps(frame.data)
    return ((f"event: {frame.event}\n" if frame.event else "") + f"data: {data}\n\n").encode()


def main() -> None:
    """``python -m hostler.testing.model_server --port N [--key KEY] [--log DIR]``"""
    parser = argparse.ArgumentParser(description="A scripted model server on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key")
    parser.add_argument("--log")
    given = parser.parse_args()
    with ModelServer(port=given.port, key=given.key, log=given.log) as server:
        sys.stdout.write(f"listening {server.url}\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
