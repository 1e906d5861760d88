"""Finds files by name and lines by pattern. Runs alone (``python -I -S search.py JSON``), so that it can be ended."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

_SKIPPED = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"}
_FILES = 200  # told
_MATCHES = 500  # told
_WIDTH = 400  # characters of a line
_BYTES = 4 << 20  # of a file that is searched
_PARTS = re.compile(r"\*\*/|\*\*|.", re.DOTALL)
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def glob(root: str, pattern: str) -> list[str]:
    """Files below ``root`` that fit, the newest first."""
    fits = _fitting(pattern)
    found = [path for path in _files(root) if fits(os.path.relpath(path, root))]
    return sorted(found, key=_changed, reverse=True)


def grep(root: str, pattern: str, only: str | None, fold: bool) -> Iterator[str]:
    """``path:line number:line`` for each line that fits."""
    wanted = re.compile(pattern, re.IGNORECASE if fold else 0)
    fits = _fitting(only) if only else None
    for path in [root] if os.path.isfile(root) else _files(root):
        if fits is not None and not fits(os.path.relpath(path, root)):
            continue
        for number, line in enumerate(_lines(path), 1):
            if wanted.search(line):
                yield f"{path}:{number}:{line[:_WIDTH]}"


def _files(root: str) -> Iterator[str]:
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        yield from (os.path.join(folder, name) for name in sorted(files))


def _fitting(pattern: str) -> Callable[[str], bool]:
    """``**`` stands for any folders, ``*`` and ``?`` for a part of one name, ``{a,b}`` for either; a pattern without a
    slash is about the name alone."""
    whole = re.compile("".join(_WILD.get(part, re.escape(part)) for part in _PARTS.findall(pattern)), re.DOTALL)
    if "/" in pattern:
        return lambda path: whole.fullmatch(path) is not None
    return lambda path: whole.fullmatch(os.path.basename(path)) is not None


def _lines(path: str) -> Iterator[str]:
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _BYTES:
            return
        with open(path, "rb") as file:
            content = file.read(_BYTES)
    except OSError:
        return
    if b"\0" not in content[:8192]:
        yield from content.decode(errors="replace").split("\n")


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _told(lines: list[str], most: int) -> str:
    more = ["(there are more; ask for less)"] if len(lines) > most else []
    return "\n".join([*lines[:most], *more]) or "(nothing found)"


def main(given: dict[str, Any]) -> str:
    root = given["root"]
    if not os.path.exists(root):
        raise SystemExit(f"There is no {root}.")
    if given["what"] == "glob":
        return _told(glob(root, given["pattern"]), _FILES)
    lines: list[str] = []
    try:
        for line in grep(root, given["pattern"], given.get("only"), bool(given.get("fold"))):
            lines.append(line)
            if len(lines) > _MATCHES:
                break
    except re.error as error:
        raise SystemExit(f"{given['pattern']!r} is no regular expression: {error}.") from None
    return _told(lines, _MATCHES)


if __name__ == "__main__":
    sys.stdout.buffer.write(main(json.loads(sys.argv[1])).encode(errors="replace"))
