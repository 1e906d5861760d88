"""The table of what each program can do: as Markdown for a page, as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from .bench import Subject
from .rows import ROWS, Row
from .suite import Outcome

BEGIN, END = "<!-- what each program can do: begin -->", "<!-- what each program can do: end -->"
_PART = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
_EXPLAINED = ("no", "in bubblewrap")
_UNEXPLAINED = "not explained"


def of_sheets(subjects: Iterable[Subject]) -> list[Outcome]:
    """What the sheets of capabilities say, as if every row had been shown."""
    return [
        Outcome(
            subject.name,
            row.name,
            "no" if row.cell(subject.capabilities) == "no" else "yes",
            row.cell(subject.capabilities),
            row.reason(subject.capabilities),
        )
        for subject in subjects
        for row in ROWS
    ]


def markdown(subjects: Sequence[Subject], outcomes: Iterable[Outcome]) -> str:
    """The table, and below it why there is a no."""
    found = {(outcome.program, outcome.row): outcome for outcome in outcomes}
    notes: dict[str, list[str]] = {}  # the programs that each reason is about
    for row in ROWS:
        for subject in subjects:
            outcome = found.get((subject.name, row.name))
            if outcome and outcome.cell in _EXPLAINED:
                about = notes.setdefault(outcome.reason or _UNEXPLAINED, [])
                about += [] if subject.title in about else [subject.title]
    numbers = {reason: number for number, reason in enumerate(notes, 1)}

    def cell(subject: Subject, row: Row) -> str:
        outcome = found.get((subject.name, row.name))
        if outcome is None or outcome.cell not in _EXPLAINED:
            return outcome.cell if outcome else ""
        return f"{outcome.cell} ({numbers[outcome.reason or _UNEXPLAINED]})"

    lines = ["| | " + " | ".join(subject.title for subject in subjects) + " |", "|---" * (len(subjects) + 1) + "|"]
    lines += [f"| {row.title} | " + " | ".join(cell(s, row) for s in subjects) + " |" for row in ROWS]
    lines += [""] + [f"{numbers[reason]}. {', '.join(about)}: {reason}" for reason, about in notes.items()]
    return "\n".join(lines).rstrip()


def text(subjects: Sequence[Subject], outcomes: Sequence[Outcome]) -> str:
    """The table for a terminal, and below it every reason."""
    found: Mapping[tuple[str, str], Outcome] = {(outcome.program, outcome.row): outcome for outcome in outcomes}
    rows = [row for row in ROWS if any(row.name == outcome.row for outcome in outcomes)]
    first = max((len(row.name) for row in rows), default=0) + 2
    widths = [max(len(s.name), *(len(o.cell) for o in outcomes if o.program == s.name), 0) + 2 for s in subjects]
    lines = [" " * first + "".join(f"{s.name:{w}}" for s, w in zip(subjects, widths, strict=True))]
    for row in rows:
        cells = [found[s.name, row.name].cell if (s.name, row.name) in found else "" for s in subjects]
        lines.append(f"{row.name:{first}}" + "".join(f"{c:{w}}" for c, w in zip(cells, widths, strict=True)))
    lines += [""] + [str(outcome) for outcome in outcomes if outcome.reason]
    return "\n".join(line.rstrip() for line in lines).rstrip()


def put_into(page: str, table: str) -> str:
    """The page with this table between its marks. Raises ValueError for a page without them."""
    if not _PART.search(page):
        raise ValueError(f"The page has no place for the table: put {BEGIN} and {END} where it is to be.")
    return _PART.sub(lambda _: f"{BEGIN}\n{table}\n{END}", page)
