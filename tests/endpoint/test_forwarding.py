"""Calls go through whole, pinned to the session's model, with the real key and nothing else of the program's."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from endpoint_door import KEY, PATHS, TOKEN, WIRES, Door, Run, body, script

from hostler.types.events import ModelCall
from hostler.types.result import Usage


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_goes_through_and_is_counted(run: Run, wire: str, stream: bool) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        answer = await door.ask(wire, "hi CODEWORD-a", stream=stream)
        direct = httpx.post(
            door.server.url + PATHS[wire],
            json={**body(wire, "hi CODEWORD-a", stream=stream), "stream_options": {"include_usage": True}},
            headers={"x-api-key": KEY},
        )
        assert answer.status_code == 200
        assert answer.headers["content-type"] == direct.headers["content-type"]
        assert re.sub(r"_\d{6}", "", answer.text) == re.sub(r"_\d{6}", "", direct.text)
        assert "CODEWORD-a" in answer.text
        assert door.calls == [ModelCall("m", Usage(150, 40, 30, 1), None, "ok", 200)]

    run(test)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("gateway", [True, False])
def test_credentials_and_headers(run: Run, wire: str, gateway: bool) -> None:
    async def test(door: Door) -> None:
        door.open(wire, gateway=gateway, tag={"session": "chat-7", "team": "ä"})
        given = {
            "x-api-key": "other",
            "cookie": "a=b",
            "proxy-authorization": "Basic abc",
            "x-forwarded-for": "1.2.3.4",
            "x-litellm-api-key": "other",
            "anthropic-beta": "some-beta",
            "user-agent": "program/1",
        }
        assert (await door.ask(wire, headers=given)).status_code == 200
        sent = door.server.calls[-1].headers
        assert not {"cookie", "proxy-authorization", "x-forwarded-for", "x-litellm-api-key"} & set(sent)
        assert sent["anthropic-beta"] == "some-beta"
        assert sent["user-agent"] == "program/1"
        assert TOKEN not in json.dumps(dict(sent))
        assert sent.get("x-api-key") == (KEY if wire == "anthropic" else None)
        bearer = gateway or wire != "anthropic"
        assert sent.get("authorization") == (f"Bearer {KEY}" if bearer else None)
        metadata = sent.get("x-litellm-spend-logs-metadata")
        assert (json.loads(metadata) if metadata else None) == ({"session": "chat-7", "team": "ä"} if gateway else None)
        assert sent.get("x-litellm-tags") == ("session:chat-7" if gateway else None)

    run(test)


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_base_with_and_without_version(run: Run, wire: str, base: str) -> None:
    async def test(door: Door) -> None:
        door.open(wire, base=door.server.url + base)
        assert (await door.ask(wire)).status_code == 200
        assert door.server.requests[-1].path == PATHS[wire]

    run(test)


def test_the_model_is_pinned(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("chat", model="real-name", models=frozenset({"nickname"}))
        for asked in ("real-name", "nickname"):
            assert (await door.ask("chat", model=asked)).status_code == 200
        for asked in ("other", "", None, ["real-name"]):
            answer = await door.ask("chat", model=asked)
            assert answer.status_code == 403
        # names of the same key twice: what was checked is what is sent
        raw = '{"model": "other", "model": "nickname", "messages": []}'
        answer = await door.http.post(PATHS["chat"], content=raw, headers={"x-api-key": TOKEN})
        assert answer.status_code == 200
        assert [r.body["model"] for r in door.server.requests] == ["real-name"] * 3
        assert len(door.calls) == 3

    run(test)


def test_fields_that_lead_elsewhere_are_dropped(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("chat", gateway=True)
        bad = {"fallbacks": [{"model": "x"}], "api_base": "http://x", "api_key": "k", "models": ["x"]}
        await door.ask("chat", **bad, litellm_metadata={}, mock_response="x", temperature=0.5)
        sent = door.server.calls[-1].body
        assert set(sent) == {"model", "messages", "stream", "stream_options", "temperature", "drop_params"}

    run(test)


@pytest.mark.parametrize(
    "options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False, "x": 1}}]
)
def test_chat_streams_always_tell_their_usage(run: Run, options: dict[str, Any]) -> None:
    async def test(door: Door) -> None:
        door.open("chat")
        await door.ask("chat", **options)
        assert door.server.calls[-1].body["stream_options"]["include_usage"] is True
        assert door.calls[0].usage == Usage(150, 40, 30, 1)

    run(test)


def test_a_program_that_is_not_let_in(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("anthropic")
        door.endpoint.mount_tools("tool-token", _unreachable)
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer"}, {"x-api-key": "tool-token"}):
            answer = await door.http.post("/v1/messages", json=body("anthropic"), headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["message"]
        mine = {"x-api-key": TOKEN}
        for method, path in (
            ("GET", "/v1/messages"),
            ("POST", "/v1/embeddings"),
            ("POST", "/v1//messages"),
            ("POST", "/v1/messages/../files"),
            ("POST", "/v1/chat/completions"),  # of another wire
            ("HEAD", "/api/hello"),
            ("DELETE", "/v1/models"),
            ("GET", "http://elsewhere.example/v1/models/x"),
        ):
            assert (await door.http.request(method, path, headers=mine)).status_code == 404
        for content in (b"", b"[]", b"{", b"null", b"[" * 100_000):
            assert (await door.http.post("/v1/messages", content=content, headers=mine)).status_code == 400
        assert door.server.requests == []
        assert door.calls == []

    run(test)


def test_models_are_answered_here(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("responses", model="b", models=frozenset({"a"}))
        answer = await door.http.get("/v1/models", headers={"x-api-key": TOKEN})
        assert [m["id"] for m in answer.json()["data"]] == ["a", "b"]
        assert door.server.requests == []

    run(test)


def test_token_counting_is_forwarded_but_is_no_call(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("anthropic", model="real", models=frozenset({"m"}))
        path = "/v1/messages/count_tokens?beta=true"
        answer = await door.http.post(path, json=body("anthropic"), headers={"x-api-key": TOKEN})
        assert answer.json() == {"input_tokens": 123}
        assert door.server.requests[-1].path == path
        assert door.server.requests[-1].body["model"] == "real"
        assert door.calls == []

    run(test)


def test_a_request_that_is_too_large(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostler.endpoint.gateway.BODY_LIMIT", 100_000)

    async def test(door: Door) -> None:
        door.open("anthropic")
        assert (await door.ask(prompt="x" * 90_000)).status_code == 200
        answer = await door.ask(prompt="x" * 3_000_000)
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
        assert len(door.server.requests) == 1

    run(test)


def test_the_session_knows_the_call_before_the_program_sees_its_end(run: Run) -> None:
    """Each reader notes what has been reported when it sees the last event."""

    async def test(door: Door) -> None:
        for wire, last in (
            ("anthropic", b"message_stop"),
            ("responses", b"response.completed"),
            ("chat", b"[DONE]"),
        ):
            door.calls.clear()
            door.open(wire)
            prompt = script(text="word " * 50, chunks=50, chunk_delay=0.002)
            seen = b""
            headers = {"x-api-key": TOKEN}
            async with door.http.stream("POST", PATHS[wire], json=body(wire, prompt), headers=headers) as answer:
                async for piece in answer.aiter_bytes():
                    if not seen:
                        assert door.calls == []  # streamed, not held until the end
                    seen += piece
                    if last in seen:
                        assert len(door.calls) == 1
            assert last in seen

    run(test)


def test_fifty_streams_at_once(run: Run) -> None:
    async def test(door: Door) -> None:
        for n in range(5):
            door.open("anthropic", token=f"t{n}")

        async def one(n: int) -> None:
            prompt = script(text=f"text of {n}", chunks=5, chunk_delay=0.01)
            answer = await door.ask(prompt=prompt, token=f"t{n % 5}")
            assert f"{n}" in answer.text
            assert answer.text.rstrip().endswith('{"type": "message_stop"}')

        await asyncio.gather(*(one(n) for n in range(50)))
        assert len(door.calls) == 50
        assert sum((c.usage for c in door.calls), Usage()) == Usage(7500, 2000, 1500, 50)

    run(test)


def test_more_calls_at_once_than_a_session_may_have(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostler.endpoint.gateway.IN_FLIGHT", 3)

    async def test(door: Door) -> None:
        door.open("anthropic")
        answers = await asyncio.gather(*(door.ask(prompt=script(text="x", delay=0.2)) for _ in range(5)))
        assert sorted(a.status_code for a in answers) == [200, 200, 200, 429, 429]
        assert (await door.ask()).status_code == 200

    run(test)


@pytest.mark.parametrize("wire", WIRES)
def test_a_spent_budget_ends_the_calls(run: Run, wire: str) -> None:
    async def test(door: Door) -> None:
        reason: list[str | None] = [None]
        door.open(wire, budget=lambda: reason[0])
        assert (await door.ask(wire)).status_code == 200
        reason[0] = "max_cost"
        answer = await door.ask(wire)
        assert answer.status_code == (409 if wire == "anthropic" else 400)
        assert answer.headers["x-should-retry"] == "false"
        assert "max_cost" in answer.json()["error"]["message"]
        assert len(door.server.calls) == len(door.calls) == 1

    run(test)


@pytest.mark.parametrize("wire", WIRES)
def test_no_answer_is_given_before_the_session_is_ready(run: Run, wire: str) -> None:
    async def test(door: Door) -> None:
        ready = asyncio.Event()

        async def wait() -> None:
            await ready.wait()

        door.open(wire, ready=wait)
        asking = asyncio.create_task(door.ask(wire))
        while not door.server.calls:
            await asyncio.sleep(0.01)  # the model is asked all the same
        done, _ = await asyncio.wait([asking], timeout=0.3)
        assert not done
        ready.set()
        assert (await asking).status_code == 200

    run(test)


def test_tools_have_their_own_door(run: Run) -> None:
    seen: list[tuple[str, str, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        seen.append((scope["path"], scope["root_path"], message["body"]))
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def test(door: Door) -> None:
        door.open("anthropic")
        door.endpoint.mount_tools("tool-token", app)
        good, bad = {"authorization": "Bearer tool-token"}, {"authorization": f"Bearer {TOKEN}"}
        assert (await door.http.post("/hostler/tools", content=b"x", headers=good)).text == "ok"
        assert (await door.http.post("/hostler/tools/a", headers=good)).status_code == 202
        for headers in (bad, {}, {"x-api-key": "tool-token"}):
            assert (await door.http.post("/hostler/tools", headers=headers)).status_code == 401
        assert (await door.http.post("/hostler/toolsx", headers=good)).status_code == 401
        door.endpoint.close_token("tool-token")
        assert (await door.http.post("/hostler/tools", headers=good)).status_code == 401
        assert seen == [("/hostler/tools", "/hostler/tools", b"x"), ("/hostler/tools/a", "/hostler/tools", b"")]
        assert door.server.requests == []

    run(test)


async def _unreachable(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("reached with a wrong token")


def test_a_closed_token(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("anthropic")
        waiting = asyncio.create_task(door.ask(prompt=script(text="x", hang=10)))
        while not door.server.calls:
            await asyncio.sleep(0.01)
        door.endpoint.close_token(TOKEN)
        assert [(c.status, c.usage.partial, c.cost, c.error) for c in door.calls] == [("cut", True, None, None)]
        with pytest.raises(httpx.HTTPError):
            await waiting
        assert (await door.ask()).status_code == 401
        assert len(door.calls) == 1

    run(test)


def test_the_socket_is_private(run: Run) -> None:
    async def test(door: Door) -> None:
        import os
        import stat

        path = door.endpoint.socket_path
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700

    run(test)
