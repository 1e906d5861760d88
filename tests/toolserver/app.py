"""An app with tools, in a process of its own, that dies in mid-turn: ``app.py JSON``. Prints its state first."""

from __future__ import annotations

import json
import os
import signal
import sys

import hostler
from hostler.testing.fake_runtime import FAKE
from hostler.types.events import ToolCall


def pay(ledger: str) -> str:
    """Writes a line; in the app that is to die it dies after that."""
    with open(ledger, "a") as file:
        file.write(f"paid by {os.getpid()}\n")
    if os.environ.get("DIE_IN_TOOL"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


def who(word: str) -> str:
    """Says which process answers."""
    return f"{word} from {os.getpid()}"


def main() -> None:
    job = json.loads(sys.argv[1])
    harness = FAKE if job["harness"] == "fake" else hostler.Harness(job["harness"])
    session = hostler.agent_session(harness, tools=[who, pay], **job["options"])
    print(session.state().dumps().decode(), flush=True)
    for event in session.stream(job["prompt"]):
        if isinstance(event, ToolCall) and not os.environ.get("DIE_IN_TOOL"):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
