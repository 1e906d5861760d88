"""An app in a process of its own: ``python -m hostler.testing.conformance.child JOB``, the job a pickled dict in base64.

Prints one line for each step: ``state <json>``, ``event <type>``, ``result <stop reason>``, ``left``. It stops the session
in the end.
"""

from __future__ import annotations

import base64
import pickle
import sys
from typing import Any

import hostler


def main() -> None:
    job: dict[str, Any] = pickle.loads(base64.b64decode(sys.argv[1]))
    options = job["options"]
    if isinstance(options.get("sandbox"), tuple):
        kind, folder = options["sandbox"]
        options["sandbox"] = getattr(hostler.sandbox, kind)(folder)
    elif isinstance(options.get("sandbox"), str):
        options["sandbox"] = getattr(hostler.sandbox, options["sandbox"])
    session = hostler.agent_session(job["harness"], **options)
    for text in job["prompts"]:
        _say("state", session.state().dumps().decode())
        stream = session.stream(text)
        for event in stream:
            _say("event", type(event).__name__)
        _say("result", stream.result.stop_reason)
    _say("state", session.stop().dumps().decode())
    _say("left", "")


def _say(kind: str, text: str) -> None:
    sys.stdout.write(f"{kind} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
