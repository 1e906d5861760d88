"""Which upstream, key and model name an option and the environment give."""

from __future__ import annotations

import re
from typing import Any

import pytest
from endpoint_door import KEY
from hypothesis import given
from hypothesis import strategies as st

from hostler.endpoint import Route, route_for
from hostler.endpoint.scrub import MASK, Scrub, scrubbed
from hostler.types.errors import CapabilityUnsupported, HarnessError, OptionsMismatch

ENVIRON = {
    "LITELLM_PROXY_API_BASE": "https://gateway.example/v1",
    "LITELLM_PROXY_API_KEY": "gateway-key",
    "ANTHROPIC_API_KEY": "anthropic-key",
    "OPENAI_API_KEY": "openai-key",
}


def route(model: str | None, wire: str = "anthropic", environ: Any = ENVIRON, **given: Any) -> Route:
    return route_for(model, wire=wire, environ=environ, **{"api_base": None, "api_key": None, **given})


def test_the_gateway() -> None:
    for wire, path in (("anthropic", "messages"), ("responses", "responses"), ("chat", "chat/completions")):
        found = route("litellm_proxy/coder", wire)
        assert (found.model, found.key, found.gateway, found.wire) == ("coder", "gateway-key", True, wire)
        assert found.url == f"https://gateway.example/v1/{path}"
    given = route("litellm_proxy/a/b", api_base="http://10.0.0.1:4000/sub/", api_key="mine")
    assert (given.model, given.key, given.url) == ("a/b", "mine", "http://10.0.0.1:4000/sub/v1/messages")


@pytest.mark.parametrize(
    ("model", "wire", "environ", "url", "key"),
    [
        ("claude-x", "anthropic", {}, "https://api.anthropic.com/v1/messages", "anthropic-key"),
        ("anthropic/claude-x", "anthropic", {}, "https://api.anthropic.com/v1/messages", "anthropic-key"),
        ("claude-x", "anthropic", {"ANTHROPIC_BASE_URL": "http://h:1"}, "http://h:1/v1/messages", "anthropic-key"),
        ("claude-x", "anthropic", {"ANTHROPIC_BASE_URL": ""}, "https://api.anthropic.com/v1/messages", "anthropic-key"),
        ("gpt-x", "responses", {}, "https://api.openai.com/v1/responses", "openai-key"),
        ("openai/gpt-x", "chat", {}, "https://api.openai.com/v1/chat/completions", "openai-key"),
        ("gpt-x", "chat", {"OPENAI_BASE_URL": "http://h/v1"}, "http://h/v1/chat/completions", "openai-key"),
        ("gpt-x", "chat", {"OPENAI_BASE_URL": "http://h/api/v4/"}, "http://h/api/v4/chat/completions", "openai-key"),
    ],
)
def test_the_provider_of_the_wire(model: str, wire: str, environ: dict[str, str], url: str, key: str) -> None:
    found = route(model, wire, {**ENVIRON, **environ})
    assert (found.url, found.key, found.gateway) == (url, key, False)
    assert found.model == model.rpartition("/")[2]


def test_a_name_of_another_provider_is_taken_whole_behind_the_prefix() -> None:
    assert route("openai/anthropic/claude-x", "chat", api_base="https://r.example/v1").model == "anthropic/claude-x"
    assert route("meta/llama", "chat", api_base="https://r.example/v1").model == "meta/llama"


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (None, {}, "model="),
        ("", {}, "model="),
        ("litellm_proxy/", {}, "names no model"),
        ("anthropic/", {}, "names no model"),
        ("litellm_proxy/x", {"environ": {}}, "api_base= or set LITELLM_PROXY_API_BASE"),
        ("litellm_proxy/x", {"environ": {}, "api_base": "http://h"}, "api_key= or set LITELLM_PROXY_API_KEY"),
        ("claude-x", {"environ": {}}, "api_key= or set ANTHROPIC_API_KEY"),
        ("gpt-x", {"environ": {}, "wire": "chat"}, "api_key= or set OPENAI_API_KEY"),
        ("claude-x", {"api_key": "  ", "environ": {}}, "ANTHROPIC_API_KEY"),
        ("claude-x", {"api_base": "ftp://h"}, "not an http(s) URL"),
        ("claude-x", {"api_base": "host:4000"}, "not an http(s) URL"),
        ("claude-x", {"api_base": "http://h:x"}, "not an http(s) URL"),
        ("claude-x", {"api_base": "http://h?a=b"}, "without a query"),
        ("claude-x", {"api_base": f"http://u:{KEY}@h"}, "user name or password"),
        ("claude-x", {"api_key": f"{KEY}\nx-other: y"}, "characters that no key has"),
        ("claude-x", {"api_key": f"{KEY}ä"}, "characters that no key has"),
    ],
)
def test_what_is_missing_or_wrong_is_named(model: str | None, given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionsMismatch, match=re.escape(words)) as caught:
        route(model, **given)
    assert KEY not in str(caught.value)
    assert isinstance(caught.value, HarnessError)


@pytest.mark.parametrize(
    ("model", "wire", "words"),
    [
        ("openai/gpt-x", "anthropic", 'pip install "hostler[litellm]"'),
        ("anthropic/claude-x", "responses", "hostler[litellm]"),
        ("anthropic/claude-x", "chat", "openai/anthropic/claude-x"),
        ("openai/gpt-x", "gemini", "nothing here translates between the two"),
        ("gemini/gemini-x", "chat", "openai/gemini/gemini-x"),
        ("x", "smoke", "'smoke'"),
    ],
)
def test_a_wire_that_the_provider_does_not_speak(model: str, wire: str, words: str) -> None:
    with pytest.raises(CapabilityUnsupported, match=re.escape(words)):
        route(model, wire, translates=lambda: False)


@pytest.mark.parametrize(
    ("model", "wire", "url", "key"),
    [
        ("openai/gpt-x", "anthropic", "https://api.openai.com/v1/chat/completions", "openai-key"),
        ("openai/meta/llama", "anthropic", "https://api.openai.com/v1/chat/completions", "openai-key"),
        ("anthropic/claude-x", "responses", "https://api.anthropic.com/v1/messages", "anthropic-key"),
        ("anthropic/claude-x", "chat", "https://api.anthropic.com/v1/messages", "anthropic-key"),
    ],
)
def test_a_wire_that_is_translated(model: str, wire: str, url: str, key: str) -> None:
    found = route(model, wire, translates=lambda: True)
    assert (found.url, found.key, found.program, found.asked) == (url, key, wire, wire)
    assert found.model == model.partition("/")[2]
    assert found.upstream.asked == found.wire
    assert route("openai/gpt-x", "chat", translates=lambda: True).program is None
    assert route("litellm_proxy/x", wire, translates=lambda: True).program is None


def test_a_route_does_not_show_its_key() -> None:
    shown = repr(route("claude-x", api_key=KEY))
    assert KEY not in shown
    assert "claude-x" in shown


@given(text=st.text(alphabet="abk", max_size=40), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_a_secret_is_removed_however_it_is_split(text: str, cuts: list[int]) -> None:
    secret, data = "abkababk", text.encode()
    scrub, out, at = Scrub(secret), b"", 0
    for end in [*sorted(min(c, len(data)) for c in cuts), len(data)]:
        out += scrub.feed(data[at:end])
        at = end
    out += scrub.rest()
    assert out == data.replace(secret.encode(), MASK)


def test_nothing_is_held_back_without_need() -> None:
    scrub = Scrub("secret-key")
    assert scrub.feed(b"data: {}\n\n") == b"data: {}\n\n"
    assert scrub.feed(b"data: sec") == b"data: "
    assert scrub.feed(b"ond\n\n") == b"second\n\n"
    assert Scrub(None).feed(b"x") == b"x"
    assert Scrub("EMPTY").feed(b'{"state": "EMPTY"}') == b'{"state": "EMPTY"}'  # as local servers are told
    assert scrubbed("an EMPTY list", "EMPTY") == "an EMPTY list"
