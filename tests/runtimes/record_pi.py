"""Records the streams that test_pi_codec.py plays: `python -m tests.runtimes.record_pi` with Pi installed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runtimes import recorded
from tests.runtimes.place import PIXEL, Place, script
from tests.runtimes.record_claude import on_first
from tests.runtimes.stdio_driver import Driver
from tests.runtimes.tool_server import TOKEN, tool_server

from hostler.runtimes.pi import RUNTIME
from hostler.testing.model_server import ModelServer
from hostler.types.events import Approval, Text, ToolCall
from hostler.types.runtime import Answer, CodecEvent, Command, Interrupt, Prompt, Steer

ID = "00000000-0000-4000-8000-000000000001"
ANSWER = {"text": "one two three", "chunks": 3, "chunk_delay": 0.05}


def turns(place: Place, d: Driver) -> None:
    tools = [{"shell": "echo one"}, {"shell": "echo two; false"}]
    d.run(Prompt("t1", script({"think": "hm", "tools": tools}, {"text": "both"}), images=(("image/png", PIXEL),)))
    place.server.script([{**ANSWER, "drop": True}, {**ANSWER, "drop": True}, {"text": "fine"}])
    d.run(Prompt("t2", "/go"))
    place.server.script([{"text": "one two", "chunks": 2, "hang": 5}])
    d.run(Prompt("t3", "go"), on=on_first(Text, Interrupt()))
    d.run(Prompt("t4", script({"shell": "sleep 20"})), on=on_first(ToolCall, Interrupt()))
    d.run(Prompt("t5", script({"shell": "sleep 0.5"}, {"text": "late", "hang": 0.5})), on=on_first(ToolCall, STEER))
    place.server.script([{"error": 401}])
    d.run(Prompt("t6", "go"))
    d.run(Prompt("t7", "What?", fresh=True))


STEER = Steer("s1", "/say CODEWORD-s1")


def asked(place: Place, d: Driver) -> None:
    def answer(allow: bool) -> Callable[[CodecEvent], Command | None]:
        return lambda event: Answer(event.id, allow, "not now") if isinstance(event, Approval) else None

    d.run(Prompt("t1", script({"shell": "touch a"}, {"text": "done"})), on=answer(True))
    d.run(Prompt("t2", script({"shell": "touch b"}, {"text": "done"})), on=answer(False))
    d.run(Prompt("t3", script({"shell": "touch c"})), on=on_first(Approval, Interrupt()))


def tools(place: Place, d: Driver) -> None:
    d.run(Prompt("t1", script({"tool": "mcp__host__add", "args": {"a": 1, "b": 2}}, {"text": "done"})))


def resumed(place: Place, d: Driver) -> None:
    d.run(Prompt("t9", "What?"))


SCENES: dict[str, tuple[Callable[[Place, Driver], None], dict[str, Any]]] = {
    "turns": (turns, {"new_id": ID}),
    "ask": (asked, {"new_id": ID, "permissions": "ask", "approvals": True}),
    "tools": (tools, {"new_id": ID, "mcp_servers": {"no server": {"command": "/nonexistent"}}}),
    "resume": (resumed, {"resume": ID}),
}


def main() -> None:
    program = RUNTIME.find({}, shutil.which)
    for name, (scene, rules) in SCENES.items():
        with tempfile.TemporaryDirectory() as root, ModelServer() as server, tool_server() as url:
            place = Place(RUNTIME, program, Path(root, "place"), server)
            if name == "tools":
                rules = {**rules, "tool_url": url, "tool_token": TOKEN}
            if name == "resume":
                with place.program(new_id=ID) as d:
                    d.run(Prompt("t0", "CODEWORD-before"))
            with place.program(**rules) as d:
                scene(place, d)
                d.wait(0.3)
            kept = {key: value for key, value in rules.items() if key != "tool_token"}
            here = str(Path(__file__).resolve().parents[2])
            hide = {
                here: "/checkout",
                str(place.root): "/place",
                server.url: "http://model.invalid",
                url: "http://tools.invalid",
            }
            recorded.save(f"pi-{name}", d.items, hide, **kept)
        print(name)


if __name__ == "__main__":
    main()
