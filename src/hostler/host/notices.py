"""What the agent is told with its prompt: where the folders are, and which files the app has put there for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..workspace.roots import Roots

_AT_MOST = 50  # files that are named; the agent finds the rest beside them


def told(prompt: str, notices: Sequence[Mapping[str, Any]], roots: Roots | None) -> str:
    """The prompt with the notices behind it (before it they would hide a command of the program's own).

    ``roots`` is given where the program does not see the virtual folders: their names become real paths."""
    text = prompt if roots is None else roots.translated(prompt)
    if not notices:
        return text
    lines = [_line(notice, roots) for notice in notices[-_AT_MOST:]]
    if len(notices) > _AT_MOST:
        lines.append(f"- and {len(notices) - _AT_MOST} more")
    return "\n".join([text, "", "The application has put these files here for you:", *lines])


def _line(notice: Mapping[str, Any], roots: Roots | None) -> str:
    file = notice["file"]
    path = file["path"] if roots is None else roots.real(file["path"])
    about = [f"{file['bytes']:,} bytes"]
    if file["media_type"]:
        about.insert(0, _plain(file["media_type"]))
    if notice["source"]:
        about.append(f"source: {_plain(notice['source'])}")
    return f"- {_plain(path)} ({', '.join(about)})"


def _plain(text: str) -> str:
    """As it is when it can stand in a line, else as JSON: a file's name must not speak to the agent."""
    return text if text.isprintable() else json.dumps(text)
