"""One app of a chat, as a process of its own: begins sessions or resumes them, runs one turn of each, detaches.

The first argument says with whose verbs, which are the same: ``hostler`` or ``litellm``. Says ``ready`` when everything is
imported. Each line in is a job, each line out says how long it took from the verb's call to the first text of the turn.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from typing import Any

lib, harness = importlib.import_module(sys.argv[1]), importlib.import_module(f"{sys.argv[1]}.harness")
verbs = lib if hasattr(lib, "aagent_session") else harness


async def main() -> None:
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not ours
    said.write("ready\n")
    said.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        said.write(json.dumps(await turn(json.loads(line))) + "\n")
        said.flush()


async def turn(job: dict[str, Any]) -> dict[str, Any]:
    box = lib.sandbox.local(job["workdir"])
    options = {"model": job["model"], "api_base": job["base"], "api_key": job["key"]}
    taken: float | None = None
    start = time.perf_counter()
    if state := job.get("state"):
        opening = verbs.aagent_resume(harness.State.loads(state.encode()), sandbox=box, **options)
    else:
        opening = verbs.aagent_session(lib.Harness(job["harness"]), sandbox=box, **options)
    async with opening as session:
        async for event in session.astream(job["prompt"]):
            if taken is None and isinstance(event, harness.Text):
                taken = time.perf_counter() - start
            if isinstance(event, harness.Done):
                result = event.result
        left = (await session.adetach()).dumps().decode()
    return {"seconds": taken, "stop": result.stop_reason, "text": result.text, "state": left}


if __name__ == "__main__":
    asyncio.run(main())
