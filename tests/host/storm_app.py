"""One app of the storm: its share of the turns, one after the other, under the app's own keys.

Prints ``saw JSON`` for each record that its `on_event` was given (where the job says so), ``outcome JSON`` for each turn.
A turn has its label as `run_id`, so that an app that is started again says everything once more and nothing runs twice.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import hostler
from hostler.testing.fake_runtime import FAKE
from hostler.types.events import event_to_dict

_lock = threading.Lock()


def say(kind: str, text: object) -> None:
    with _lock:
        print(kind, text, flush=True)


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    runtime = FAKE if job["harness"] == "fake" else hostler.Harness(job["harness"])
    harness = hostler.create_harness(host=hostler.local_host(job["data_dir"]), runtime=runtime, **job["options"])

    def saw(record: hostler.harness.Record) -> None:
        say("saw", json.dumps([record.seq, record.turn, event_to_dict(record.event)]))

    for turn in job["turns"]:
        stream = hostler.stream_harness(
            harness=harness,
            prompt=turn["prompt"],
            session=turn["key"],
            run_id=turn["label"],
            extra_body={"caller": job["caller"], "label": turn["label"]},
            **({"on_event": saw} if job.get("watch") else {}),
        )
        result = stream.wait()
        said = {"label": turn["label"], "turn": result.turn_id, "stop": result.stop_reason, "text": result.text}
        said["error"] = result.error.code if result.error is not None else None
        say("outcome", json.dumps(said))


if __name__ == "__main__":
    main()
