"""The rows of the table on the real programs: some of them always, all of them in soak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hostler.testing.conformance import PROGRAMS, Case, cases

QUICK = {  # what is shown each time; a program that takes seconds to start is started once
    "claude_code": {"turn", "usage", "restart", "restart-in-tool", "lost-home"},
    "codex": {"turn", "usage", "restart", "restart-in-tool", "lost-home"},
    "opencode": {"restart"},
    "pi": set(),  # tests/sessions/test_more_programs.py runs these two each time
    "gemini_cli": set(),
    "tool_loop": {"turn", "cancel", "lost-home"},
    "deep_agents": {"lost-home"},
    "claude_acp": {"lost-home"},
    "codex_acp": {"lost-home"},
    "qwen": {"lost-home"},
}


def marked() -> Iterator[Any]:
    for case in cases(PROGRAMS):
        quick = case.row.name in QUICK.get(case.subject.name, {"turn"})
        yield pytest.param(case, marks=[pytest.mark.real, *([] if quick else [pytest.mark.soak])], id=str(case))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", list(marked()))
def test_a_program_does_what_its_sheet_says(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # As an app would run it: with the state dir that the case names.
    monkeypatch.delenv("HOSTLER_STATE_DIR")
    outcome = case()
    assert outcome.ok, outcome
