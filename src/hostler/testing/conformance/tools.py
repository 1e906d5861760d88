"""Checks of what an app gives to the program: functions, servers, skills, instructions, a schema."""

from __future__ import annotations

import json
import sys
from typing import Any

from ...types.errors import CapabilityUnsupported
from ...types.events import ToolCall, ToolResult
from . import offered
from .bench import Bench, Unmet, expect, prompt

SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    given = asked.get("params") or {}
    tool = {"name": "stable", "description": "Says who is in the stable.", "inputSchema": {"type": "object", "properties": {}}}
    answers = {
        "initialize": {
            "protocolVersion": given.get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "barn", "version": "1"},
        },
        "tools/list": {"tools": [tool]},
        "tools/call": {"content": [{"type": "text", "text": "CODEWORD-mare"}]},
        "ping": {},
    }
    if "id" in asked:
        known = answers.get(asked["method"])
        answer = {"result": known} if known is not None else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""
SCHEMA = {
    "type": "object",
    "properties": {"file": {"type": "string"}, "line": {"type": "integer"}},
    "required": ["file", "line"],
}
SKILL = "---\nname: shoeing\ndescription: DESC-shoeing, for questions about hooves.\n---\nBODY-shoeing\n"


def bales(feed: str) -> str:
    """How many bales of a feed are in the barn."""
    return f"40 bales of CODEWORD-{feed}"


def count(feed: str) -> int:
    """How many straws of a feed are in the barn: JSON, and no object."""
    return 4077123


def tools(bench: Bench) -> None:
    with bench.open(tools=[bales, count]) as session:
        call = _called(bench, session, "bales", {"feed": "hay"}, "40 bales of CODEWORD-hay")
        expect((call.name, call.builtin) == ("bales", False), f"the call is told as {call}")
        _called(bench, session, "count", {"feed": "hay"}, "4077123")


def inputs(bench: Bench) -> None:
    told = _input_of_a_call(bench)
    expect(told == {"feed": "hay"}, f"the arguments are told as {told}")


def inputs_denied(bench: Bench) -> None:
    told = _input_of_a_call(bench)
    expect(told != {"feed": "hay"}, "the arguments are told: say so in the sheet")


def _input_of_a_call(bench: Bench) -> Any:
    with bench.open(tools=[bales]) as session:
        return _called(bench, session, "bales", {"feed": "hay"}, "40 bales of CODEWORD-hay").input


def servers(bench: Bench) -> None:
    server = {"command": sys.executable, "args": ["-c", SERVER]}
    with bench.open(mcp_servers={"barn": server}) as session:
        _called(bench, session, "stable", {}, "CODEWORD-mare")


def _called(bench: Bench, session: Any, name: str, given: dict[str, Any], answer: str) -> ToolCall:
    """Have the model call a tool that it must have been offered; its answer comes back to the model."""
    session.run("What can you do?")
    tool = offered.of_app(bench.offered(), name)
    if tool is None:
        raise Unmet(f"the model was not offered {name!r}, only {sorted(bench.offered())}")
    result = session.run(prompt(tool.step(**given), {"text": "done"}))
    expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
    results = [e for e in result.events if isinstance(e, ToolResult)]
    expect(len(results) == 1 and answer in results[0].output, f"the call of {name!r} gave {results}")
    expect(not results[0].is_error, f"the call of {name!r} is said to have failed")
    calls = [e for e in result.events if isinstance(e, ToolCall)]
    expect(len(calls) == 1, f"the call is told as {calls}")
    expect(answer in json.dumps(bench.models.calls[-1].body), "the model was not told the answer")
    return calls[0]


def instructions(bench: Bench) -> None:
    with bench.open(instructions="House rule RULE-seven: speak softly.") as session:
        result = session.run("Hello.")
        expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
        expect("RULE-seven" in bench.told(), "the model was not told the instructions")
        state = session.stop()
    before = len(bench.models.calls)
    with bench.resume(state) as session:
        session.run("Again.")
        expect("RULE-seven" in bench.told(before), "resumed, the model was not told the instructions")


def output(bench: Bench) -> None:
    with bench.open(output=SCHEMA) as session:
        if bench.can.output == "schema":  # the scripted model knows it from the wire, as a real one would
            result = session.run("Which line?")
        else:
            result = session.run(prompt({"text": 'Here: {"file": "hay.py", "line": 3}'}, say="Which line?"))
            expect('"line"' in bench.told().replace("\\", ""), "the model was not told the schema")
        found = result.output
        expect(isinstance(found, dict) and set(found) == {"file", "line"}, f"the output is {found!r}, {result.error}")
        expect(isinstance(found["line"], int), f"the output is {found!r}")


def skills(bench: Bench) -> None:
    with bench.open(skills={"shoeing": SKILL}) as session:
        session.run("What can you do?")
        told = bench.told()
        expect("DESC-shoeing" in told, "the model was not told of the skill")
        listed = "You have these skills: instructions for special tasks" in told
        expect(listed == (bench.can.skills == "prompt"), f"hostler {'had' if listed else 'did not have'} to list it")
        (folder,) = bench.state_dir.glob("sessions/*/skills")
        result = session.run(prompt({"shell": f"cat '{folder}/shoeing/SKILL.md'"}, {"text": "read"}))
        outputs = [e.output for e in result.events if isinstance(e, ToolResult)]
        expect(any("BODY-shoeing" in output for output in outputs), f"reading it gave {outputs}, {result.error}")


def history(bench: Bench) -> None:
    with bench.open() as session:
        session.run("The mare is CODEWORD-asked.")
        session.run(prompt({"shell": "echo printed"}, {"text": "The answer is CODEWORD-told."}))
        found = session.history()
        roles = [message["role"] for message in found]
        said = json.dumps(found)
        expect(roles.count("user") == 2, f"the roles are {roles}")
        expect(found[-1]["role"] == "assistant" and "CODEWORD-told" in said, f"it ends with {found[-1]}")
        expect("CODEWORD-asked" in said and "printed" in said, "the prompt, or the output of the tool, is not in it")
        expect(any(message.get("tool_calls") for message in found), "the tool call is not in it")


def history_refused(bench: Bench) -> None:
    with bench.open() as session:
        session.run("Hello.")
        try:
            found = session.history()
        except CapabilityUnsupported:
            return
        expect(False, f"there is a history: {found}")
