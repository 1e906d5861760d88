"""Files of JSON lines that were cut, damaged or are of enormous lines."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hostler.workspace.native import jsonl

GOOD = [b'{"a": 1}', b"{}", b' {"b": "\\u0000"} ', b'{"x": "' + b"y" * 70_000 + b'"}']
BAD = [b"", b"  ", b"\0\0\0", b'{"a": \0}', b"garbage", b'{"cut": "off', b'{"x": "' + b"y" * 70_000]


def looks_whole(line: bytes) -> bool:
    line = line.strip()
    return line.startswith(b"{") and line.endswith(b"}") and b"\0" not in line


@given(lines=st.lists(st.sampled_from([*GOOD, *BAD]), max_size=8), ended=st.booleans())
@example(lines=[GOOD[3], GOOD[3]], ended=False)
@example(lines=[b"x" * ((1 << 16) - 1), GOOD[0]], ended=True)
def test_it_says_what_reading_line_by_line_would(lines: list[bytes], ended: bool) -> None:
    content = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    file, size = io.BytesIO(content), len(content)
    cut = content.split(b"\n")
    assert b"".join(jsonl.records(file, size)) == b"".join(line + b"\n" for line in cut if looks_whole(line))
    filled = [line for line in cut if line.strip()]
    assert jsonl.is_sound(file, 0, size) == (bool(filled) and all(map(looks_whole, filled)))
    end, open_ended = jsonl.whole(file, size)
    if not cut[-1]:
        assert (end, open_ended) == (size, False)
    elif cut[-1] in GOOD:
        assert (end, open_ended) == (size, True)
    else:
        assert (end, open_ended) == (size - len(cut[-1]), False)


@pytest.mark.parametrize("ended", [True, False])
def test_one_line_of_many_megabytes_is_not_held_in_memory(ended: bool, tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps({"a": 1}).encode() + b'\n{"x": "')
        for _ in range(96):
            file.write(b"y" * (1 << 20))
        file.write(b'"}' + (b"\n" if ended else b""))
    size = path.stat().st_size
    with path.open("rb") as source:
        tracemalloc.start()
        try:
            assert jsonl.whole(source, size) == (size, not ended)
            assert jsonl.is_sound(source, 0, size)
            assert sum(map(len, jsonl.records(source, size))) == size + (not ended)
            assert jsonl.whole(source, size - 1 - ended) == (9, False)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 2 << 20
