"""Records the streams that test_gemini_codec.py plays: `python -m tests.runtimes.record_gemini` with Gemini CLI installed."""

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

from hostler.runtimes.gemini_cli import RUNTIME
from hostler.testing.model_server import ModelServer
from hostler.types.events import Approval, Text, ToolCall
from hostler.types.runtime import Answer, CodecEvent, Command, Identified, Interrupt, Prompt

ANSWER = {"text": "one two three", "chunks": 3, "chunk_delay": 0.05}


def turns(place: Place, d: Driver) -> None:
    tools = [{"shell": "echo one"}, {"shell": "echo two; false"}]
    d.run(Prompt("t1", script({"think": "hm", "tools": tools}, {"text": "both"}), images=(("image/png", PIXEL),)))
    place.server.script([{**ANSWER, "drop": True}, {**ANSWER, "drop": True}, {"text": "fine"}])
    d.run(Prompt("t2", "/go"))
    place.server.script([{"shell": "echo kept"}, {**ANSWER, "drop": True}, {"text": "fine too"}])
    d.run(Prompt("t3", "go"))
    place.server.script([{"text": "one two", "chunks": 2, "hang": 5}])
    d.run(Prompt("t4", "go"), on=on_first(Text, Interrupt()))
    d.run(Prompt("t5", script({"shell": "sleep 20"})), on=on_first(ToolCall, Interrupt()))
    place.server.script([{"error": 401}])
    d.run(Prompt("t6", "go"))


def asked(place: Place, d: Driver) -> None:
    def answer(allow: bool) -> Callable[[CodecEvent], Command | None]:
        return lambda event: Answer(event.id, allow, "not now") if isinstance(event, Approval) else None

    d.run(Prompt("t1", script({"shell": "touch a"}, {"text": "done"})), on=answer(True))
    write = {"tool": "write_file", "args": {"file_path": "b", "content": "x"}}
    d.run(Prompt("t2", script(write, {"text": "done"})), on=answer(False))
    d.run(Prompt("t3", script({"shell": "touch c"})), on=on_first(Approval, Interrupt()))


def tools(place: Place, d: Driver) -> None:
    good = {"tool": "mcp_host_add", "args": {"a": 1, "b": 2}}
    d.run(Prompt("t1", script(good, {"tool": "mcp_host_add", "args": {"a": "x"}}, {"text": "done"})))


def resumed(place: Place, d: Driver) -> None:
    d.run(Prompt("t9", "What?"))


SCENES: dict[str, tuple[Callable[[Place, Driver], None], dict[str, Any]]] = {
    "turns": (turns, {}),
    "ask": (asked, {"permissions": "ask", "approvals": True}),
    "tools": (tools, {"permissions": "read-only"}),
    "resume": (resumed, {}),
}


def main() -> None:
    program = RUNTIME.find({}, shutil.which)
    for name, (scene, rules) in SCENES.items():
        with tempfile.TemporaryDirectory() as root, ModelServer() as server, tool_server() as url:
            place = Place(RUNTIME, program, Path(root, "place"), server)
            if name == "tools":
                rules = {**rules, "tool_url": url, "tool_token": TOKEN}
            if name == "resume":
                with place.program() as d:
                    d.run(Prompt("t0", "CODEWORD-before"))
                    rules = {"resume": next(e.native_id for e in d.events if isinstance(e, Identified))}
            with place.program(**rules) as d:
                scene(place, d)
                d.wait(0.3)
            kept = {key: value for key, value in rules.items() if key != "tool_token"}
            hide = {str(place.root): "/place", server.url: "http://model.invalid", url: "http://tools.invalid"}
            recorded.save(f"gemini-{name}", d.items, hide, **kept)
        print(name)


if __name__ == "__main__":
    main()
