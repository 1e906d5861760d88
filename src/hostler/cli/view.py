"""Events as a person reads them."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.text import Text as Line

from ..types.events import (
    Approval,
    Compaction,
    Done,
    FileChange,
    Notice,
    Reasoning,
    Retract,
    Text,
    ToolCall,
    ToolResult,
    TurnEvent,
    event_to_dict,
)
from ..types.result import Result

_PREVIEW = 400


class View:
    """Prints the events of a turn as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = False  # whether the cursor stands behind unfinished text

    def show(self, event: TurnEvent) -> None:
        match event:
            case Text(delta=delta):
                self._write(delta, "")
            case Reasoning(delta=delta):
                self._write(delta, "dim italic")
            case Retract():
                self._line("(the model call was repeated; the text since then is void)", "dim")
            case ToolCall():
                self._line(f"▸ {event.native_name} {_brief(event.input)}", "cyan")
            case ToolResult():
                self._line(_indented(_cut(event.output)), "red" if event.is_error else "dim")
            case FileChange():
                mark, style = {"created": ("+", "green"), "modified": ("~", "yellow"), "deleted": ("-", "red")}[event.kind]
                self._line(f"{mark} {event.path}", style)
            case Approval():
                self._line(f"? {event.tool} {_brief(event.input)}  (id {event.id})", "magenta")
            case Compaction():
                self._line("(the program shortened its history)", "dim")
            case Notice():
                self._line(f"! {event.message}", "yellow")
            case Done(result=result):
                self._end(result)

    def _end(self, result: Result) -> None:
        if result.error is not None:
            self._line(f"{result.error.code}: {result.error.message}", "bold red")
        cost = "unknown" if result.cost is None else f"${result.cost:.4f}"
        usage = result.usage
        self._line(
            f"{result.stop_reason} · {usage.calls} model calls · {usage.input_tokens} in ({usage.cached_tokens} cached), "
            f"{usage.output_tokens} out · cost {cost}",
            "dim",
        )

    def _write(self, text: str, style: str) -> None:
        if text:
            self._console.print(Line(_printable(text), style=style), end="", soft_wrap=True)
            self._open = not text.endswith("\n")

    def _line(self, text: str, style: str) -> None:
        if self._open:
            self._console.print()
            self._open = False
        self._console.print(Line(_printable(text), style=style), soft_wrap=True)


def json_line(event: TurnEvent) -> str:
    """One event as one line of ASCII JSON."""
    return json.dumps(event_to_dict(event), ensure_ascii=True, default=repr)


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        for name in ("command", "cmd", "file_path", "path", "pattern", "query", "url"):
            if isinstance(value.get(name), str):
                return _cut(value[name], 160).replace("\n", " ⏎ ")
    return _cut(json.dumps(value, ensure_ascii=False, default=repr), 160)


def _cut(text: str, limit: int = _PREVIEW) -> str:
    text = text.rstrip()
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text)} characters)"


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))


def _printable(text: str) -> str:
    """Without the control characters by which an agent's output could drive the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else "·" for c in text)
