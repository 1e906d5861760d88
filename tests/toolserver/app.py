"""An app with tools, in a process of its own, that dies in mid-turn: ``app.py JSON``. Prints its state first."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import hostler
from hostler.host.tools import SessionTools
from hostler.testing.fake_runtime import FAKE


def pay(ledger: str) -> str:
    """Writes a line; in the app that is to die it dies after that."""
    with open(ledger, "a") as file:
        file.write(f"paid by {os.getpid()}\n")
    if os.environ.get("DIE_IN_TOOL"):
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("DIE_BEHIND_TURN"):
        time.sleep(60)
    return "paid"


def who(word: str) -> str:
    """Says which process answers."""
    return f"{word} from {os.getpid()}"


def main() -> None:
    job = json.loads(sys.argv[1])
    harness = FAKE if job["harness"] == "fake" else hostler.Harness(job["harness"])
    behind = os.environ.get("DIE_BEHIND_TURN")
    if behind:  # the calls that the turn leaves open are not answered in the time that this app has left
        SessionTools.end_turn = lambda self: die() if behind == "end" else None
    options = job["options"]
    if job.get("workspace"):
        options["sandbox"] = hostler.sandbox.local(job["workspace"])
    session = hostler.agent_session(harness, tools=[who, pay], **options)
    print(session.state().dumps().decode(), flush=True)
    at = os.environ.get("DIE_AT") or ("Done" if behind else "ToolCall")
    for event in session.stream(job["prompt"]):
        if type(event).__name__ == at and not os.environ.get("DIE_IN_TOOL"):
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
