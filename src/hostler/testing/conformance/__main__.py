"""``python -m hostler.testing.conformance``: run rows on programs, and print or write the table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import time
from pathlib import Path

from ...types.runtime import acp_agent
from . import table
from .programs import BY_NAME, PROGRAMS
from .rows import BY_NAME as ROWS
from .suite import Outcome, cases, runtime_conformance


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 when a row has failed."""
    parser = argparse.ArgumentParser(prog="python -m hostler.testing.conformance", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every program that hostler runs")
    parser.add_argument(
        "--program", action="append", default=[], choices=[*BY_NAME], metavar="NAME", help="one of them"
    )
    parser.add_argument("--acp", metavar="COMMAND", help="an agent of yours that speaks ACP on stdio")
    parser.add_argument("--model", help="the model's name for --acp (default: gpt-5)")
    parser.add_argument("--row", action="append", choices=[*ROWS], metavar="NAME", help="one row (default: all)")
    parser.add_argument("--json", action="store_true", help="outcomes as JSON, one a line")
    parser.add_argument("--write", metavar="PAGE", type=Path, help="put the table into this page, if no row has failed")
    given = parser.parse_args(arguments)
    subjects = [s for s in PROGRAMS if given.all or s.name in given.program]
    chosen = cases(subjects, given.row)
    if given.acp:
        own = runtime_conformance(acp_agent(shlex.split(given.acp)), rows=given.row, model=given.model)
        subjects.append(own[0].subject)
        chosen += own
    if not subjects:
        parser.error(f"say --all, --acp COMMAND, or --program NAME, one of {', '.join(BY_NAME)}")
    if given.write and not (given.all and given.row is None):
        parser.error("--write takes the whole table: --all, and no --row")
    outcomes: list[Outcome] = []
    for case in chosen:
        start = time.monotonic()
        outcomes.append(outcome := case())
        if given.json:
            _say(sys.stdout, json.dumps(dataclasses.asdict(outcome)))
        else:
            _say(sys.stderr, f"{case!s:32} {outcome.cell:14} {time.monotonic() - start:.1f} s")
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if not given.json:
        _say(sys.stdout, table.text(subjects, outcomes))
    if given.write and not failed:
        known = [subject for subject in subjects if subject.name in BY_NAME]
        given.write.write_text(table.put_into(given.write.read_text(), table.markdown(known, outcomes)))
    return 1 if failed else 0


def _say(stream: object, line: str) -> None:
    print(line, file=stream, flush=True)  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(main())
