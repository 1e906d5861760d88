"""The tools that read and write files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_LINES = 2000
_WIDTH = 2000  # characters of one line
_BYTES = 64 << 20  # of a file that is read at all
_ENTRIES = 1000


class Wrong(Exception):
    """Why the tool did not do it, for the model."""


def read(path: str, offset: int = 1, limit: int = _LINES) -> str:
    """Lines from ``offset`` (counted from 1), each with its number."""
    lines = _text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    first, limit = max(offset, 1), max(limit, 1)
    shown = islice(enumerate(lines, 1), first - 1, first - 1 + limit)
    out = [f"{number:6}\t{line[:_WIDTH]}{'…' if len(line) > _WIDTH else ''}" for number, line in shown]
    if not out:
        return f"({path} has {len(lines)} lines)"
    if first - 1 + limit < len(lines):
        out.append(f"({len(lines)} lines in all; go on with offset={first + limit})")
    return "\n".join(out)


def write(path: str, content: str) -> str:
    """The whole content of the file; folders on the way are made."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    there = os.path.exists(path)
    _put(path, content)
    return f"{'Replaced' if there else 'Wrote'} {path} ({len(content.encode(errors='surrogatepass'))} bytes)."


def edit(path: str, old: str, new: str, every: bool = False) -> str:
    """One text for another; it must be there once, or ``every`` be asked for."""
    text = _text(path)
    if old and old not in text and "\r\n" in text:
        old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
    found = text.count(old) if old else 0
    if not found:
        raise Wrong(f"{path} does not hold this text. Read it, and give the text as it is there, blanks included.")
    if found > 1 and not every:
        raise Wrong(f"{path} holds this text {found} times. Give more of what is around it, or set all=true.")
    _put(path, text.replace(old, new))
    return f"Changed {path} ({found if every else 1} place{'s' if every and found > 1 else ''})."


def ls(path: str) -> str:
    """The names in a folder; those of folders end with a slash."""
    with os.scandir(path) as entries:
        names = sorted(entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "") for entry in entries)
    if len(names) > _ENTRIES:
        return "\n".join([*names[:_ENTRIES], f"({len(names)} names in all)"])
    return "\n".join(names) or "(empty)"


def _text(path: str) -> str:
    if Path(path).is_dir():
        raise Wrong(f"{path} is a folder; use ls.")
    if (size := os.stat(path).st_size) > _BYTES:
        raise Wrong(f"{path} has {size} bytes; that is too many to read at once. Use grep, or the shell.")
    with open(path, "rb") as file:
        content = b"".join(_regular(file.fileno(), path))
    if b"\0" in content[:8192]:
        raise Wrong(f"{path} is no text ({len(content)} bytes).")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Wrong(f"{path} is no text in UTF-8 ({len(content)} bytes).") from None


def _regular(file: int, path: str) -> Iterator[bytes]:
    """The file's content, as far as it is one of bounded size: a device has no end."""
    left = _BYTES
    while left > 0 and (chunk := os.read(file, min(left, 1 << 20))):
        left -= len(chunk)
        yield chunk
    if left <= 0:
        raise Wrong(f"{path} has no end.")


def _put(path: str, text: str) -> None:
    # What the path leads to was looked at before; a link that is put there since is not followed.
    file = os.open(os.path.realpath(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    with open(file, "wb") as out:
        out.write(text.encode(errors="surrogatepass"))
