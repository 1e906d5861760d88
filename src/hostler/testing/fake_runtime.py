"""The runtime of the fake agent program: `FAKE` goes wherever a `Harness` does, so hosts are tested without agents."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Literal

from ..runtimes.lines import decode_line, encode_line
from ..types.errors import SessionLost
from ..types.events import (
    Approval,
    Compaction,
    Event,
    ModelCall,
    Notice,
    Reasoning,
    Retract,
    Text,
    ToolCall,
    ToolResult,
)
from ..types.result import ErrorInfo
from ..types.runtime import (
    Answer,
    Capabilities,
    CodecEvent,
    CodecState,
    Command,
    Ended,
    Folded,
    Frame,
    Identified,
    In,
    Interrupt,
    Launch,
    LaunchContext,
    NativeFile,
    Prompt,
    Send,
    Steer,
    StepStarted,
    Unfit,
)
from . import fake_program

NAMES = {"Shell": "bash", "Read": "read", "Write": "write", "Agent": "agent"}


class FakeCodec:
    """Pure translation of the fake program's lines."""

    version = 1

    def start(self, ctx: LaunchContext) -> Folded:
        state: CodecState = {
            "id": ctx.new_id if ctx.fork_at else ctx.resume or ctx.new_id,
            "turn": None,
            "interrupts": 0,
            "asks": {},
        }
        return Folded(state, sends=(_send("hello", {"op": "hello"}),))

    def fold(self, state: CodecState, item: Frame | ModelCall) -> Folded:
        if isinstance(item, ModelCall):
            return Folded(state)
        if item.kind == "exit" and state["turn"]:
            error = ErrorInfo("program_exited", f"The fake program ended with exit code {item.data.decode()}.")
            return Folded({**state, "turn": None, "asks": {}}, (Ended("error", error=error),))
        if item.kind != "out":
            return Folded(state)
        line = decode_line(item.data)
        events: list[CodecEvent] = []
        for message in line.objects:
            state, more = _event(state, message)
            events += more
        if line.noise:
            events.append(Notice("noise", line.noise))
        return Folded(state, tuple(events))

    def encode(self, state: CodecState, command: Command) -> Folded:
        match command:
            case Prompt(turn, text, images):
                message = {"op": "prompt", "turn": turn, "text": text, "images": len(images)}
                return Folded({**state, "turn": turn, "interrupts": 0}, sends=(_send(turn, message),))
            case Steer(key, text):
                return Folded(state, sends=(_send(key, {"op": "steer", "text": text}),))
            case Answer(id, allow, reason, answers):
                asks = {key: ask for key, ask in state["asks"].items() if key != id}
                message = {"op": "answer", "id": id, "allow": allow, "reason": reason, "answers": answers}
                return Folded({**state, "asks": asks}, sends=(_send(f"answer:{id}", message),))
            case Interrupt():
                count = state["interrupts"] + 1
                key = f"interrupt:{state['turn']}:{count}"
                return Folded({**state, "interrupts": count}, sends=(_send(key, {"op": "interrupt"}),))


class FakeRuntime:
    """The fake agent program as a `Runtime`."""

    name = "fake"
    capabilities = Capabilities(
        permissions=("full", "read-only", "edit", "ask"),
        approvals=True,
        steer=True,
        history=True,
        instructions=True,
        tools=True,
        mcp_servers=True,
        disable_tools=True,
        allow_deny=True,
        max_turns=True,
        effort=True,
        images=True,
        portable=True,
        fork=True,
        questions="native",
    )
    codec = FakeCodec()
    native_files = (NativeFile(".fake/{id}.jsonl", "jsonl"),)
    wire = "anthropic"
    id_pattern = r"[A-Za-z0-9][A-Za-z0-9-]{0,63}"
    project_instructions: tuple[str, ...] = ()
    model_first: bool = False
    project_code: tuple[str, ...] = ()
    tool_names: frozenset[str] | None = None

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        return tuple(options.get("program") or (sys.executable, "-I", "-S", "-E", fake_program.__file__))

    def launch(self, ctx: LaunchContext) -> Launch:
        given = {
            "home": ctx.home,
            "model": ctx.model,
            "model-url": ctx.model_url,
            "session": ctx.new_id or "fake",
            "resume": ctx.resume,
            "fork-at": ctx.fork_at,
            "tool-url": ctx.tool_url,
        }
        argv = [*ctx.program, "--agent"]
        for name, value in given.items():
            if value is not None:
                argv += [f"--{name}", value]
        rules = {
            "instructions": ctx.instructions,
            "permissions": ctx.permissions,
            "allow": ctx.allow,
            "deny": ctx.deny,
            "disable_tools": ctx.disable_tools,
            "max_turns": ctx.max_turns,
            "effort": ctx.effort,
            "output_schema": ctx.output_schema,
            "mcp_servers": sorted(ctx.mcp_servers),
            "workdir": ctx.workdir,
        }
        env = {"FAKE_TOKEN": ctx.token, "FAKE_RULES": json.dumps(rules), "HOME": ctx.home, "TMPDIR": ctx.tmp}
        if ctx.tool_token:
            env["FAKE_TOOL_TOKEN"] = ctx.tool_token
        return Launch(tuple(argv), env)

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        return None

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        content = files.get(f".fake/{native_id}.jsonl")
        if content is None:
            raise SessionLost(f"The fake program's file of conversation {native_id} is gone.")
        return [json.loads(line) for line in content.split(b"\n")[:-1]]


FAKE = FakeRuntime()
RUNTIME = FAKE


def _send(key: str, message: dict[str, Any]) -> Send:
    return Send(key, encode_line(message))


def _event(state: CodecState, m: dict[str, Any]) -> tuple[CodecState, list[CodecEvent]]:
    event: Event | None = None
    match m.get("ev"):
        case "ready":
            if state["id"] and m["session"] != state["id"]:
                return state, [Unfit(f"The fake program is in conversation {m['session']}, not in {state['id']}.")]
            return {**state, "id": m["session"]}, [Identified(m["session"])]
        case "lost":
            return state, [Unfit(f"The fake program does not know conversation {m['session']}.")]
        case "step":
            return state, [] if m.get("parent") else [StepStarted()]
        case "text":
            event = Text(m["item"], m["delta"])
        case "reasoning":
            event = Reasoning(m["item"], m["delta"])
        case "retract":
            event = Retract(m["item"])
        case "tool_call":
            builtin = not m["name"].startswith("host_")
            event = ToolCall(m["id"], NAMES.get(m["name"], m["name"]), m["name"], m["input"], builtin, m.get("parent"))
        case "tool_result":
            event = ToolResult(m["id"], m["output"], m["is_error"])
        case "compaction":
            event = Compaction(m["before"], m["after"])
        case "ask":
            state = {**state, "asks": {**state["asks"], m["id"]: m["tool"]}}
            event = Approval(m["id"], m["tool"], m["input"])
        case "asked":
            state = {**state, "asks": {key: tool for key, tool in state["asks"].items() if key != m["id"]}}
        case "end" if m["turn"] != state["turn"]:
            return state, [Notice("late_end", f"The fake program ended turn {m['turn']} once more.")]
        case "end":
            error = ErrorInfo(**m["error"]) if m["error"] else None
            ended = Ended(m["stop"], m["text"], m["output"], error, m.get("at"))
            return {**state, "turn": None, "asks": {}}, [ended]
    if event is None:
        return state, []
    return state, [In(m["parent"], event) if m.get("parent") else event]
