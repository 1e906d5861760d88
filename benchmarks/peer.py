"""litellm's session as a process of its own: prompts come as JSON lines, what each turn took goes back. Runs in the peer's environment."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from litellm import Harness, sandbox
from litellm.harness import Done, Text, aagent_session, endpoint


async def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what litellm prints is not ours
    if image := job["image"]:
        endpoint.HARNESS_ENDPOINT_HOST = job["gateway"]  # else no container reaches it
        box = sandbox.docker(image, env={"IS_SANDBOX": "1"})  # else the image's root is refused
    else:
        box = sandbox.local(job["workdir"])
    options = {"model": job["model"], "api_base": job["base"], "api_key": job["key"]}
    async with aagent_session(Harness(job["harness"]), sandbox=box, **options) as session:
        while line := await asyncio.to_thread(sys.stdin.readline):
            texts, at, last = 0, 0.0, 0.0
            start = time.perf_counter()
            async for event in session.astream(json.loads(line)["prompt"]):
                if isinstance(event, Text):
                    texts += 1
                    last = time.perf_counter()
                    at = at or last
                elif isinstance(event, Done):
                    result = event.result
            answer = {"seconds": time.perf_counter() - start, "spread": last - at, "texts": texts}
            said.write(json.dumps({**answer, "stop": result.stop_reason, "text": result.text[:200]}) + "\n")
            said.flush()
    await box.close()


if __name__ == "__main__":
    asyncio.run(main())
