"""The JSON in what an agent said: alone, in a code fence, or somewhere in its prose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_OPENS = re.compile(r"\{(?=\s*[\"}])|\[(?=\s*[\]\[{\"\dtfn-])")
_EFFORT = 20_000_000  # characters that are read, some of them again and again
_COUNTED = 20  # characters before a fault whose lines are counted, by the library, in the time that one is read


def values(text: str) -> Iterator[Any]:
    """The JSON values that a text may mean, the likeliest first: the whole, what is fenced in, what is in the prose.
    Of several the last one counts most: what came before it was a draft or an example."""
    try:
        yield loads(text)
        return
    except ValueError:
        pass
    for block in reversed(_FENCE.findall(text)):
        try:
            yield loads(block)
        except ValueError:
            continue
    yield from reversed(list(_in_prose(text)))


def loads(text: str) -> Any:
    """Strict JSON. Raises ValueError, also for NaN, Infinity and what is nested too deeply."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _in_prose(text: str) -> Iterator[Any]:
    """Objects and arrays, none of them inside another."""
    at, effort = 0, 0
    while effort < _EFFORT and (found := _OPENS.search(text, at)):
        at = found.start()
        try:
            value, end = _DECODER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            effort += error.pos - at + 1 + error.pos // _COUNTED
            at += 1
        except (ValueError, RecursionError):
            effort += len(text) - at
            at += 1
        else:
            yield value
            at = end


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
