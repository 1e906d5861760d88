"""Bytes of one output line to the JSON objects in it, whatever else a program prints between them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from .. import exact_json

PREVIEW = 300
_TRIES = 16  # of "{" on one line that begin no object: bounds the work on a line that is not JSON at all
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair: legal in JSON, in no encoding
_DIGITS = 4000  # Python reads no longer whole numbers


def _finite(text: str) -> float | None:
    value = float(text)
    return value if isfinite(value) else None


# NaN and Infinity are not JSON, and a number that no store can hold is nothing.
_DECODER = json.JSONDecoder(
    parse_constant=lambda _: None,
    parse_float=_finite,
    parse_int=lambda text: int(text) if len(text) < _DIGITS else None,
)


@dataclass(frozen=True, slots=True)
class Line:
    """What a line held: its JSON objects in order, and a bounded preview of the rest (empty if there was none)."""

    objects: tuple[dict[str, Any], ...]
    noise: str = ""


def decode_line(data: bytes) -> Line:
    """Read a line without its newline. Tolerates a byte order mark, CR, bytes that are not UTF-8, text before and
    after an object and several objects on one line. Splits at nothing but JSON, so U+2028 stays in its string."""
    try:
        if isinstance(value := exact_json.read(data), dict):
            return Line((value,))  # nearly every line is just that
    except ValueError:
        pass
    text = data.decode("utf-8", "replace").lstrip("\ufeff").strip()
    objects: list[dict[str, Any]] = []
    noise: list[str] = []
    for part in _parts(text):
        if isinstance(part, str):
            if part := part.strip():
                noise.append(part[:PREVIEW])
        else:
            objects.append(part)
    return Line(tuple(objects), " … ".join(noise)[:PREVIEW])


def encode_line(message: Any) -> bytes:
    """One line of JSON, in ASCII: no program can split it at an exotic line separator."""
    return json.dumps(message, separators=(",", ":")).encode()


def _parts(text: str) -> Iterator[str | dict[str, Any]]:
    done = at = tries = 0
    while tries < _TRIES and (at := text.find("{", at)) >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            if not text[done:at].strip():
                break  # a torn object: what is whole inside it was not said by the program
            tries += 1
            at += 1
            continue
        if done < at:
            yield text[done:at]
        yield _clean(value) if "\\ud" in text or "\\uD" in text else value
        done = at = end
    if done < len(text):
        yield text[done:]


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(v) for v in value]
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    return value
