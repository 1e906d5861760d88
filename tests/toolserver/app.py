"""An app with tools, in a process of its own, that dies in mid-turn: ``app.py JSON``. Prints its state first."""

from __future__ import annotations

import json
import os
import signal
import sys

import hostler
from hostler.testing.fake_runtime import FAKE
from hostler.types.events import ToolCall


def who(word: str) -> str:
    """Says which process answers."""
    return f"{word} from {os.getpid()}"


def main() -> None:
    job = json.loads(sys.argv[1])
    harness = FAKE if job["harness"] == "fake" else hostler.Harness(job["harness"])
    session = hostler.agent_session(harness, tools=[who], **job["options"])
    print(session.state().dumps().decode(), flush=True)
    for event in session.stream(job["prompt"]):
        if isinstance(event, ToolCall):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
