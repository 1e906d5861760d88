"""The agent's side of the Agent Client Protocol on stdio: prompts come in, what is said and done goes out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

PROTOCOL = 1
_INVALID, _NO_METHOD, _INTERNAL, _NOT_FOUND = -32602, -32601, -32603, -32002
_KINDS = {"read": "read", "ls": "read", "glob": "search", "grep": "search", "write": "edit", "edit": "edit"}
_ALLOW, _REJECT = "allow", "reject"

Blocks = list[dict[str, Any]]


class Refused(Exception):
    """A request that is answered with an error; ``code`` is JSON-RPC's, ``kind`` says what is behind it."""

    def __init__(self, message: str, *, code: int = _INTERNAL, kind: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


def unknown(session: object) -> Refused:
    """There is no such session."""
    return Refused(f"There is no session {str(session)[:80]!r}.", code=_NOT_FOUND)


@dataclass(slots=True)
class Turn:
    """A turn under way. ``waiting`` is what was said to it since, ``prompts`` are the requests that its end answers."""

    session: str
    waiting: list[Blocks]
    prompts: list[Any]
    task: asyncio.Task[None] | None = None

    def take(self) -> list[Blocks]:
        """What was said to the turn and not been heard yet."""
        taken, self.waiting = self.waiting, []
        return taken


class Agent(Protocol):
    """What a worker is to be able to do. Errors are `Refused`."""

    async def open(self, resume: str | None) -> str:
        """Begin a session, or go on with one; its id."""
        ...

    async def run(self, turn: Turn) -> dict[str, Any]:
        """Take what waits in the turn and go on until nothing does; the answer to its prompts. It is cancelled when the
        turn is, and must leave the session such that it can be gone on with."""
        ...

    async def ready(self) -> None:
        """Until its MCP servers have started, or had their time."""
        ...

    async def close(self) -> None:
        """The process is about to end."""
        ...


@dataclass(slots=True)
class Client:
    """Who started the agent, as it is spoken to."""

    out: BinaryIO
    asked: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    number: int = 0

    def say(self, message: dict[str, Any]) -> None:
        """One line. In ASCII, so that nothing splits it; half a character cannot be told."""
        line = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":"))
        self.out.write(line.encode() + b"\n")
        self.out.flush()

    def text(self, session: str, item: str, delta: str) -> None:
        self._update(session, "agent_message_chunk", messageId=item, content={"type": "text", "text": delta})

    def thought(self, session: str, item: str, delta: str) -> None:
        content = {"type": "text", "text": delta}
        self._update(session, "agent_thought_chunk", messageId=f"{item}:thought", content=content)

    def tool_called(self, session: str, call: str, name: str, given: Any) -> None:
        """The model calls a tool; whether it runs is another question."""
        self._update(session, "tool_call", **_described(call, name, given), status="pending")

    def tool_runs(self, session: str, call: str, given: Any) -> None:
        self._update(session, "tool_call_update", toolCallId=call, status="in_progress", rawInput=given)

    def tool_done(self, session: str, call: str, output: str, *, failed: bool) -> None:
        content = [{"type": "content", "content": {"type": "text", "text": output}}]
        status = "failed" if failed else "completed"
        self._update(session, "tool_call_update", toolCallId=call, status=status, content=content)

    async def allows(self, session: str, call: str, name: str, given: Any) -> bool:
        """Ask whether the tool may run, and wait for the answer: whoever started the agent sees to it that one comes."""
        options = [
            {"optionId": _ALLOW, "name": "Allow", "kind": "allow_once"},
            {"optionId": _REJECT, "name": "Reject", "kind": "reject_once"},
        ]
        params = {"sessionId": session, "toolCall": _described(call, name, given), "options": options}
        self.number += 1
        number, answer = self.number, asyncio.get_running_loop().create_future()
        self.asked[number] = answer
        self.say({"id": number, "method": "session/request_permission", "params": params})
        try:
            outcome = (await answer or {}).get("outcome") or {}
        finally:
            del self.asked[number]
        return bool(outcome.get("optionId") == _ALLOW)

    def _update(self, session: str, what: str, /, **update: Any) -> None:
        params = {"sessionId": session, "update": {"sessionUpdate": what, **update}}
        self.say({"method": "session/update", "params": params})


def _described(call: str, name: str, given: Any) -> dict[str, Any]:
    kind = _KINDS.get(name) or ("execute" if name in ("bash", "execute") else "other")
    return {"toolCallId": call, "title": name, "kind": kind, "rawInput": given}


class Serving:
    """The requests of one client to one agent."""

    def __init__(self, client: Client, agent: Agent, name: str, version: str) -> None:
        self._client = client
        self._agent = agent
        self._about = {"name": name, "version": version}
        self._sessions: set[str] = set()
        self._turns: dict[str, Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def heard(self, line: bytes) -> None:
        """One line of the client."""
        try:
            message = json.loads(line)
        except ValueError:
            return
        if not isinstance(message, dict):
            return
        method, params = message.get("method"), message.get("params")
        params = params if isinstance(params, dict) else {}
        if method is None:
            answer = self._client.asked.get(message.get("id"))  # type: ignore[arg-type]
            if answer is not None and not answer.done():
                answer.set_result(message.get("result"))
        elif method == "session/cancel":
            self._cancel(params)
        elif method == "session/prompt" and "id" in message:
            self._prompt(message["id"], params)
        elif "id" in message:
            task = asyncio.create_task(self._answered(message["id"], str(method), params))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Cancel what is under way."""
        tasks = [*self._tasks, *(turn.task for turn in self._turns.values() if turn.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._agent.close(), return_exceptions=True)

    async def _answered(self, number: Any, method: str, params: dict[str, Any]) -> None:
        try:
            result = await self._request(method, params)
        except Exception as error:
            self._fail(number, error)
        else:
            self._client.say({"id": number, "result": result})

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                capabilities = {
                    "loadSession": False,
                    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": False},
                    "sessionCapabilities": {"resume": {}},
                }
                return {"protocolVersion": PROTOCOL, "agentInfo": self._about, "agentCapabilities": capabilities}
            case "session/new" | "session/resume":
                resume = params.get("sessionId") if method == "session/resume" else None
                if method == "session/resume" and not isinstance(resume, str):
                    raise unknown(resume)
                session = await self._agent.open(resume)
                self._sessions.add(session)
                return {"sessionId": session}
            case "session/list":  # asked so that what was logged of servers is known to have been said
                await self._agent.ready()
                return {"sessions": []}
        raise Refused(f"{method} is not known here.", code=_NO_METHOD)

    def _prompt(self, number: Any, params: dict[str, Any]) -> None:
        session, blocks = params.get("sessionId"), params.get("prompt")
        if session not in self._sessions:
            self._fail(number, unknown(session))
        elif not isinstance(blocks, list) or not all(isinstance(b, dict) for b in blocks):
            self._fail(number, Refused("A prompt is a list of content blocks.", code=_INVALID))
        elif (turn := self._turns.get(session)) is not None:
            turn.waiting.append(blocks)
            turn.prompts.append(number)
        else:
            turn = self._turns[session] = Turn(session, [blocks], [number])
            turn.task = asyncio.create_task(self._run(turn))

    async def _run(self, turn: Turn) -> None:
        failure: BaseException | None = None
        answer: dict[str, Any] = {"stopReason": "cancelled"}
        try:
            while turn.waiting:
                answer = await self._agent.run(turn)
        except asyncio.CancelledError:
            answer = {"stopReason": "cancelled"}
        except Exception as error:
            failure = error
        del self._turns[turn.session]
        for number in turn.prompts:
            if failure is not None:
                self._fail(number, failure)
            else:
                self._client.say({"id": number, "result": answer})

    def _cancel(self, params: dict[str, Any]) -> None:
        turn = self._turns.get(str(params.get("sessionId")))
        if turn is not None and turn.task is not None:
            turn.waiting.clear()
            turn.task.cancel()

    def _fail(self, number: Any, error: BaseException) -> None:
        code, kind = (error.code, error.kind) if isinstance(error, Refused) else (_INTERNAL, None)
        words = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        told: dict[str, Any] = {"code": code, "message": words}
        self._client.say({"id": number, "error": {**told, **({"data": {"kind": kind}} if kind else {})}})


def serve(make: Callable[[Client], Agent], name: str, version: str) -> None:
    """Serve the agent that ``make`` gives until stdin ends. Nothing but the protocol comes to stdout, whoever prints."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        asyncio.run(_serve(make, Client(out), name, version))


async def _serve(make: Callable[[Client], Agent], client: Client, name: str, version: str) -> None:
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

    def read() -> None:
        for line in _lines(sys.stdin.buffer):
            loop.call_soon_threadsafe(lines.put_nowait, line)

    serving = Serving(client, make(client), name, version)
    threading.Thread(target=read, daemon=True).start()
    try:
        while (line := await lines.get()) is not None:
            serving.heard(line)
    finally:
        await serving.end()


def _lines(source: BinaryIO) -> Iterable[bytes | None]:
    yield from source
    yield None
