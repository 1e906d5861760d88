"""hostler doctor --selftest"""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ..testing.escapes import Outcome, selftest
from .terminal import FAILED, console
from .view import printable


def selftest_command() -> int:
    """Prints attempt by sandbox; exit code 0 when nothing got out of any sandbox that promises to isolate."""
    outcomes = selftest()
    kinds = list(outcomes)
    table = Table("attempt", *kinds, box=None, pad_edge=False)
    for name in next(iter(outcomes.values())):
        table.add_row(name, *(_cell(outcomes[kind][name]) for kind in kinds))
    out = console()
    out.print(table)
    leaks = [name for kind in kinds if kind != "local" for name, outcome in outcomes[kind].items() if outcome.escaped]
    if len(kinds) == 1:
        out.print("\nlocal does not isolate; `hostler doctor` says why there is no other sandbox here.")
    return FAILED if leaks else 0


def _cell(outcome: Outcome) -> Text:
    if outcome.escaped:
        return Text(f"gets out: {printable(outcome.words)}", style="yellow")
    if outcome.words:
        return Text(f"not held: {printable(outcome.words)}", style="yellow")
    return Text("held", style="green")
