"""The key is masked also in what a program said while nobody was there to hear it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import keepers_of, wait_until
from tests.sessions.programs import FAKE_PROGRAM, KEY

import hostler
from hostler.harness import Done, State, ToolResult
from hostler.testing.model_server import ModelServer
from hostler.types.events import event_to_dict

CHILD = Path(__file__).parents[1] / "sessions" / "child.py"


@pytest.mark.usefixtures("nothing_left")
def test_what_is_read_from_a_dead_keepers_log_is_masked(models: ModelServer, workspace: Path, state_dir: Path) -> None:
    (workspace / ".env").write_text(f"KEY={KEY}\n")
    print_it_late = f"{sys.executable} -c \"import time; time.sleep(1); print(open('.env').read())\""
    steps = [{"model": "go"}, {"shell": print_it_late}, {"shell": "tail -f /dev/null"}]
    options = FAKE_PROGRAM.options(models)
    job = {"harness": "fake", "options": options, "workspace": str(workspace), "die_at": "ToolCall"}
    done = subprocess.run(
        [sys.executable, str(CHILD), json.dumps({**job, "prompts": [f"go\n{json.dumps(steps)}"]})],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    state = [line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith("state ")][-1]
    (keeper,) = keepers_of(state_dir)
    spool = [p for p in state_dir.rglob("keeper*/**/*") if p.is_file()]
    assert wait_until(lambda: any(KEY.encode() in p.read_bytes() for p in spool)), spool
    keeper.kill()
    with hostler.agent_resume(State.loads(state), sandbox=hostler.sandbox.local(workspace), **options) as session:
        records = []
        for record in session.follow(0):
            records.append(record)
            if isinstance(record.event, Done):
                break
    assert [r.event.output for r in records if isinstance(r.event, ToolResult)] == ["KEY=[masked]\n\n"]
    assert KEY not in json.dumps([event_to_dict(r.event) for r in records])
    assert not any(KEY.encode() in p.read_bytes() for p in state_dir.glob("store.db*"))
