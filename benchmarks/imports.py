"""How long `import hostler` takes in a new process."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator

from common import Row, first, interleaved, ms, peer_python, print_table, row


def taken(python: str, code: str) -> float:
    start = time.perf_counter()
    subprocess.run([python, "-c", code], check=True, timeout=60, capture_output=True)
    return time.perf_counter() - start


def rows(quick: bool) -> Iterator[Row]:
    n = 5 if quick else 20
    for code in ("import hostler", "pass"):
        taken(sys.executable, code)  # its bytecode is on the disk
    pairs = interleaved(n, lambda: taken(sys.executable, "import hostler"), lambda: taken(sys.executable, "pass"))
    yield row("process with import hostler", pairs, first, ms, "s", beside="pass", limit=0.15)
    if (python := peer_python()) is not None:
        taken(python, "import litellm")
        pairs = interleaved(min(n, 5), lambda: taken(python, "import litellm"), lambda: taken(python, "pass"))
        yield row("  litellm: process with import litellm", pairs, first, ms, "s", beside="pass")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    print_table(list(rows(parser.parse_args().quick)))
