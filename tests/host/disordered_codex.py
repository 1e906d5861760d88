"""A Codex app-server that tells of its turns in a given order: ``disordered_codex.py ORDER``, before Codex's own arguments.

ORDER is a permutation of ``response``, ``started`` and ``completed``, joined by dashes, with ``-once`` behind it when all
is written in one piece. A turn that begins while another runs ends the program.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

THREAD = "01a227a0-a46f-7fe3-ba26-0d596376e217"


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


def write(*pieces: bytes) -> None:
    for piece in pieces:
        os.write(1, piece)
        time.sleep(0.01)


def main() -> None:
    order = sys.argv[1].split("-")
    Path(os.environ["HOME"], ".codex", "sessions").mkdir(parents=True, exist_ok=True)
    Path(os.environ["HOME"], ".codex", "sessions", f"rollout-1-{THREAD}.jsonl").write_text("{}\n")
    turns = 0
    for raw in sys.stdin.buffer:
        asked = json.loads(raw)
        number, method = asked.get("id"), asked.get("method")
        if number is None or method is None:
            continue
        if method != "turn/start":
            write(line({"id": number, "result": {"thread": {"id": THREAD}}}))
            continue
        turns += 1
        native = f"n{turns}"
        words = asked["params"]["input"][0]["text"]
        item = {"type": "agentMessage", "id": f"m{turns}", "text": f"heard {words}"}
        said = {"threadId": THREAD, "turnId": native, "item": item}
        over = {"threadId": THREAD, "turn": {"id": native, "status": "completed", "items": [item]}}
        pieces = {
            "response": line({"id": number, "result": {"turn": {"id": native}}}),
            "started": line({"method": "turn/started", "params": {"threadId": THREAD, "turn": {"id": native}}}),
            "completed": line({"method": "item/completed", "params": said})
            + line({"method": "turn/completed", "params": over}),
        }
        told = [pieces[name] for name in order if name in pieces]
        write(*([b"".join(told)] if "once" in order else told))


if __name__ == "__main__":
    main()
