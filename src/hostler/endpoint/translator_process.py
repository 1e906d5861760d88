"""What runs in the translator's process: answers requests of one wire by asking an upstream in another, with LiteLLM.

It is told no key: upstreams are asked through the endpoint's socket, under a token that holds for one call.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import select
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx

from .serving import CUT, Receive, Scope, Send, listen_private, serve, while_connected

_SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOG": "CRITICAL",
    "LITELLM_MODE": "PRODUCTION",  # reads no .env file
    "HF_HUB_OFFLINE": "1",
}
_BASES = {"anthropic": ("anthropic", "http://endpoint"), "chat": ("openai", "http://endpoint/v1")}
_DAY = 86400.0  # the endpoint decides how long a model may be silent
_CACHED = [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
_PARENT_CHECK = 5.0
_WORDS_LIMIT = 500


class Translation:
    """An ASGI application: each request names two wires and carries what the program asked."""

    def __init__(self, litellm: Any, openai: Any, endpoint: str) -> None:
        self._litellm = litellm
        self._openai = openai
        self._http = _client(endpoint)
        # LiteLLM makes a client for each provider; the OpenAI one is given with each call
        handler = importlib.import_module("litellm.llms.custom_httpx.http_handler").AsyncHTTPHandler
        handler.create_client = lambda *_, **__: _client(endpoint)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await while_connected(asyncio.create_task(self._answer(json.loads(body), scope, send)), receive)

    async def _answer(self, asked: dict[str, Any], scope: Scope, send: Send) -> None:
        stream, events, first = bool(asked["request"].get("stream")), None, b""
        try:
            answer = await self._ask(asked)
            if stream:
                events = _events(asked["wire"], answer)
                first = await anext(events, b"")
            else:
                first = _json(answer)
        except Exception as error:
            words = f"{type(error).__name__}: {error!s}"[:_WORDS_LIMIT]
            await _start(send, 500, "application/json")
            await send({"type": "http.response.body", "body": json.dumps({"error": {"message": words}}).encode()})
            return
        await _start(send, 200, "text/event-stream" if stream else "application/json")
        await send({"type": "http.response.body", "body": first, "more_body": stream})
        if events is not None:
            try:
                async for piece in events:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except Exception:
                scope[CUT]()  # the endpoint knows how the upstream's answer ended
                return
            await send({"type": "http.response.body", "body": b""})

    async def _ask(self, asked: dict[str, Any]) -> Any:
        wire, upstream, token = asked["wire"], asked["upstream"], asked["token"]
        provider, base = _BASES[upstream]
        given = {
            **asked["request"],
            "model": asked["model"],
            "custom_llm_provider": provider,
            "api_base": base,
            "api_key": token,
            "num_retries": 0,
            "max_retries": 0,
            "timeout": _DAY,
            "drop_params": True,
        }
        if upstream == "anthropic":
            given["cache_control_injection_points"] = _CACHED  # else every call pays for the whole conversation
        else:
            given["client"] = self._openai.AsyncOpenAI(
                api_key=token, base_url=base, http_client=self._http, max_retries=0
            )
        if wire == "anthropic":
            return await self._litellm.anthropic_messages(**given)
        if wire == "responses":
            return await self._litellm.aresponses(**given)
        return await self._litellm.acompletion(**given)


def _client(endpoint: str) -> httpx.AsyncClient:
    """Reaches the endpoint, whatever the address."""
    transport = httpx.AsyncHTTPTransport(uds=endpoint, verify=False, limits=httpx.Limits(max_connections=None))
    return httpx.AsyncClient(transport=transport, timeout=_DAY, trust_env=False)


async def _events(wire: str, answer: Any) -> AsyncIterator[bytes]:
    """A streamed answer as server-sent events."""
    async for event in answer:
        if isinstance(event, (bytes, str)):
            yield event if isinstance(event, bytes) else event.encode()
        else:
            data = _json(event)
            yield (b"event: " + json.loads(data)["type"].encode() + b"\n" if wire == "responses" else b"") + (
                b"data: " + data + b"\n\n"
            )
    if wire == "chat":
        yield b"data: [DONE]\n\n"


def _json(value: Any) -> bytes:
    if hasattr(value, "model_dump_json"):
        return str(value.model_dump_json(exclude_none=True)).encode()
    return json.dumps(value).encode()


async def _start(send: Send, status: int, kind: str) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})


def _only_unix_sockets(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: whatever LiteLLM would fetch (price lists, pictures by address) is not fetched from here."""
    if event == "socket.getaddrinfo" or (event == "socket.connect" and not isinstance(args[1], (str, bytes))):
        raise PermissionError("the translator of wires has no network")


def _end_with_parent() -> None:
    """The parent holds the other end of our standard input; a fork of it may hold it longer."""
    parent = os.getppid()
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], _PARENT_CHECK)
        if ready and not os.read(0, 1024):
            break
    os._exit(0)


def _load() -> tuple[Any, Any]:
    os.environ.update(_SETTINGS)
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    litellm.disable_streaming_logging = True
    litellm.disable_aiohttp_transport = True  # our HTTP client is not of that kind
    litellm.use_chat_completions_url_for_anthropic_messages = True
    litellm.modify_params = True  # what a provider refuses for lack of history is left out
    return litellm, importlib.import_module("openai")


async def _run(path: str, endpoint: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    translation = Translation(*_load(), endpoint)
    await serve(translation.app, listen_private(path))
    os.write(1, b"ready\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # from here on nobody reads what a library prints
        os.dup2(nowhere, stream)
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.addaudithook(_only_unix_sockets)
    asyncio.run(_run(*sys.argv[1:]))
