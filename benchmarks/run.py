"""All benchmarks, in one table. Nothing here fails because something was slow."""

from __future__ import annotations

import argparse
import sys

import deltas
import imports
import resume
import turns
from common import Row, peer_python, print_table

import host
import messages
import persistent
import sandboxes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pairs: a look, not a measurement")
    quick: bool = parser.parse_args().quick
    if peer_python() is None:
        print("litellm is not measured: no .venv-peer (make bench makes it), and HOSTLER_BENCH_PEER names none.")
    rows: list[Row] = []
    for room in (imports, deltas, turns, resume, host, messages, persistent, sandboxes):
        for row in room.rows(quick):
            print(f"measured: {row.name}", file=sys.stderr, flush=True)
            rows.append(row)
    print_table(rows)


if __name__ == "__main__":
    main()
