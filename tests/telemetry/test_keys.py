"""Masking by key and by path."""

from __future__ import annotations

from typing import Any

import pytest

from hostler.telemetry.keys import Keys
from hostler.telemetry.redaction import MASK, Masker
from hostler.types.events import Approval, Text, ToolCall, ToolResult


@pytest.mark.parametrize(
    "name",
    ["password", "Password", "db_password", "accessToken", "X-Api-Key", "apikey", "API_KEY", "Authorization", "cookie"],
)
def test_the_usual_keys(name: str) -> None:
    assert Keys().mask({"a": [{name: "hunter2", "b": 1}]}) == {"a": [{name: MASK, "b": 1}]}


@pytest.mark.parametrize(
    "name", ["max_tokens", "tokens", "secretary", "passwords", "keyboard", "author", "token_count"]
)
def test_words_that_only_look_alike(name: str) -> None:
    value = {name: "x"}
    assert Keys().mask(value) is value


def test_whole_values_and_no_empty_ones() -> None:
    given = {"token": {"a": 1}, "secret": None, "cookie": [1]}
    assert Keys().mask(given) == {"token": MASK, "secret": None, "cookie": MASK}


@pytest.mark.parametrize(
    ("names", "given", "masked"),
    [
        (["customer.ssn"], {"customer": {"ssn": 1}, "ssn": 2}, {"customer": {"ssn": MASK}, "ssn": 2}),
        (["*.ssn"], [{"ssn": 1}, {"a": {"ssn": 2}}], [{"ssn": MASK}, {"a": {"ssn": 2}}]),
        (["a.0"], {"a": [1, 2]}, {"a": [MASK, 2]}),
        (["iban"], {"IBAN": 1, "token": 2}, {"IBAN": MASK, "token": 2}),
        ([], {"password": 1}, {"password": 1}),
    ],
)
def test_what_the_app_names(names: list[str], given: Any, masked: Any) -> None:
    assert Keys(names).mask(given) == masked


def test_values_of_all_kinds_and_depths() -> None:
    for value in (None, 7, "password", [], {}, [{"a": (1, 2)}]):
        assert Keys().mask(value) is value
    deep: Any = "x"
    for _ in range(400):
        deep = {"a": deep}
    shown: Any = Keys().mask(deep)
    for _ in range(100):
        shown = shown["a"]
    assert MASK in str(shown)


def test_what_a_sub_agent_said_ends_with_its_result() -> None:
    masker = Masker(["planted-secret-1"])
    assert masker.events(Text("a", "so far p"), "s1") == [(Text("a", "so far "), "s1")]
    result = ToolResult("s1", "")
    assert masker.events(result) == [(Text("a", "p"), "s1"), (result, None)]


def test_only_what_is_given_to_tools_is_masked_by_key() -> None:
    masker = Masker(["planted-secret-1"], Keys())
    call = ToolCall("1", "login", "login", {"password": "hunter2", "user": "u planted-secret-1"})
    result = ToolResult("1", '{"password": "as the tool said it"}')
    approval = Approval("2", "login", {"token": "t"})
    shown = [event for e in (call, result, approval) for event, _ in masker.events(e)]
    assert shown[0].input == {"password": MASK, "user": f"u {MASK}"}  # type: ignore[union-attr]
    assert shown[1] == result
    assert shown[2].input == {"token": MASK}  # type: ignore[union-attr]
    assert call.input["password"] == "hunter2"
