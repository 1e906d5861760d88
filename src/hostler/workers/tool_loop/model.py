"""One model call on the Chat Completions wire, streamed."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

_ATTEMPTS = 3  # of a call whose answer breaks off: the one who serves the model counts them too
_BUSY = 20  # times that it may say that there were too many calls just now
_CONNECT = 30.0
_ERROR = 1 << 16  # bytes of an error answer that are read


class ModelFailed(Exception):
    """The model gave no answer; calling it again is of no use."""


class _Cut(Exception):
    """The answer broke off."""


@dataclass(slots=True)
class Call:
    """A tool that the model calls; ``arguments`` is JSON as it wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Reply:
    """What the model said. ``stop`` is its finish_reason."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)
    stop: str | None = None


Told = Callable[[str, str], None]
"""Called with ``text`` or ``thought`` and each piece of it."""


class Model:
    """A model at an address. How long it may take is for whoever serves it to say."""

    def __init__(
        self, url: str, key: str, *, body: dict[str, Any], transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        limits = httpx.Timeout(None, connect=_CONNECT)
        headers = {"authorization": f"Bearer {key}"}
        self._http = httpx.AsyncClient(headers=headers, timeout=limits, trust_env=False, transport=transport)

    async def ask(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], told: Told) -> Reply:
        """The model's answer. What a broken attempt said comes again. Raises ModelFailed."""
        body = {**self._body, "messages": messages, **({"tools": tools} if tools else {})}
        content = json.dumps(body).encode()
        cut = "nothing was said"
        for attempt in range(_ATTEMPTS):
            await asyncio.sleep(0.2 * attempt)
            try:
                return await self._attempt(content, told)
            except (_Cut, httpx.TransportError) as error:
                cut = f"{type(error).__name__}: {error}" if not isinstance(error, _Cut) else str(error)
        raise ModelFailed(f"The model's answer broke off {_ATTEMPTS} times ({cut}).")

    async def _attempt(self, content: bytes, told: Told) -> Reply:
        for _ in range(_BUSY):
            headers = {"content-type": "application/json"}
            async with self._http.stream("POST", self._url, content=content, headers=headers) as answer:
                if answer.status_code == 200:
                    return await _read(answer, told)
                wait = _seconds(answer.headers.get("retry-after"))
                if answer.status_code != 429 or wait is None:
                    raise ModelFailed(_words(answer.status_code, await _some(answer)))
            await asyncio.sleep(wait)
        raise ModelFailed("There were too many model calls for a long time.")


async def _read(answer: httpx.Response, told: Told) -> Reply:
    reply, calls, ended = Reply(), dict[int, Call](), False
    async for data in _events(answer.aiter_bytes()):
        if data == b"[DONE]":
            ended = True
            continue
        try:
            event = json.loads(data)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        if event.get("error"):
            raise ModelFailed(_words(None, data))
        for choice in event.get("choices") or []:
            _absorb(reply, calls, choice, told)
    if not ended and reply.stop is None:
        raise _Cut("its stream ended before the answer did")
    reply.calls = [call for _, call in sorted(calls.items()) if call.name]
    return reply


def _absorb(reply: Reply, calls: dict[int, Call], choice: dict[str, Any], told: Told) -> None:
    delta = choice.get("delta") or {}
    reply.stop = choice.get("finish_reason") or reply.stop
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    if isinstance(thought, str) and thought:
        told("thought", thought)
    text = delta.get("content") or delta.get("refusal")
    if isinstance(text, str) and text:
        reply.text += text
        told("text", text)
    for number, piece in enumerate(delta.get("tool_calls") or []):
        about = piece.get("function") or {}
        call = calls.setdefault(piece.get("index", number), Call(f"call_{uuid.uuid4().hex[:24]}", "", ""))
        call.id = piece.get("id") or call.id
        call.name = call.name or about.get("name") or ""
        call.arguments += about.get("arguments") or ""


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events: lines end at a line feed, and at nothing else that Unicode knows."""
    rest, lines = b"", list[bytes]()
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in (line.rstrip(b"\r") for line in whole):
            if line.startswith(b"data:"):
                lines.append(line[5:].strip())
            elif not line and lines:
                yield b"\n".join(lines)
                lines = []
    if lines:
        yield b"\n".join(lines)


async def _some(answer: httpx.Response) -> bytes:
    content = b""
    async for chunk in answer.aiter_bytes():
        content += chunk
        if len(content) > _ERROR:
            break
    return content


def _words(status: int | None, content: bytes) -> str:
    """What an error answer says."""
    try:
        error = json.loads(content).get("error")
        said = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        said = content.decode(errors="replace")[:500]
    return str(said or f"The model was answered with HTTP {status}.")


def _seconds(given: str | None) -> float | None:
    try:
        return min(max(float(given or ""), 0.1), 60.0)
    except ValueError:
        return None
