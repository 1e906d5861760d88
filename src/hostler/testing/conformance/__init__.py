"""What hostler asks of every agent program, proved with the program itself: the rows of README's table.

``python -m hostler.testing.conformance --all`` prints the table; `runtime_conformance` gives the checks of one program.
"""

from .bench import Bench, Subject, Unmet
from .programs import PROGRAMS
from .rows import ROWS, Row
from .suite import Case, Outcome, cases, runtime_conformance

__all__ = ["PROGRAMS", "ROWS", "Bench", "Case", "Outcome", "Row", "Subject", "Unmet", "cases", "runtime_conformance"]
