"""Google's generateContent wire at the endpoint: the same promises as on the others, with the model in the path."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from endpoint_door import KEY, TOKEN, Door, Run, script
from hypothesis import given
from hypothesis import strategies as st

from hostler.endpoint import google
from hostler.endpoint.routes import Route, route_for
from hostler.endpoint.wires import Seen, absorb, google_tokens, read_whole
from hostler.types.events import ModelCall
from hostler.types.result import Usage

STREAM, WHOLE, COUNT = "streamGenerateContent", "generateContent", "countTokens"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


async def ask(door: Door, prompt: str = "hi", method: str = STREAM, model: str = "m", **headers: str) -> httpx.Response:
    body = {"contents": [{"role": "user", "parts": [{"text": prompt}]}], "model": "evil", "api_base": "http://evil"}
    given = {"x-goog-api-key": TOKEN, **headers}
    return await door.http.post(f"/v1beta/models/{model}:{method}?alt=sse", json=body, headers=given)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("method", [STREAM, WHOLE])
@pytest.mark.parametrize("gateway", [True, False])
def test_an_answer_goes_through_and_is_counted(run: Run, method: str, gateway: bool) -> None:
    async def test(door: Door) -> None:
        door.open("gemini", gateway=gateway)
        answer = await ask(door, "hi CODEWORD-a", method)
        assert answer.status_code == 200
        assert "CODEWORD-a" in answer.text
        assert door.calls == [ModelCall("m", Usage(150, 40, 30, 1), None, "ok", 200)]
        (seen,) = door.server.calls
        assert seen.path == f"/v1beta/models/m:{method}" + ("?alt=sse" if method == STREAM else "")
        assert set(seen.body) == {"contents"}
        assert seen.headers["x-goog-api-key"] == KEY
        assert seen.headers.get("authorization") == (f"Bearer {KEY}" if gateway else None)
        assert TOKEN not in json.dumps(dict(seen.headers))

    run(test)


def test_tokens_are_counted_and_not_paid(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("gemini")
        assert (await ask(door, method=COUNT)).json() == {"totalTokens": 123}
        assert door.calls == []

    run(test)


def test_only_the_sessions_model_is_asked_and_only_in_this_wire(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("gemini")
        refused = await ask(door, model="gemini-2.5-flash-lite")
        assert refused.status_code == 403
        assert "may ask for m, not for gemini-2.5-flash-lite" in error_of(refused)["message"]
        assert (await ask(door, **{"x-goog-api-key": "wrong"})).status_code == 401
        assert (await door.ask("chat")).status_code == 404
        assert (await ask(door, method="embedContent")).status_code == 404
        door.open("gemini", models=frozenset({"side"}), model="team/m")
        assert (await ask(door, model="side")).status_code == 200
        assert (await ask(door, model="team/m")).status_code == 200
        assert {request.path.partition(":")[0] for request in door.server.calls} == {"/v1beta/models/team/m"}

    run(test)


@pytest.mark.parametrize(
    ("step", "code", "calls"),
    [
        ({"error": 401}, "model_auth", 1),
        ({"error": 400, "message": "the reason"}, "model_refused", 1),
        ({"error": 429}, "model_rate_limited", 2),
        ({"error": 503}, "model_unavailable", 2),
        ({"drop": "before"}, "model_unavailable", 2),
        ({"stream_error": "INVALID_ARGUMENT", "chunks": 1}, "model_refused", 1),
    ],
)
def test_a_failure_is_final_in_the_words_of_the_wire(run: Run, step: dict[str, Any], code: str, calls: int) -> None:
    async def test(door: Door) -> None:
        door.open("gemini")
        start = time.monotonic()
        answer = await ask(door, script(**step))
        assert time.monotonic() - start < 2
        if "stream_error" in step:
            assert '"status": "INVALID_ARGUMENT"' in answer.text
        else:
            assert (answer.status_code, error_of(answer)["code"]) == (400, 400)
        [call] = door.calls
        assert call.error is not None
        assert (call.status, call.error.code) == ("refused", code)
        assert len(door.server.calls) == calls

    run(test, patience=0.5)


@pytest.mark.parametrize("step", [{"drop": True}, {"truncate": True}, {"stream_error": "UNAVAILABLE"}])
def test_a_stream_that_breaks_off_is_cut(run: Run, step: dict[str, Any]) -> None:
    async def test(door: Door) -> None:
        door.open("gemini")
        with pytest.raises(httpx.HTTPError):
            await ask(door, script(text="one two", chunks=2, chunk_delay=0.05, **step))
        assert [call.status for call in door.calls] == ["cut"]

    run(test)


def test_a_spent_budget_ends_the_calls(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("gemini", budget=lambda: "max_cost")
        answer = await ask(door)
        assert (answer.status_code, "max_cost" in error_of(answer)["message"]) == (400, True)
        assert not door.server.calls

    run(test)


def test_routes() -> None:
    def route(model: str, **given: Any) -> Route:
        environ = {"GEMINI_API_KEY": "google-key", "LITELLM_PROXY_API_KEY": "k"}
        return route_for(model, wire="gemini", environ=environ, **{"api_base": None, "api_key": None, **given})

    for name in ("gemini-x", "gemini/gemini-x"):
        found = route(name)
        assert (found.key, found.model) == ("google-key", "gemini-x")
        assert found.url_for(STREAM) == (
            "https://generativelanguage.googleapis.com/v1beta/models/gemini-x:streamGenerateContent?alt=sse"
        )
    for base in ("http://gate", "http://gate/v1", "http://gate/v1beta/"):
        found = route("litellm_proxy/a b/c", api_base=base)
        assert found.url_for(WHOLE) == "http://gate/v1beta/models/a%20b/c:generateContent"
    with pytest.raises(KeyError):
        assert found.url


def test_what_a_path_asks_for() -> None:
    assert google.asked("/v1beta/models/a/b:countTokens") == google.Asked("a/b", COUNT)
    assert google.asked("/v1/models/a:generateContent") == google.Asked("a", WHOLE)
    for other in ("/v1/models", "/v1beta/models/a", "/v1beta/models/a:delete", "/v1beta/models/:countTokens"):
        assert google.asked(other) is None


def test_what_an_answer_says() -> None:
    counts = {"promptTokenCount": 9, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "cachedContentTokenCount": 99}
    tokens = google_tokens(counts)
    assert (tokens.input, tokens.output, tokens.cache_read) == (9, 5, 9)
    assert not google_tokens({}).known
    blocked = absorb("gemini", Seen(), b'{"promptFeedback": {"blockReason": "SAFETY"}}')
    assert blocked.stopped
    told = absorb("gemini", Seen(), b'{"error": {"status": "RESOURCE_EXHAUSTED", "message": "m"}}')
    assert told.error == ("rate_limit_error", "m")
    assert not absorb("gemini", Seen(), b'{"candidates": [{"content": {"parts": [{"text": "finishReason"}]}}]}').stopped


@given(
    fields=st.dictionaries(
        st.sampled_from(["candidates", "usageMetadata", "error", "promptFeedback"]), json_values, max_size=4
    )
)
def test_no_event_raises(fields: dict[str, Any]) -> None:
    seen = absorb("gemini", Seen(), json.dumps(fields).encode())
    assert seen.tokens.input is None or seen.tokens.input >= 0
    read_whole("gemini", json.dumps(fields).encode())


def test_a_result_is_told_once() -> None:
    def result(id: str) -> dict[str, Any]:
        return {"functionResponse": {"id": id, "name": "shell", "response": {"output": id}}}

    call = {"role": "model", "parts": [{"functionCall": {"id": "a", "name": "shell"}}]}
    body = {"contents": [call, {"role": "user", "parts": [result("a"), result("a"), result("b"), {"text": "x"}]}, 7]}
    assert google.told_once(body)["contents"] == [
        call,
        {"role": "user", "parts": [result("a"), result("b"), {"text": "x"}]},
        7,
    ]
    unnamed = {"contents": [{"parts": [{"functionResponse": {"name": "shell"}}] * 2}, {"parts": "odd"}]}
    assert google.told_once(unnamed) == unnamed
    assert google.told_once({"contents": None}) == {"contents": None}
