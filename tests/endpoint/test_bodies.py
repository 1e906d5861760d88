"""Requests go out as they came but for what hostler changes, whatever is in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.endpoint import bodies
from hostler.endpoint.google import told_once
from hostler.endpoint.routes import WireName
from hostler.endpoint.wires import pin

texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)  # halves of surrogate pairs, too
numbers = st.integers() | st.integers(-(2**70), 2**70) | st.floats()
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["model", "stream", "stream_options", "contents", "api_base", "litellm_x"]) | texts
requests = st.dictionaries(names, values, max_size=5)


def exactly(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@given(
    fields=requests,
    wire=st.sampled_from(["anthropic", "responses", "chat", "gemini"]),
    escaped=st.booleans(),
    gateway=st.booleans(),
)
def test_what_goes_out_is_what_came_but_for_our_changes(
    fields: dict[str, Any], wire: WireName, escaped: bool, gateway: bool
) -> None:
    raw = json.dumps(fields, ensure_ascii=escaped).encode(errors="surrogatepass")

    def changed(body: dict[str, Any]) -> dict[str, Any]:
        return told_once(pin(body, "the-model", wire, gateway=gateway))

    body = bodies.read(raw)
    assert body is not None
    sent = body.written(changed(body.fields))
    assert exactly(json.loads(sent)) == exactly(changed(json.loads(raw)))


@given(fields=requests, indent=st.sampled_from([None, 1]))
def test_what_is_not_changed_goes_out_as_the_bytes_that_came(fields: dict[str, Any], indent: int | None) -> None:
    given = {"model": "m", **{k: v for k, v in fields.items() if k not in ("model", "api_base", "litellm_x")}}
    raw = json.dumps(given, indent=indent).encode()
    body = bodies.read(raw)
    assert body is not None
    sent = body.written(pin(body.fields, "m", "responses"))
    if body.common and raw.count(b'"model"') == 1 and b"\\u006" not in raw:
        assert sent == raw
    assert exactly(json.loads(sent)) == exactly(json.loads(raw))


@pytest.mark.parametrize(
    "number",
    ["18446744073709551615", "18446744073709551616", "-9223372036854775809", "9" * 60, "NaN", "-Infinity", "1e999"],
)
@pytest.mark.parametrize("model", ["m", "other"])
def test_no_number_changes(number: str, model: str) -> None:
    body = bodies.read(f'{{"model": "m", "seed": {number}}}'.encode())
    assert body is not None
    sent = body.written(pin(body.fields, model, "chat"))
    assert exactly(json.loads(sent)) == exactly({"model": model, "seed": json.loads(number)})


@pytest.mark.parametrize("first", [b'"model"', b'"mod\\u0065l"', b'"\\u006Dodel"'])
def test_a_model_that_is_named_twice_is_not_passed_on(first: bytes) -> None:
    body = bodies.read(b"{" + first + b': "dearer", "model": "m"}')
    assert body is not None
    assert body.written(pin(body.fields, "m", "anthropic")) == b'{"model":"m"}'


def test_requests_that_orjson_does_not_write() -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"in": deep}
    body = bodies.read(json.dumps({"model": "m", "deep": deep}).encode())
    assert body is not None
    assert json.loads(body.written(pin(body.fields, "n", "chat"))) == {"model": "n", "deep": deep}


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"1", b'"x"', b"{}}", b"[" * 100_000, b"\xff\xfe"])
def test_no_object_is_no_request(raw: bytes) -> None:
    assert bodies.read(raw) is None
