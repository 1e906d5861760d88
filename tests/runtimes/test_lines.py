"""Bytes of a line to JSON objects."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.runtimes.lines import PREVIEW, decode_line, encode_line


@pytest.mark.parametrize(
    ("data", "objects", "noise"),
    [
        (b'{"a": 1}', [{"a": 1}], ""),
        (b'\xef\xbb\xbf{"a": 1}\r', [{"a": 1}], ""),
        (b'{"a": 1}{"b": 2} {"c": 3}', [{"a": 1}, {"b": 2}, {"c": 3}], ""),
        (b'warning: {odd} {"a": 1}', [{"a": 1}], "warning: {odd}"),
        (b'{"a": 1} tail', [{"a": 1}], "tail"),
        (b"", [], ""),
        (b"null", [], "null"),
        (b'{"outer": {"inner": 1}, "torn', [], '{"outer": {"inner": 1}, "torn'),
        (b'{"a": "\xff"}', [{"a": "\ufffd"}], ""),
        (b'{"a": "\\ud83d"}', [{"a": "\ufffd"}], ""),
        (b'{"a": "\\ud83d\\ude00"}', [{"a": "\U0001f600"}], ""),
        ('{"a": "x\u2028y"}'.encode(), [{"a": "x\u2028y"}], ""),
        (b'{"a": NaN}', [{"a": None}], ""),
    ],
)
def test_what_a_line_holds(data: bytes, objects: list[object], noise: str) -> None:
    line = decode_line(data)
    assert list(line.objects) == objects
    assert line.noise == noise


@pytest.mark.parametrize("data", [b"{" * 200_000, b'{"a":' * 100_000, b"x{" * 200_000, b"[" * 200_000])
def test_a_hostile_line_costs_little_and_is_cut_short(data: bytes) -> None:
    line = decode_line(data)
    assert line.objects == ()
    assert 0 < len(line.noise) <= PREVIEW


_VALUES = st.recursive(st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists, max_leaves=5)


@given(st.dictionaries(st.text(), _VALUES, min_size=1))
def test_what_is_encoded_is_decoded(message: dict[str, object]) -> None:
    data = encode_line(message)
    assert b"\n" not in data
    assert data.isascii()
    assert decode_line(data + b"\r").objects == (json.loads(json.dumps(message)),)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    json.dumps([decode_line(data).objects, decode_line(data).noise]).encode()
