"""Tokens and dollars of a call, whatever a provider or gateway tells about them."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from endpoint_door import KEY, WIRES, Door, Run, door, script
from hypothesis import given
from hypothesis import strategies as st

from hostler.endpoint import Route, price
from hostler.endpoint.wires import Events, Seen, Tokens, absorb, anthropic_tokens, openai_tokens, read_whole
from hostler.testing.model_server import ModelServer
from hostler.types.result import Usage

_numbers = itertools.count()
ODD: tuple[Any, ...] = ({}, None, [], "none", 7, {"input_tokens": None}, {"prompt_tokens": "many"})
ODD_COUNTS: tuple[Any, ...] = (None, -1, "12", 1.5e400, float("nan"), True, [], {})


def fresh_name() -> str:
    """A model that no test has asked the price of (prices are remembered in the process)."""
    return f"group-{next(_numbers)}"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
def test_counts_as_told(run: Run, wire: str, stream: bool) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        await door.ask(wire, script(text="x", usage={"input": 1000, "output": 7, "cached": 600}), stream=stream)
        assert door.calls[-1].usage == Usage(1000, 7, 600, 1)

    run(test)


@pytest.mark.parametrize("wire", WIRES)
def test_odd_usage_is_partial_and_breaks_nothing(run: Run, wire: str) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        for stream in (True, False):
            for usage in ODD:
                answer = await door.ask(wire, script(text="fine", chunks=1, usage=usage), stream=stream)
                assert "fine" in answer.text
                assert (door.calls[-1].status, door.calls[-1].cost) == ("ok", None)
                assert door.calls[-1].usage == Usage(0, 0, 0, 1, partial=True)
        assert len(door.calls) == 2 * len(ODD)

    run(test)


@pytest.mark.parametrize("odd", ODD_COUNTS)
def test_odd_counts_are_unknown(odd: Any) -> None:
    assert anthropic_tokens({"input_tokens": odd, "output_tokens": 4}) == Tokens(None, 4)
    assert openai_tokens({"prompt_tokens": 3, "completion_tokens": odd}) == Tokens(3, None)
    assert anthropic_tokens({"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": odd}) == Tokens(1, 2)
    assert openai_tokens({"input_tokens": 1, "output_tokens": 2, "input_tokens_details": {"cached_tokens": odd}}) == (
        Tokens(1, 2)
    )


def test_anthropic_counts_add_up_over_a_stream() -> None:
    def after(*events: dict[str, Any]) -> Seen:
        seen = Seen()
        for event in events:
            seen = absorb("anthropic", seen, json.dumps(event).encode())
        return seen

    def start(**usage: Any) -> dict[str, Any]:
        return {"type": "message_start", "message": {"usage": usage}}

    def delta(**usage: Any) -> dict[str, Any]:
        return {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}

    cached = {"cache_read_input_tokens": 30, "cache_creation_input_tokens": 20}
    hour = {"cache_creation": {"ephemeral_1h_input_tokens": 5, "ephemeral_5m_input_tokens": 15}}
    assert after(start(input_tokens=100, output_tokens=1, **cached)).tokens == Tokens(150, None, 30, 20)
    assert after(start(input_tokens=100, **cached), delta(output_tokens=9)).tokens == Tokens(150, 9, 30, 20)
    assert after(start(input_tokens=100), delta(input_tokens=100, output_tokens=9)).tokens == Tokens(100, 9)
    # a gateway that knows the counts only at the end, and one that forgets them there
    assert after(start(input_tokens=0), delta(input_tokens=80, output_tokens=9, **cached)).tokens == (
        Tokens(130, 9, 30, 20)
    )
    assert after(start(input_tokens=80, **cached), delta(input_tokens=0, output_tokens=9)).tokens == (
        Tokens(130, 9, 30, 20)
    )
    assert after(start(input_tokens=1, **cached, **hour), delta(output_tokens=1)).tokens.cache_write_1h == 5
    assert after(start(input_tokens=1), delta(output_tokens=2)).stopped
    assert not after(start(input_tokens=1), delta(output_tokens=2)).whole


def test_what_ends_a_stream() -> None:
    def whole(wire: Any, data: bytes) -> bool:
        return absorb(wire, Seen(), data).whole

    assert whole("anthropic", b'{"type": "message_stop"}')
    assert whole("responses", b'{"type":"response.completed","response":{"usage":null}}')
    assert whole("responses", b'{"type":"response.incomplete","response":{}}')
    assert whole("chat", b"[DONE]")
    assert not whole("responses", b"[DONE]")
    assert not whole("anthropic", b'{"type":"content_block_delta","delta":{"text":"message_stop"}}')
    assert not whole("responses", b'{"type":"response.output_text.delta","delta":"response.completed"}')
    assert not whole("chat", b'{"choices":[{"delta":{"content":"[DONE]"},"finish_reason":null}]}')


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
event_types = st.sampled_from(
    ["message_start", "message_delta", "message_stop", "error", "response.completed", "response.failed"]
)


@given(
    wire=st.sampled_from(WIRES),
    kind=event_types,
    fields=st.dictionaries(
        st.sampled_from(["message", "usage", "response", "delta", "choices", "error"]), json_values, max_size=4
    ),
)
def test_no_event_raises(wire: Any, kind: str, fields: dict[str, Any]) -> None:
    seen = absorb(wire, Seen(), json.dumps({"type": kind, **fields}).encode())
    assert seen.tokens.input is None or seen.tokens.input >= 0
    read_whole(wire, json.dumps(fields).encode())


@given(raw=st.binary(max_size=40), wire=st.sampled_from(WIRES))
def test_no_bytes_raise(raw: bytes, wire: Any) -> None:
    for data in Events().feed(b"data: " + raw + b"\n\n"):
        absorb(wire, Seen(), data)
    read_whole(wire, raw)


@given(cuts=st.lists(st.integers(0, 120), max_size=6), newline=st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_the_stream_is_cut(cuts: list[int], newline: bytes) -> None:
    lines = [
        b": ping",
        b"",
        b"event: a",
        b'data: {"x":1}',
        b"",
        b"data:two",
        b"data: three",
        b"",
        b"id: 1",
        b"",
        b"data: rest",
    ]
    stream = newline.join(lines)
    ends = [*sorted(min(c, len(stream)) for c in cuts), len(stream)]
    events, got, at = Events(), [], 0
    for end in ends:
        got += events.feed(stream[at:end])
        at = end
    assert got == [b'{"x":1}', b"two\nthree"]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("told", "cost"), [("0.25", 0.25), ("0", 0.0), ("0.0", 0.0)])
def test_the_gateway_tells_the_cost_in_a_header(run: Run, wire: str, stream: bool, told: str, cost: float) -> None:
    async def test(door: Door) -> None:
        door.open(wire, gateway=True, model=fresh_name(), models=frozenset({"m"}))
        step = {"text": "x", "headers": {"x-litellm-response-cost": told}}
        await door.ask(wire, script(**step), stream=stream)
        assert door.calls[-1].cost == cost

    run(test)


@pytest.mark.parametrize("told", ["", "None", "-1", "nan", "inf", "1,5"])
def test_a_header_that_is_no_cost(run: Run, told: str) -> None:
    async def test(door: Door) -> None:
        door.open(gateway=True, model=fresh_name(), models=frozenset({"m"}))
        await door.ask(prompt=script(text="x", headers={"x-litellm-response-cost": told}))
        assert door.calls[-1].cost is None

    run(test)


def test_the_gateway_tells_the_cost_in_the_usage(run: Run) -> None:
    async def test(door: Door) -> None:
        for wire, names in (
            ("anthropic", ("input_tokens", "output_tokens")),
            ("responses", ("input_tokens", "output_tokens")),
            ("chat", ("prompt_tokens", "completion_tokens")),
        ):
            door.open(wire, gateway=True, model=fresh_name(), models=frozenset({"m"}))
            usage = {names[0]: 1, names[1]: 2, "cost": 0.125}
            for stream in (True, False):
                await door.ask(wire, script(text="x", usage=usage), stream=stream)
                assert (door.calls[-1].cost, door.calls[-1].usage) == (0.125, Usage(1, 2, 0, 1))

    run(test)


def test_listed_prices_count_cached_tokens_at_their_own_price() -> None:
    route = Route("https://api.anthropic.com", KEY, "claude-sonnet-4-5", "anthropic", False)
    million = 1_000_000
    plain = price.listed(route, Tokens(million, 0))
    read = price.listed(route, Tokens(million, 0, cache_read=million))
    write = price.listed(route, Tokens(million, 0, cache_write=million))
    hour = price.listed(route, Tokens(million, 0, cache_write=million, cache_write_1h=million))
    assert plain is not None
    assert read is not None
    assert write is not None
    assert hour is not None
    assert 0 < read < plain < write < hour


LISTED = [
    Route("https://api.anthropic.com", KEY, "claude-sonnet-4-5", "anthropic", False),  # dearer above 200,000 tokens
    Route("https://api.anthropic.com", KEY, "claude-haiku-4-5", "anthropic", False),
    Route("https://api.openai.com", KEY, "gpt-5", "responses", False),
    Route("http://127.0.0.1:1", KEY, "gpt-5.4", "chat", False),
    Route("http://127.0.0.1:1", KEY, "gemini/gemini-2.5-pro", "chat", True),
    Route("http://127.0.0.1:1", KEY, "no-such-model", "chat", False),
]
token_counts = st.integers(0, 2000) | st.integers(199_990, 200_010) | st.integers(0, 10**7)


@given(route=st.sampled_from(LISTED), given_=token_counts, output=token_counts, parts=st.tuples(*[st.floats(0, 1)] * 3))
def test_listed_prices_are_those_of_the_lists_own_calculation(
    route: Route, given_: int, output: int, parts: tuple[float, float, float]
) -> None:
    read = int(given_ * parts[0])
    write = int((given_ - read) * parts[1])
    tokens = Tokens(given_, output, read, write, int(write * parts[2]))
    assert price.listed(route, tokens) == price._calculated(route, tokens)


@pytest.mark.parametrize(
    ("model", "wire", "gateway", "found"),
    [
        ("claude-sonnet-4-5", "anthropic", False, True),
        ("gpt-5", "responses", False, True),
        ("gpt-5", "chat", False, True),
        ("claude-sonnet-4-5", "anthropic", True, True),
        ("anthropic/claude-sonnet-4-5", "chat", True, True),
        ("no-such-model", "chat", False, False),
    ],
)
def test_known_prices(model: str, wire: Any, gateway: bool, found: bool) -> None:
    route = Route("http://127.0.0.1:1", KEY, model, wire, gateway)
    assert asyncio.run(price.known(route)) is found


def test_a_direct_call_has_the_listed_price(run: Run) -> None:
    async def test(door: Door) -> None:
        route = door.open("responses", model="gpt-5", models=frozenset({"m"}))
        for usage, tokens in (
            ({"input": 1000, "output": 100, "cached": 400}, Tokens(1000, 100, 400)),
            ({"input": 0, "output": 0}, Tokens(0, 0)),
        ):
            await door.ask("responses", script(text="x", usage=usage))
            assert door.calls[-1].cost == price.listed(route, tokens) is not None
        await door.ask("responses", script(text="x", usage={}))
        assert door.calls[-1].cost is None

    run(test)


def test_a_gateway_is_asked_once_for_the_price_of_a_group() -> None:
    group, free, unpriced = fresh_name(), fresh_name(), fresh_name()
    rates = {"input_cost_per_token": 2e-6, "output_cost_per_token": 1e-5, "cache_read_input_token_cost": 1e-6}
    prices: dict[str, dict[str, Any]] = {
        group: rates,
        free: {"input_cost_per_token": 0, "output_cost_per_token": 0.0},
        unpriced: {"input_cost_per_token": None, "output_cost_per_token": None},
    }

    async def main(server: ModelServer) -> None:
        async with door(server) as opened:
            for model, cost in ((group, 100 * 2e-6 + 50 * 1e-6 + 10 * 1e-5), (free, 0.0), (unpriced, None)):
                route = opened.open("chat", gateway=True, model=model, models=frozenset({"m"}))
                prompt = script(text="x", usage={"input": 150, "output": 10, "cached": 50})
                await opened.ask("chat", prompt)
                await opened.ask("chat", prompt)
                for call in opened.calls[-2:]:
                    assert call.cost == (None if cost is None else pytest.approx(cost))
                assert await price.known(route) is (cost is not None)

    with ModelServer(prices=prices) as server:
        asyncio.run(main(server))
        asked = [r for r in server.requests if r.api == "model_info"]
        assert len(asked) == 4  # twice for the group without a price: both addresses, then no more
        assert asked[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_group_with_several_deployments() -> None:
    def entry(name: str, **info: Any) -> dict[str, Any]:
        return {"model_name": name, "model_info": info}

    cheap = {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}
    dear = {"input_cost_per_token": 2e-6, "output_cost_per_token": 3e-6}
    both = price._find({"data": [entry("g", **cheap), entry("g", **dear), entry("x")]}, "g")
    assert both is not None
    assert both.output == 3e-6
    assert price._find({"data": [entry("g", **cheap), entry("g")]}, "g") is None
    for odd in (
        None,
        [],
        {"data": None},
        {"data": [None, {"model_name": "g"}]},
        {"data": [entry("g", input_cost_per_token="x")]},
    ):
        assert price._find(odd, "g") is None


def test_a_gateway_that_tells_no_prices(run: Run) -> None:
    async def test(door: Door) -> None:
        route = door.open("chat", gateway=True, model=fresh_name(), models=frozenset({"m"}))
        await door.ask("chat")
        assert door.calls[-1].cost is None
        assert not await price.known(route)
        assert not await price.known(Route("http://127.0.0.1:1", KEY, fresh_name(), "chat", True))

    run(test)
