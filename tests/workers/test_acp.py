"""The agent's side of ACP: requests in, answers and updates out, with an agent that does as it is told."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

from hostler.workers.acp import Client, Refused, Serving, Turn, unknown


class Told:
    """An agent whose turns are a function."""

    def __init__(self, run: Callable[[Turn], Any]) -> None:
        self._run = run
        self.closed = False

    async def open(self, resume: str | None) -> str:
        if resume not in (None, "S"):
            raise unknown(resume)
        return "S"

    async def run(self, turn: Turn) -> dict[str, Any]:
        stop: dict[str, Any] = await self._run(turn)
        return stop

    async def ready(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class Talk:
    """One client and its agent, in memory."""

    def __init__(self, run: Callable[[Client, Turn], Any]) -> None:
        self._out = io.BytesIO()
        self.client = Client(self._out)
        self.agent = Told(lambda turn: run(self.client, turn))
        self.serving = Serving(self.client, self.agent, "told", "1")

    def say(self, **message: Any) -> None:
        self.serving.heard(json.dumps({"jsonrpc": "2.0", **message}).encode())

    @property
    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.getvalue().splitlines()]

    def answer(self, number: int) -> dict[str, Any]:
        (found,) = [m for m in self.heard if m.get("id") == number and "method" not in m]
        return found

    async def begun(self) -> None:
        self.say(id=1, method="initialize", params={})
        self.say(id=2, method="session/new", params={})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert self.answer(2)["result"] == {"sessionId": "S"}

    def prompt(self, number: int, text: str) -> None:
        params = {"sessionId": "S", "prompt": [{"type": "text", "text": text}]}
        self.say(id=number, method="session/prompt", params=params)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_turn_and_what_is_no_request() -> None:
    async def run(client: Client, turn: Turn) -> dict[str, Any]:
        assert turn.take() == [[{"type": "text", "text": "hi"}]]
        client.text("S", "m", "half \ud800 and \u2028")
        return {"stopReason": "end_turn"}

    async def main() -> None:
        talk = Talk(run)
        await talk.begun()
        assert talk.answer(1)["result"]["agentCapabilities"]["sessionCapabilities"] == {"resume": {}}
        talk.serving.heard(b"no json")
        talk.serving.heard(b"[1]")
        talk.say(id=3, method="session/fly", params={})
        talk.say(id=4, method="session/resume", params={"sessionId": "T"})
        talk.say(id=5, method="session/prompt", params={"sessionId": "T", "prompt": []})
        talk.say(id=6, method="session/prompt", params={"sessionId": "S", "prompt": "hi"})
        talk.prompt(7, "hi")
        await settle()
        assert [talk.answer(n)["error"]["code"] for n in (3, 4, 5, 6)] == [-32601, -32002, -32002, -32602]
        assert talk.answer(7)["result"] == {"stopReason": "end_turn"}
        (update,) = [m["params"]["update"] for m in talk.heard if m.get("method") == "session/update"]
        assert update["content"]["text"].endswith("and \u2028")
        await talk.serving.end()
        assert talk.agent.closed

    asyncio.run(main())


def test_what_is_said_to_a_turn_is_its_own_and_its_end_answers_all() -> None:
    async def run(client: Client, turn: Turn) -> dict[str, Any]:
        heard = [blocks[0]["text"] for blocks in turn.take()]
        while len(heard) < 2:
            await asyncio.sleep(0)
            heard += [blocks[0]["text"] for blocks in turn.take()]
        client.text("S", "m", ",".join(heard))
        return {"stopReason": "end_turn"}

    async def main() -> None:
        talk = Talk(run)
        await talk.begun()
        talk.prompt(3, "one")
        await settle()
        talk.prompt(4, "two")
        await settle()
        assert talk.answer(3)["result"] == talk.answer(4)["result"] == {"stopReason": "end_turn"}
        talk.prompt(5, "three")
        await settle()
        talk.say(method="session/cancel", params={"sessionId": "S"})
        await settle()
        assert talk.answer(5)["result"] == {"stopReason": "cancelled"}

    asyncio.run(main())


def test_a_question_waits_for_its_answer_and_ends_with_the_turn() -> None:
    async def run(client: Client, turn: Turn) -> dict[str, Any]:
        turn.take()
        said = [await client.allows("S", "c", "bash", {"command": "ls"}) for _ in range(3)]
        client.text("S", "m", str(said))
        await client.allows("S", "d", "bash", {})
        return {"stopReason": "end_turn"}

    async def main() -> None:
        talk = Talk(run)
        await talk.begun()
        talk.prompt(3, "go")
        outcomes = [{"outcome": "selected", "optionId": "allow"}, {"outcome": "selected", "optionId": "reject"}]
        for number, outcome in enumerate([*outcomes, {"outcome": "cancelled"}], 1):
            await settle()
            asked = [m for m in talk.heard if m.get("method") == "session/request_permission"]
            assert asked[-1]["id"] == number
            assert {o["kind"] for o in asked[-1]["params"]["options"]} == {"allow_once", "reject_once"}
            talk.say(id=number, result={"outcome": outcome})
            talk.say(id=99, result={})
        await settle()
        assert "[True, False, False]" in json.dumps(talk.heard)
        talk.say(method="session/cancel", params={"sessionId": "S"})
        await settle()
        assert talk.answer(3)["result"] == {"stopReason": "cancelled"}
        assert not talk.client.asked

    asyncio.run(main())


def test_a_failure_is_an_answer() -> None:
    async def run(client: Client, turn: Turn) -> dict[str, Any]:
        if turn.take()[0][0]["text"] == "model":
            raise Refused("no answer", kind="model")
        raise KeyError("nobody foresaw this")

    async def main() -> None:
        talk = Talk(run)
        await talk.begun()
        talk.prompt(3, "model")
        await settle()
        talk.prompt(4, "other")
        await settle()
        assert talk.answer(3)["error"] == {"code": -32603, "message": "no answer", "data": {"kind": "model"}}
        assert "nobody foresaw this" in talk.answer(4)["error"]["message"]

    asyncio.run(main())
