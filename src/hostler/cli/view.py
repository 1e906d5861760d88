"""Events as a person reads them."""

from __future__ import annotations

import json
import unicodedata
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
_MARKS = {"created": ("+", "green"), "modified": ("~", "yellow"), "deleted": ("-", "red")}


class View:
    """Prints the events of a turn: the agent's words on ``answer``, all else on ``progress``.

    ``live`` shows the words as they come; otherwise the final text is printed once, at the end.
    """

    def __init__(self, answer: Console, progress: Console, *, live: bool = True) -> None:
        self._answer = answer
        self._progress = progress
        self._live = live
        self._open: Console | None = None  # where the cursor stands behind unfinished text

    def show(self, event: TurnEvent) -> None:
        match event:
            case Text(delta=delta) if self._live:
                self._write(self._answer, delta, "")
            case Reasoning(delta=delta):
                self._write(self._progress, delta, "dim italic")
            case Retract() if self._live:
                self._line("(the model call was repeated; what it said before is void)", "dim")
            case ToolCall():
                self._line(f"▸ {event.native_name} {brief(event.input)}", "cyan")
            case ToolResult():
                self._line(_indented(_cut(event.output)), "red" if event.is_error else "dim")
            case FileChange():
                mark, style = _MARKS[event.kind]
                self._line(f"{mark} {event.path}", style)
            case Approval():
                self._line(f"? {event.tool} {brief(event.input)}", "magenta")
            case Compaction():
                self._line("(the program shortened its history)", "dim")
            case Notice():
                self._line(f"! {event.message}", "yellow")
            case Done(result=result):
                self._end(result)

    def ask(self, question: str) -> None:
        """Leave the cursor behind a question."""
        self._progress.print(Line(question, style="magenta"), end="", soft_wrap=True)

    def _end(self, result: Result) -> None:
        if not self._live and result.text:
            self._write(self._answer, result.text.rstrip("\n") + "\n", "")
        if result.error is not None:
            self._line(f"{result.error.code}: {result.error.message}", "bold red")
        usage = result.usage
        calls = f"{usage.calls} model call{'' if usage.calls == 1 else 's'}"
        tokens = f"{usage.input_tokens} in ({usage.cached_tokens} cached), {usage.output_tokens} out"
        self._line(f"{result.stop_reason} · {calls} · {tokens} · cost {dollars(result.cost)}", "dim")

    def _write(self, where: Console, text: str, style: str) -> None:
        if not text:
            return
        if self._open is not where:
            self._close()
        where.print(Line(printable(text), style=style), end="", soft_wrap=True)
        self._open = None if text.endswith("\n") else where

    def _line(self, text: str, style: str) -> None:
        self._close()
        self._progress.print(Line(printable(text), style=style), soft_wrap=True)

    def _close(self) -> None:
        if self._open is not None:
            self._open.print()
            self._open = None


def json_line(event: TurnEvent) -> str:
    """One event as one line of ASCII JSON."""
    return json.dumps(event_to_dict(event), ensure_ascii=True, default=repr)


def dollars(cost: float | None) -> str:
    return "unknown" if cost is None else f"${cost:.4f}"


def printable(text: str) -> str:
    """Without the characters by which an agent's output could drive the terminal or reorder what is read."""
    return "".join(c if _harmless(c) else "·" for c in text.replace("\r\n", "\n"))


def _harmless(char: str) -> bool:
    # Cf holds the bidirectional overrides; its two joiners belong to scripts and emoji.
    return char in "\n\t\u200c\u200d" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def brief(value: Any) -> str:
    """What a tool is given, in one line."""
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
