"""A persistent dir as the agent's memory: an index that later turns are told, and a tool to remember."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Callable

from ..types.errors import PathError
from ..workspace.confined import Root, make_folder
from ..workspace.layout import SessionDirs
from ..workspace.scan import scan
from .dirs import VIRTUAL, PersistentDir
from .folder import is_unfinished

_LINE = 160  # characters of a file's first line
_LOOKED_AT = 500  # files, the newest


def memory(dir: PersistentDir, *, index_bytes: int = 4096) -> PersistentDir:
    """``dir`` as the agent's memory: of each file in it, the newest first, later turns are told the name and the first
    line, in at most ``index_bytes``; and the agent gets a tool ``remember`` that writes a note into it.

    A turn is told again only when the index has changed. A session has one memory.
    """
    if not isinstance(dir, PersistentDir):
        raise TypeError(f"memory takes a persistent dir, such as local_dir('memory'), not {dir!r}.")
    if not isinstance(index_bytes, int) or index_bytes <= 0:
        raise ValueError(f"index_bytes must be a positive number, not {index_bytes!r}.")
    return dataclasses.replace(dir, index=index_bytes)


def index_of(persistent: str, dir: PersistentDir) -> list[str]:
    """The lines of a memory's index, from its checkout."""
    root = Root(persistent, VIRTUAL)
    entries = scan(f"{root.path}/{dir.name}", frozenset()).entries
    newest = sorted(entries, key=lambda path: (-entries[path][2], path))
    lines: list[str] = []
    left = dir.index or 0
    for number, path in enumerate(newest):
        line = f"- and {len(newest) - number} more"
        if number < _LOOKED_AT and not is_unfinished(path):
            about = _first_line(root, f"{dir.name}/{path}")
            line = f"- {_plain(path)}" + (f": {about}" if about else "")
        left -= len(line.encode()) + 1
        if left < 0 or number >= _LOOKED_AT:
            return [*lines, f"- and {len(newest) - number} more"]
        lines.append(line)
    return lines


def remember_tool(dirs: SessionDirs, dir: PersistentDir) -> Callable[..., str]:
    """The tool, for the session with these folders. A note is a file of its own, so that two sessions that remember at
    the same time are not in each other's way."""

    def remember(note: str) -> str:
        """Keep a note for later sessions. Its first line is what you will be shown of it, so begin with what it is about."""
        text = note.strip()
        if not text:
            raise ValueError("The note is empty.")
        slug = re.sub(r"[^a-z0-9]+", "-", text.split("\n")[0].lower())[:40].strip("-") or "note"
        name = f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.md"
        make_folder(f"{dirs.persistent}/{dir.name}")
        Root(dirs.persistent, VIRTUAL).write(f"{dir.name}/{name}", text.encode() + b"\n")
        return f"Remembered in {dir.path}/{name}."

    return remember


def _first_line(root: Root, path: str) -> str:
    with contextlib.suppress(OSError, PathError):
        text = root.read(path, 4 * _LINE).decode(errors="replace").strip()
        return _plain(text.split("\n")[0].lstrip("# ")[:_LINE].strip())
    return ""


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "·" for char in text)
