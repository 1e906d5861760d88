"""What the agent is told in a turn: the prompt, where the folders are, which files the app has put there for it, and what
its answer is to look like."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..ladder import Place
from ..output import Output
from ..store.inbox import Turn
from ..types.runtime import Prompt
from ..workspace.roots import Names
from .hold import Reached
from .transcript import Saying

_AT_MOST = 50  # files that are named; the agent finds the rest beside them


def prompt_of(
    turn: Turn, said: Saying, reached: Reached, place: Place, output: Output | None, names: Names | None, brief: str
) -> Prompt:
    """The turn's prompt for the program. One that has just been started has been told nothing yet."""
    text = told(said.text, turn.notices, names, brief)
    if (reached.fresh or reached.progress.frame == 0) and place.offered and not place.runtime.capabilities.instructions:
        text = f"{text}\n\n{place.offered}"
    if output is not None and place.schema_at is None:
        text += output.ask()
    schema = output.schema if output is not None and place.schema_at == "prompt" else None
    return Prompt(turn.id, text, said.images, reached.fresh, schema)


def told(prompt: str, notices: Sequence[Mapping[str, Any]], names: Names | None, brief: str = "") -> str:
    """The prompt with the notices and the ``brief`` behind it (before it they would hide a command of the program's own).

    ``names`` are given where the program does not see the virtual folders: those become its own."""
    text = prompt if names is None else names.translated(prompt)
    if brief:
        text = f"{text}\n\n{brief}"
    if not notices:
        return text
    lines = [_line(notice, names) for notice in notices[-_AT_MOST:]]
    if len(notices) > _AT_MOST:
        lines.append(f"- and {len(notices) - _AT_MOST} more")
    return "\n".join([text, "", "The application has put these files here for you:", *lines])


def _line(notice: Mapping[str, Any], names: Names | None) -> str:
    file = notice["file"]
    path = file["path"] if names is None else names.real(file["path"])
    about = [f"{file['bytes']:,} bytes"]
    if file["media_type"]:
        about.insert(0, _plain(file["media_type"]))
    if notice["source"]:
        about.append(f"source: {_plain(notice['source'])}")
    return f"- {_plain(path)} ({', '.join(about)})"


def _plain(text: str) -> str:
    """As it is when it can stand in a line, else as JSON: a file's name must not speak to the agent."""
    return text if text.isprintable() else json.dumps(text)
