"""One app of a chat, as a process of its own: begins a session or resumes it, runs one turn, detaches.

The first argument says with whose verbs, which are the same: ``hostler`` or ``litellm``. Says ``ready`` when everything is
imported, waits for a line, then says how long it took from the first call of a verb to the first text of the turn.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from typing import Any


async def main() -> None:
    lib, harness = importlib.import_module(sys.argv[1]), importlib.import_module(f"{sys.argv[1]}.harness")
    verbs = lib if hasattr(lib, "aagent_session") else harness
    job: dict[str, Any] = json.loads(sys.argv[2])
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not ours
    box = lib.sandbox.local(job["workdir"])
    options = {"model": job["model"], "api_base": job["base"], "api_key": job["key"]}
    said.write("ready\n")
    said.flush()
    sys.stdin.readline()
    start = time.perf_counter()
    if state := job.get("state"):
        opening = verbs.aagent_resume(harness.State.loads(state.encode()), sandbox=box, **options)
    else:
        opening = verbs.aagent_session(lib.Harness(job["harness"]), sandbox=box, **options)
    taken: float | None = None
    async with opening as session:
        stream = session.astream(job["prompt"])
        async for event in stream:
            if taken is None and isinstance(event, harness.Text):
                taken = time.perf_counter() - start
            if isinstance(event, harness.Done):
                result = event.result
        state = (await session.adetach()).dumps().decode()
    said.write(json.dumps({"seconds": taken, "stop": result.stop_reason, "text": result.text, "state": state}) + "\n")
    said.flush()


if __name__ == "__main__":
    asyncio.run(main())
