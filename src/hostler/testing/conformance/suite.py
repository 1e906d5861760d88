"""Rows on programs: each is a check that starts the real program with a scripted model, and says what came of it."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...runtimes import runtime_for
from ...types.errors import HarnessError
from ...types.runtime import AcpAgent, Harness, Runtime, check_harness
from ..model_server import ModelServer
from .bench import Bench, Subject, Unmet, clear
from .rows import BY_NAME, ROWS, Row


@dataclass(frozen=True)
class Outcome:
    """What came of one row on one program. ``status``: ``"yes"`` (shown), ``"no"`` (the sheet says no, and that was shown),
    ``"failed"``. ``cell`` is how the table says it, ``reason`` why not, or what was seen instead."""

    program: str
    row: str
    status: Literal["yes", "no", "failed"]
    cell: str
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the program does what its sheet of capabilities says."""
        return self.status != "failed"

    def __str__(self) -> str:
        return f"{self.program}: {self.row}: {self.cell}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Case:
    """One row on one program; call it for its `Outcome`. It takes a second, or some, and leaves nothing behind."""

    subject: Subject
    row: Row

    def __str__(self) -> str:
        return f"{self.subject.name}-{self.row.name}"

    def __call__(self) -> Outcome:
        can = self.subject.capabilities
        cell, reason = self.row.cell(can), self.row.reason(can)
        check = self.row.denied if cell == "no" else self.row.check
        saw = self._saw(check)
        if saw is None and cell in ("no", "in bubblewrap") and not reason:
            saw = f"the sheet says {cell}, and not why: reasons={{{(self.row.field or '').rpartition('.')[2]!r}: ...}}"
        if saw is not None:
            return Outcome(self.subject.name, self.row.name, "failed", "FAILED", saw)
        return Outcome(self.subject.name, self.row.name, "no" if cell == "no" else "yes", cell, reason)

    def _saw(self, check: Any) -> str | None:
        """What was seen instead of what is promised."""
        if check is None:
            return "nothing shows this no"
        root = Path(tempfile.mkdtemp(prefix="hostler-conformance-")).resolve()
        saw = None
        try:
            with ModelServer() as models:
                check(Bench(self.subject, root, models))
        except (Unmet, HarnessError) as error:
            saw = str(error) if isinstance(error, Unmet) else f"{type(error).__name__}: {error}"
        except Exception as error:
            saw = f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__, -3))}"
        finally:
            left = clear(root)
        return saw or (f"{len(left)} processes were left" if left else None)


def cases(subjects: Iterable[Subject], rows: Iterable[str] | None = None) -> list[Case]:
    """Every row (or those of these names) on every subject. Raises ValueError for a row that there is none of."""
    names = list(BY_NAME) if rows is None else list(rows)
    if unknown := [name for name in names if name not in BY_NAME]:
        raise ValueError(f"There is no row {unknown[0]!r}; the rows are {', '.join(BY_NAME)}.")
    return [Case(subject, row) for subject in subjects for row in ROWS if row.name in names]


def runtime_conformance(
    harness: Harness | AcpAgent | Runtime | Subject,
    *,
    rows: Iterable[str] | None = None,
    model: str | None = None,
    options: Mapping[str, Any] = {},
    name: str | None = None,
) -> list[Case]:
    """What hostler asks of every program, as checks of ``harness``: a member of `Harness`, ``acp_agent(command=[...])``, or a
    `Runtime` of your own.

    Each `Case` starts the real program with a scripted model, in ``sandbox.local``, and gives an `Outcome`: ``yes``, ``no``
    with the reason that the sheet of capabilities gives, or ``failed`` with what was seen. They are independent of each
    other, and a list of them is what ``pytest.mark.parametrize`` takes::

        @pytest.mark.parametrize("case", runtime_conformance(MY_RUNTIME, model="gpt-5"), ids=str)
        def test_conformance(case):
            outcome = case()
            assert outcome.ok, outcome

    ``rows`` are names of rows (None: all). ``model`` is what the program asks its model for (a name that it knows, where it
    has rules for names), ``options`` are further options of its sessions.
    """
    if isinstance(harness, Subject):
        return cases([harness], rows)
    from .programs import BY_NAME as KNOWN

    runtime = runtime_for(check_harness(harness))
    known = KNOWN.get(runtime.name) if isinstance(harness, Harness) else None
    model = model or (known.model if known else "gpt-5")
    return cases([Subject(name or runtime.name, name or runtime.name, harness, model, options)], rows)
