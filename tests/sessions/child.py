"""An app in a process of its own, for tests that kill it: ``child.py JSON``.

Prints one line for each step: ``state <json>``, ``event <type>``, ``result <json>``, ``error <type>: <message>``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import hostler
from hostler import steps
from hostler.harness import State
from hostler.host import run
from hostler.testing.fake_runtime import FAKE


def say(kind: str, text: object) -> None:
    print(kind, text, flush=True)


def stop_writing() -> None:
    """From here on the app is one that dies before the next step of its turn is in the store."""

    async def never(*_: Any) -> None:
        await asyncio.sleep(3600)

    steps.Steps.put = lambda *_: None  # type: ignore[method-assign]
    run.finish = never  # type: ignore[assignment]


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    options = job["options"]
    if job.get("callback"):
        options["on_approval"] = lambda approval: time.sleep(3600)  # asks and dies before it has the answer
    if job.get("workspace"):
        options["sandbox"] = getattr(hostler.sandbox, job.get("sandbox", "local"))(job["workspace"])
    try:
        if job.get("resume"):
            session = hostler.agent_resume(State.loads(job["resume"]), **options)
        else:
            harness = FAKE if job["harness"] == "fake" else hostler.Harness(job["harness"])
            session = hostler.agent_session(harness, **options)
        say("resumed", session.resumed)
        for number, prompt in enumerate(job["prompts"]):
            say("state", session.state().dumps().decode())
            if number == job.get("unwritten"):
                stop_writing()
            stream = session.stream(prompt)
            for event in stream:
                name = type(event).__name__
                say("event", name)
                if name == job.get("die_at"):
                    os.kill(os.getpid(), 9)
            say("result", json.dumps({"text": stream.result.text, "stop": stream.result.stop_reason}))
        say("state", session.state().dumps().decode())
        leave = job.get("leave", "close")
        if leave in ("detach", "stop"):
            say("state", getattr(session, leave)().dumps().decode())
        elif leave == "close":
            session.close()
        elif leave == "kill":
            os.kill(os.getpid(), 9)
    except Exception as error:
        say("error", f"{type(error).__name__}: {error}")
    if job.get("pid_file"):
        Path(job["pid_file"]).write_text(str(os.getpid()))


if __name__ == "__main__":
    main()
