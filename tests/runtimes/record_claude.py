"""Records the streams that test_claude_codec.py plays: `python -m tests.runtimes.record_claude` with Claude Code installed.

A stream is one JSON object a line: ``{"out": line}`` what the program wrote, ``{"do": [command, fields]}`` what it was told.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runtimes.claude_support import Place
from tests.runtimes.stdio_driver import Driver

from hostler.testing.model_server import ModelServer
from hostler.types.events import Approval, Text, ToolCall
from hostler.types.runtime import Answer, CodecEvent, Command, Frame, Interrupt, Prompt, Steer

STREAMS = Path(__file__).parent / "streams"
ID = "00000000-0000-4000-8000-000000000001"
BASH = {"shell": "echo hi"}
AGENT = {"tool": "Agent", "args": {"description": "d", "prompt": "do it", "subagent_type": "general-purpose"}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def on_first(kind: type[Any], *answers: Command) -> Callable[[CodecEvent], Command | None]:
    """Answer the first event of this kind with the first answer, the second with the second."""
    left = list(answers)
    return lambda event: left.pop(0) if left and isinstance(event, kind) else None


def tool(place: Place, d: Driver) -> None:
    place.server.script([{"think": "hm", **BASH}, {"text": "done", "chunks": 2}])
    d.run(Prompt("t1", "go"))
    place.server.script([{"text": "again"}])
    d.run(Prompt("t2", "go on"))


def parallel(place: Place, d: Driver) -> None:
    place.server.script([{"tools": [{"shell": "sleep 0.2; echo one"}, {"shell": "echo two"}]}, {"text": "both"}])
    d.run(Prompt("t1", "go"))


def subagent(place: Place, d: Driver) -> None:
    place.server.script([AGENT, {"think": "sub", **BASH}, {"text": "sub answer"}, {"text": "main answer"}])
    d.run(Prompt("t1", "go"))


def cut(place: Place, d: Driver) -> None:
    place.server.script([{"text": "one two three", "chunks": 3, "chunk_delay": 0.1, "drop": True}, {"text": "fine"}])
    d.run(Prompt("t1", "go"))


def cut_always(place: Place, d: Driver) -> None:
    place.server.script([{"text": "one two three", "chunks": 3, "chunk_delay": 0.1, "drop": True}] * 6)
    d.run(Prompt("t1", "go"))


def refused(place: Place, d: Driver) -> None:
    place.server.script([{"error": 429}] * 3)
    d.run(Prompt("t1", "go"))


def interrupted(place: Place, d: Driver) -> None:
    place.server.script([{"text": "one two", "chunks": 2, "hang": 5}])
    d.run(Prompt("t1", "go"), on=on_first(Text, Interrupt()))
    place.server.script([{"shell": "python3 -c 'import time; time.sleep(20)'"}])
    d.run(Prompt("t2", "go"), on=on_first(ToolCall, Interrupt()))
    place.server.clear()
    d.run(Prompt("t3", "go"))


def steered(place: Place, d: Driver) -> None:
    place.server.script([{"shell": "sleep 0.5; echo hi"}, {"text": "heard"}])
    d.run(Prompt("t1", "go"), on=on_first(ToolCall, Steer("s1", "CODEWORD-s1")))
    place.server.script([{"text": "late", "hang": 0.5}, {"text": "heard too"}])
    d.run(Prompt("t2", "go"), on=on_first(Text, Steer("s2", "CODEWORD-s2")))
    d.run(Prompt("t3", "and now"))


def asked(place: Place, d: Driver) -> None:
    def allow(event: CodecEvent) -> Command | None:
        return Answer(event.id, True) if isinstance(event, Approval) else None

    def deny(event: CodecEvent) -> Command | None:
        return Answer(event.id, False, "no") if isinstance(event, Approval) else None

    place.server.script([{"shell": "touch a"}, {"text": "done"}])
    d.run(Prompt("t1", "go"), on=allow)
    place.server.script([{"shell": "touch b"}, {"text": "done"}])
    d.run(Prompt("t2", "go"), on=deny)
    place.server.script([{"shell": "touch c"}])
    d.run(Prompt("t3", "go"), on=on_first(Approval, Interrupt()))


def max_turns(place: Place, d: Driver) -> None:
    place.server.script([BASH, BASH])
    d.run(Prompt("t1", "go"))
    place.server.clear()
    d.run(Prompt("t2", "go"))


def schema(place: Place, d: Driver) -> None:
    place.server.script([{"tool": "StructuredOutput", "args": {"n": 3}}])
    d.run(Prompt("t1", "go"))


SCENES: dict[str, tuple[Callable[[Place, Driver], None], dict[str, Any]]] = {
    "tool": (tool, {}),
    "parallel": (parallel, {}),
    "subagent": (subagent, {}),
    "cut": (cut, {}),
    "cut-always": (cut_always, {}),
    "refused": (refused, {}),
    "interrupted": (interrupted, {}),
    "steered": (steered, {}),
    "asked": (asked, {"permissions": "ask"}),
    "max-turns": (max_turns, {"max_turns": 2}),
    "schema": (schema, {"output_schema": SCHEMA}),
}


def record(name: str) -> None:
    scene, rules = SCENES[name]
    with tempfile.TemporaryDirectory() as root, ModelServer() as server:
        place = Place(Path(root), server)
        with place.program(new_id=ID, **rules) as driver:
            scene(place, driver)
            driver.wait(0.3)
            items = list(driver.items)
        clean = Cleaner(root, server.url)
    lines = []
    for item in items:
        if isinstance(item, Frame):
            lines.append({"out": clean(item.data.decode())})
        else:
            lines.append({"do": [type(item).__name__, json.loads(clean(json.dumps(dataclasses.asdict(item))))]})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (STREAMS / f"claude-{name}.jsonl").write_text(text)


class Cleaner:
    """Takes out what belongs to this machine, and what is long and read by nobody."""

    _LONG = (
        "slash_commands",
        "terminal_slash_commands",
        "skills",
        "plugins",
        "agents",
        "modelUsage",
        "usage",
        "subagent_stats",
    )

    def __init__(self, root: str, url: str) -> None:
        self._places = {
            f"{root}/work": "/session",
            root: "/place",
            root.replace("/", "-"): "-place",
            url: "http://127.0.0.1:1",
        }

    def __call__(self, line: str) -> str:
        for place, name in self._places.items():
            line = line.replace(place, name)
        message = json.loads(line)
        if message.get("type") == "control_response":
            message["response"].pop("response", None)
        if message.get("subtype") == "init":
            message = {
                k: v for k, v in message.items() if k in ("type", "subtype", "session_id", "mcp_servers", "model")
            }
        for key in self._LONG:
            message.pop(key, None)
        if isinstance(message.get("message"), dict):
            message["message"].pop("usage", None)
        return json.dumps(message, ensure_ascii=False)


if __name__ == "__main__":
    for each in SCENES:
        record(each)
        print(each)
