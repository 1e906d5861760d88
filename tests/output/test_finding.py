"""JSON in what agents say."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hostler.output.finding import values

A: dict[str, Any] = {"a": 1}
B: dict[str, Any] = {"b": [{"c": "}"}]}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', [A]),
        ('\n \t{"a": 1}\n', [A]),
        ("3", [3]),
        ("null", [None]),
        ('"word"', ["word"]),
        ('"{\\"a\\": 1}"', ['{"a": 1}']),
        ('Here it is:\n```json\n{"a": 1}\n```\nDone.', [A, A]),
        ('```\n{"a": 1}\n```', [A, A]),
        ('  ```JSON5 x\n{"a": 1}\n  ```', [A, A]),
        ('```json\n{"a": 0}\n```\nno, better:\n```json\n{"a": 1}\n```', [A, {"a": 0}, A, {"a": 0}]),
        ('The answer {"a": 1} is final.', [A]),
        ('First {"a": 1}, then {"b": [{"c": "}"}]}.', [B, A]),
        ('Use {braces} and [brackets], then {"a": 1}', [A]),
        ('{"a": 1}{"b": [{"c": "}"}]}', [B, A]),
        ('[{"a": 1}] and more', [[A]]),
        ('{"text": "```json\\n{\\"a\\": 2}\\n```"}', [{"text": '```json\n{"a": 2}\n```'}]),
        ('{"ключ": "日本 \\ud83d\\udc4d 👍\\u2028"}', [{"ключ": "日本 👍 👍\u2028"}]),
        ('{"a": 1', []),
        ('{"a": {"b": 2}, "cut": [1, 2', [{"b": 2}]),  # cut at the model's limit: what is left does not fit
        ("{'a': 1}", []),
        ('{"a": NaN}', []),
        ('{"a": Infinity} {"a": 1}', [A]),
        ('{"a": ' + "9" * 5000 + "}", []),
        ("", []),
        ("no json at all", []),
        ("\ufeff", []),
    ],
)
def test_what_is_found(text: str, found: list[Any]) -> None:
    assert list(values(text)) == found


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 1_000_000, '{"a":' * 20_000, "[1," * 100_000, '{"a" ' * 200_000])
def test_what_is_meant_to_take_long_does_not(text: str) -> None:
    start = time.monotonic()
    assert list(values(text)) == []
    assert time.monotonic() - start < 5
