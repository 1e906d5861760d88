"""What a person sees of a turn."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from hostler.cli.view import View, json_line, printable
from hostler.harness import (
    Approval,
    Compaction,
    Done,
    ErrorInfo,
    FileChange,
    Notice,
    Reasoning,
    Result,
    Retract,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)

EVENTS = [
    Reasoning("r", "hm"),
    Text("t", "first"),
    ToolCall("1", "bash", "Bash", {"command": "ls\npwd"}),
    ToolResult("1", "a\nb\n"),
    Retract("t"),
    Text("t", "second "),
    Text("t", "line\n"),
    FileChange("new.txt", "created"),
    Approval("q", "bash", {"odd": 1}),
    Compaction(),
    Notice("n", "look"),
    Done(Result(text="second line", usage=Usage(10, 5, 2, 1), cost=0.5, error=ErrorInfo("boom", "it failed"))),
]


def shown(live: bool) -> tuple[str, str]:
    answer, progress = io.StringIO(), io.StringIO()
    view = View(Console(file=answer, width=20), Console(file=progress, width=20), live=live)
    for event in EVENTS:
        view.show(event)
    return answer.getvalue(), progress.getvalue()


def test_a_live_view_shows_the_words_as_they_come() -> None:
    answer, progress = shown(live=True)
    assert answer == "first\nsecond line\n"
    assert progress == (
        "hm\n▸ Bash ls ⏎ pwd\n  a\n  b\n(the model call was repeated; what it said before is void)\n+ new.txt\n"
        '? bash {"odd": 1}\n(the program shortened its history)\n! look\nboom: it failed\n'
        "done · 1 model call · 10 in (2 cached), 5 out · cost $0.5000\n"
    )


def test_a_piped_view_gives_the_final_text_only() -> None:
    answer, progress = shown(live=False)
    assert answer == "second line\n"
    assert "first" not in progress


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("\x1b[2J\x1b]0;title\x07", "·[2J·]0;title·"),
        ("a\r\nb\tc\u00a0d", "a\nb\tc\u00a0d"),
        ("50%\rdone", "50%·done"),
        ("c1 \x9b31m", "c1 ·31m"),
        ("user\u202etxt.exe", "user·txt.exe"),
        ("\U0001f469\u200d\U0001f680 é", "\U0001f469\u200d\U0001f680 é"),
        ("\ud800", "·"),
    ],
)
def test_output_cannot_drive_the_terminal(text: str, safe: str) -> None:
    assert printable(text) == safe


def test_a_json_line_is_one_ascii_line() -> None:
    line = json_line(Text("t", "\u2028\x1b\n\ud800é"))
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == {"type": "text", "item": "t", "delta": "\u2028\x1b\n\ud800é"}
