"""The three-way comparison, as a table."""

from __future__ import annotations

import pytest

from hostler.persistent.comparison import Row, Version, compare, impossible, overlaps, parents

A, B, C = (Version(name) for name in "abc")


@pytest.mark.parametrize(
    ("base", "mine", "theirs", "verdict"),
    [
        (A, A, A, "same"),
        (None, None, None, "same"),
        (A, A, B, "take"),
        (A, A, None, "take"),
        (None, None, B, "take"),
        (A, B, A, "keep"),
        (A, None, A, "keep"),
        (None, B, None, "keep"),
        (A, B, B, "alike"),
        (None, B, B, "alike"),
        (A, None, None, "alike"),
        (A, B, C, "overlap"),
        (A, None, C, "overlap"),
        (A, B, None, "overlap"),
        (None, B, C, "overlap"),
        (A, Version("a", True), B, "overlap"),
        (A, Version("a", True), A, "keep"),
    ],
)
def test_the_table(base: Version | None, mine: Version | None, theirs: Version | None, verdict: str) -> None:
    assert compare(base, mine, theirs) == verdict


@pytest.mark.parametrize(
    ("mine", "rows", "found"),
    [
        ({"a": B}, {"a": Row(A, A)}, []),
        ({"a": B}, {"a": Row(A, C)}, ["a"]),
        ({"a": B}, {"a": Row(A, B)}, []),
        ({"a": B}, {"b": Row(A, C)}, []),
        ({"a/b": B}, {"a": Row(None, C)}, ["a/b"]),  # a folder here, a file there
        ({"a/b": B, "a": None}, {"a": Row(A, A)}, []),  # the file made way for the folder
        ({"a/b": B, "a": None}, {"a": Row(A, C)}, ["a"]),
        ({"a": B}, {"a/b": Row(None, C)}, ["a"]),
        ({"a": B, "a/b": None}, {"a/b": Row(A, A)}, []),
        ({"a": None}, {"a": Row(A, None)}, []),
        ({"ab": B}, {"a": Row(None, C)}, []),
    ],
)
def test_overlaps_by_path(mine: dict[str, Version | None], rows: dict[str, Row], found: list[str]) -> None:
    assert overlaps(mine, rows) == found


def test_a_path_that_is_file_and_folder() -> None:
    assert list(parents("a/b/c")) == ["a", "a/b"]
    assert impossible(["a/b", "c", "a"]) == "a"
    assert impossible(["a-b", "a/b", "ab"]) is None
