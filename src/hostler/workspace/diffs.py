"""What differs between two looks at a workspace, with unified diffs of text."""

from __future__ import annotations

import difflib
import json
import stat
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from operator import ne
from typing import Protocol

from ..types.events import FileChange
from .scan import Entry, Snapshot, inside

_ALL_DIFFS = 4 << 20  # characters of diff in one turn
_ALL_TIME = 2.0  # seconds spent on the diffs of one turn
_CONTEXT = 3
_SMALL = 40_000  # lines times lines that difflib, quadratic and worse, may compare


class Contents(Protocol):
    """Where `diff` finds file contents. None: unknown, not text, or too large."""

    def old(self, path: str, entry: Entry) -> bytes | None: ...

    def new(self, path: str, entry: Entry) -> bytes | None: ...


def diff(before: Snapshot, after: Snapshot, contents: Contents) -> list[FileChange]:
    """The changes from ``before`` to ``after`` by path; no file that was only touched, if its old content is known.

    Diffs stop (None) when the turn's would be larger or take longer than anybody wants to wait for or to read.
    """
    left, deadline = _ALL_DIFFS, time.monotonic() + _ALL_TIME
    changes = []
    for path in sorted(_differing(before, after)):
        old, new = before.entries.get(path), after.entries.get(path)
        text: str | None = None
        if left > 0 and time.monotonic() < deadline and _regular(old) and _regular(new):
            a = b"" if old is None else contents.old(path, old)
            b = b"" if new is None or a is None else contents.new(path, new)
            if a is not None and b is not None:
                if old and new and a == b and stat.S_IMODE(old[0]) == stat.S_IMODE(new[0]):
                    continue
                text = unified(a, b, printable(path), old is not None, new is not None) if a != b else None
                left -= len(text or "")
        changes.append(
            FileChange(printable(path), "created" if old is None else "deleted" if new is None else "modified", text)
        )
    return changes


def printable(path: str) -> str:
    """A path that any encoder takes: bytes that are no UTF-8 become ``\\xNN``."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_text(data: bytes) -> bool:
    """Whether a diff of it makes sense: it is UTF-8 and holds no NUL."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _regular(entry: Entry | None) -> bool:
    return entry is None or stat.S_ISREG(entry[0])


def _differing(before: Snapshot, after: Snapshot) -> Iterator[str]:
    found = map(after.entries.get, before.entries)
    for path in compress(before.entries, map(ne, before.entries.values(), found)):
        if path not in after.entries:
            if not inside(path, after.skipped):
                yield path
        elif not _same_link(path, before, after):
            yield path
    for path in after.entries.keys() - before.entries.keys():
        if not inside(path, before.skipped):
            yield path


def _same_link(path: str, before: Snapshot, after: Snapshot) -> bool:
    return path in before.links and before.links[path] == after.links.get(path)


# ---- unified diffs ---------------------------------------------------------------------------------------------------


def unified(old: bytes, new: bytes, path: str, existed: bool = True, exists: bool = True) -> str:
    """A diff in the form that ``git apply`` and ``patch`` take. Lines end at LF and nowhere else."""
    a, b = _lines(old), _lines(new)
    out = [f"--- {_header('a/' + path) if existed else '/dev/null'}\n"]
    out.append(f"+++ {_header('b/' + path) if exists else '/dev/null'}\n")
    for hunk in _hunks(_edits(a, b)):
        top, bottom = hunk[0], hunk[-1]
        i1, j1 = max(top[0] - _CONTEXT, 0), max(top[2] - _CONTEXT, 0)
        i2, j2 = min(bottom[1] + _CONTEXT, len(a)), min(bottom[3] + _CONTEXT, len(b))
        out.append(f"@@ -{_span(i1, i2)} +{_span(j1, j2)} @@\n")
        at = i1
        for a1, a2, b1, b2 in hunk:
            out += (_marked(" ", line) for line in a[at:a1])
            out += (_marked("-", line) for line in a[a1:a2])
            out += (_marked("+", line) for line in b[b1:b2])
            at = a2
        out += (_marked(" ", line) for line in a[at:i2])
    return "".join(out)


def _lines(data: bytes) -> list[str]:
    lines = data.decode().split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def _header(name: str) -> str:
    """Odd names in quotes, names with spaces ended by a tab, as git and patch expect them."""
    if not name.isprintable() or '"' in name or "\\" in name:
        return json.dumps(name, ensure_ascii=False)
    return name + "\t" if " " in name else name


def _marked(mark: str, line: str) -> str:
    return mark + line if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _span(start: int, end: int) -> str:
    size = end - start
    return f"{start + 1 if size else start},{size}" if size != 1 else str(start + 1)


Edit = tuple[int, int, int, int]  # lines [0:1] of the old text become lines [2:3] of the new


def _hunks(edits: Iterable[Edit]) -> Iterator[list[Edit]]:
    hunk: list[Edit] = []
    for edit in edits:
        if hunk and edit[0] - hunk[-1][1] > 2 * _CONTEXT:
            yield hunk
            hunk = []
        hunk.append(edit)
    if hunk:
        yield hunk


def _edits(a: Sequence[str], b: Sequence[str]) -> Iterator[Edit]:
    """What is between the matching blocks."""
    i = j = 0
    for a1, b1, size in [*sorted(_matches(a, b)), (len(a), len(b), 0)]:
        if i < a1 or j < b1:
            yield i, a1, j, b1
        i, j = a1 + size, b1 + size


def _matches(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Matching blocks by the patience method: lines that are unique on both sides split the text into parts, and what
    remains without such lines is compared by difflib when small, else taken as replaced. Never quadratic."""
    pending = [(0, len(a), 0, len(b))]
    while pending:
        i1, i2, j1, j2 = pending.pop()
        size = 0
        while i1 + size < i2 and j1 + size < j2 and a[i1 + size] == b[j1 + size]:
            size += 1
        if size:
            yield i1, j1, size
            i1, j1 = i1 + size, j1 + size
        size = 0
        while i1 < i2 - size and j1 < j2 - size and a[i2 - size - 1] == b[j2 - size - 1]:
            size += 1
        if size:
            yield i2 - size, j2 - size, size
            i2, j2 = i2 - size, j2 - size
        if i1 == i2 or j1 == j2:
            continue
        if anchors := _anchors(a, b, i1, i2, j1, j2):
            i, j = i1, j1
            for a1, b1 in anchors:
                pending.append((i, a1, j, b1))
                i, j = a1, b1
            pending.append((i, i2, j, j2))
        elif (i2 - i1) * (j2 - j1) <= _SMALL:
            for block in difflib.SequenceMatcher(None, a[i1:i2], b[j1:j2], autojunk=False).get_matching_blocks():
                if block.size:
                    yield i1 + block.a, j1 + block.b, block.size


def _anchors(a: Sequence[str], b: Sequence[str], i1: int, i2: int, j1: int, j2: int) -> list[tuple[int, int]]:
    """The longest rising chain of lines that are unique on both sides."""
    ours, theirs = _unique(a, i1, i2), _unique(b, j1, j2)
    pairs = [(i, theirs[line]) for line, i in ours.items() if line in theirs]
    tops: list[int] = []  # the smallest end, in b, of a chain of each length
    chain_at: list[int] = []  # the pair that is this end
    previous: list[int] = []
    for number, (_, j) in enumerate(pairs):
        length = bisect_left(tops, j)
        previous.append(chain_at[length - 1] if length else -1)
        tops[length : length + 1] = [j]
        chain_at[length : length + 1] = [number]
    found = []
    number = chain_at[-1] if chain_at else -1
    while number >= 0:
        found.append(pairs[number])
        number = previous[number]
    return found[::-1]


def _unique(lines: Sequence[str], start: int, end: int) -> dict[str, int]:
    """Lines that occur once, with where, in order."""
    seen: dict[str, int] = {}
    for at in range(start, end):
        seen[lines[at]] = -1 if lines[at] in seen else at
    return {line: at for line, at in seen.items() if at >= 0}
