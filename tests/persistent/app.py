"""An app whose store is killed in the middle, in a process of its own: ``app.py JSON``. Prints its state first."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import hostler
from hostler.persistent import Changes, PersistContext
from hostler.testing.fake_runtime import FAKE


def main() -> None:
    from tests.persistent.test_kills import Versioned

    job: dict[str, Any] = json.loads(sys.argv[1])
    files = Versioned(Path(job["storage"]))

    def store(ctx: PersistContext, changes: Changes, cursor: int) -> None:
        (Path(job["storage"]) / "key").write_text(str(ctx.idempotency_key))
        if job["when"] == "after":
            files.store(ctx, changes, cursor)
        os.kill(os.getpid(), signal.SIGKILL)

    dir = hostler.persistent_dir("/persistent/notes", load=files.load, store=store)
    harness = FAKE if job["harness"] == "fake" else hostler.Harness(job["harness"])
    session = hostler.agent_session(harness, persistent_dirs=[dir], **job["options"])
    print(session.state().dumps().decode(), flush=True)
    session.run(job["prompt"])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
