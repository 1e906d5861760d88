"""Records the streams that test_acp_agents.py plays: `python -m tests.runtimes.record_acp [name ...]`, with the agents
installed (`make .programs/.ready`)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.runtimes.recorded import context, save
from tests.runtimes.stdio_driver import driver
from tests.sessions.programs import ACP, DEEP_AGENTS, TOOL_LOOP, Program

from hostler.runtimes import runtime_for
from hostler.testing.model_server import ModelServer
from hostler.types.events import Approval, ModelCall, ToolCall
from hostler.types.result import Usage
from hostler.types.runtime import Answer, Identified, Interrupt, Prompt

PROGRAMS = {program.name: program for program in (*ACP, TOOL_LOOP, DEEP_AGENTS)}
SLEEP = "perl -e 'sleep 300'"


class Place:
    """Where one program is recorded."""

    def __init__(self, program: Program, root: Path, models: ModelServer) -> None:
        self.program, self.root, self.models = program, root, models
        self.runtime = runtime_for(program.harness)
        for name in ("home", "tmp", "work", "files"):
            (root / name).mkdir()

    def context(self, **rules: Any) -> Any:
        folders = {"home": "home", "tmp": "tmp", "workdir": "work", "files_dir": "files"}
        paths = {key: str(self.root / name) for key, name in folders.items()}
        program = self.runtime.find({}, lambda name: name)
        model = {"model": self.program.model, "model_url": self.models.url, "token": "t"}
        return context(program=program, **paths, **model, **rules)

    def save(self, name: str, items: list[Any], **rules: Any) -> None:
        hide = {str(self.root / "work"): "/session", str(self.root): "/place", self.models.url: "http://model.invalid"}
        told = [item for item in items if b"available_commands_update" not in getattr(item, "data", b"")]
        save(f"{self.program.name}-{name}", told, hide, **rules)


def record(place: Place) -> None:
    def called(driven: Any, count: int) -> None:
        for _ in range(count):
            driven.feed(ModelCall("scripted", Usage(calls=1), None, "ok"))

    with driver(place.runtime, place.context()) as driven:
        place.models.script(
            [{"shell": "echo hi > a.txt; cat a.txt"}, {"shell": "exit 3"}, {"text": "done", "chunks": 2}]
        )
        driven.run(Prompt("t1", "go"), timeout=120)
        stop = driven.until(
            Prompt("t2", f'@@[{{"shell": "{SLEEP}"}}]@@'), lambda e: isinstance(e, ToolCall), timeout=120
        )
        assert stop
        driven.run(Interrupt(), timeout=60)  # type: ignore[arg-type]
        place.models.script([{"error": 400, "message": "no such thing"}])
        driven.run(Prompt("t3", "fail"), timeout=120)
        (named,) = [event.native_id for event in driven.events if isinstance(event, Identified)]
        place.save("turns", driven.items)
    with driver(place.runtime, place.context(resume=named)) as driven:
        place.models.script([{"text": "again"}])
        driven.run(Prompt("t4", "more"), timeout=120)
        place.save("resume", driven.items, resume=named)
    unknown = "0b0e1a5e-0000-4000-8000-000000000000"
    with driver(place.runtime, place.context(resume=unknown)) as driven:
        driven.run(Prompt("t5", "more"), timeout=120)
        place.save("unknown", driven.items, resume=unknown)
    answers = [True, False]

    def answer(event: Any) -> Any:
        return Answer(event.id, answers.pop(0)) if isinstance(event, Approval) else None

    with driver(place.runtime, place.context(permissions="ask", approvals=True)) as driven:
        place.models.script([{"shell": "echo a > a.txt"}, {"shell": "echo b > b.txt"}, {"text": "done"}])
        driven.run(Prompt("t1", "go"), on=answer, timeout=120)
        place.save("ask", driven.items, permissions="ask", approvals=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        with tempfile.TemporaryDirectory() as folder, ModelServer() as models:
            record(Place(PROGRAMS[name], Path(folder), models))
        print(name)
