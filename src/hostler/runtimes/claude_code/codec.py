"""Claude Code's stream-json with its control protocol, to events and back. Pure: state in, state out."""

from __future__ import annotations

import uuid
from typing import Any

from ...types.events import Compaction, Event, ModelCall, Notice, ToolCall, ToolResult
from ...types.runtime import (
    Answer,
    CodecEvent,
    CodecState,
    Command,
    Folded,
    Frame,
    Identified,
    In,
    Interrupt,
    LaunchContext,
    Prompt,
    Send,
    ServerMissing,
    Steer,
    Unfit,
    Withhold,
)
from ..lines import decode_line, encode_line
from . import asking, ending, stream, tools
from .output import native


class ClaudeCodec:
    """Pure translation. Its state:

    ``id`` of the conversation, whether it was ``resumed`` and whether the program has named it (``known``); the open
    ``turn`` with the uuids of its messages that no result covers yet (``open``), its ``interrupts`` and what a first
    result of it ``said``; ``at``, the id of the main agent's last message; ``begun`` and
    ``calls``, the model's messages (see `stream`); ``asks``, the ids of unanswered
    questions; ``questions``, what those hold that ask for more than leave (None: nobody can be asked), ``refuses``, whether
    leave is refused at once; ``servers``, whether the caller has any, of which it tells before its model calls; ``down``, the MCP servers that failed; ``wrapped``, whether its structured output is wrapped in an object.
    """

    version = 2

    def start(self, ctx: LaunchContext) -> Folded:
        state: CodecState = {
            "v": self.version,
            "id": ctx.new_id if ctx.fork_at else ctx.resume or ctx.new_id,
            "resumed": ctx.resume is not None,
            "known": False,
            "turn": None,
            "open": [],
            "interrupts": 0,
            "said": None,
            "at": None,
            "begun": 0,
            "calls": {},
            "asks": [],
            "down": [],
            "wrapped": False,
            "questions": {} if ctx.approvals else None,
            "refuses": ctx.permissions != "ask",
            "servers": bool(ctx.mcp_servers),
        }
        request: dict[str, Any] = {"subtype": "initialize"}
        if ctx.output_schema is not None and (taken := native(ctx.output_schema)) is not None:
            request["jsonSchema"], state["wrapped"] = taken
        return Folded(state, sends=(_control("init", "init", request),))

    def fold(self, state: CodecState, item: Frame | ModelCall) -> Folded:
        if isinstance(item, ModelCall) or item.kind != "out":
            return Folded(state)
        line = decode_line(item.data)
        events: list[CodecEvent] = []
        sends: list[Send] = []
        for message in line.objects:
            folded = _fold(state, message)
            state = folded.state
            events += folded.events
            sends += folded.sends
        if line.noise:
            events.append(Notice("noise", line.noise))
        return Folded(state, tuple(events), tuple(sends))

    def encode(self, state: CodecState, command: Command) -> Folded:
        match command:
            case Prompt(turn, text, images):
                id = _message_id("turn", turn)
                state = {**state, "turn": turn, "open": [id], "interrupts": 0, "said": None, "at": None, "calls": {}}
                withhold = (Withhold(True),) if state.get("servers") else ()
                return Folded(state, withhold, (_user(turn, id, text, images),))
            case Steer(key, text):
                if state["turn"] is None:
                    return Folded(state, (Notice("steer_late", "The turn was over before this could be said to it."),))
                id = _message_id("steer", key)
                return Folded({**state, "open": [*state["open"], id]}, sends=(_user(key, id, text),))
            case Interrupt():
                if state["turn"] is None:
                    return Folded(state)
                count = state["interrupts"] + 1
                key = f"interrupt:{state['turn']}:{count}"
                # What was said to the turn and not yet read goes with it; else it would begin a turn of its own.
                request = {"subtype": "interrupt", "cancel_queued": True}
                return Folded({**state, "interrupts": count}, sends=(_control(key, key, request),))
            case Answer():
                return asking.answered(state, command)


# ---- lines in -----------------------------------------------------------------------------------------------------


def _fold(state: CodecState, m: dict[str, Any]) -> Folded:
    match m.get("type"):
        case "stream_event":
            state, events = stream.event(state, _parent(m), _dict(m.get("event")), m.get("abandoned_blocks"))
        case "assistant":
            state, events = _assistant(state, m)
        case "user":
            state, events = _user_line(state, m)
        case "system":
            state, events = _system(state, m)
        case "result":
            state, events = ending.result(state, m)
        case "command_lifecycle":
            state, events = ending.lifecycle(state, str(m.get("command_uuid")), m.get("state"))
        case "control_request":
            return asking.asked(state, str(m.get("request_id")), _dict(m.get("request")))
        case "control_cancel_request":
            return asking.withdrawn(state, str(m.get("request_id")))
        case "control_response":
            return Folded(state, _refused(_dict(m.get("response"))))
        case _:
            return Folded(state)  # what a newer version says besides
    return Folded(state, tuple(events))


def _assistant(state: CodecState, m: dict[str, Any]) -> tuple[CodecState, list[CodecEvent]]:
    message = _dict(m.get("message"))
    if message.get("model") == "<synthetic>":  # the program's own words, an API error for example; the result has them
        return state, []
    parent = _parent(m)
    if parent is None and isinstance(m.get("uuid"), str):
        state = {**state, "at": m["uuid"]}
    events: list[CodecEvent] = []
    for block in _blocks(message):
        state, more = stream.whole(state, parent, str(message.get("id")), block)
        events += more
        if block.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use"):
            name = str(block.get("name"))
            call = ToolCall(
                str(block.get("id")),
                tools.normal_name(name),
                name,
                block.get("input"),
                builtin=not tools.is_host_tool(name),
                parent=parent,
            )
            events.append(_in(parent, call))
    return state, events


def _user_line(state: CodecState, m: dict[str, Any]) -> tuple[CodecState, list[CodecEvent]]:
    parent = _parent(m)
    events: list[CodecEvent] = []
    for block in _blocks(_dict(m.get("message"))):
        if block.get("type") == "tool_result":
            id = str(block.get("tool_use_id"))
            state = stream.forget(state, id)
            events.append(
                _in(parent, ToolResult(id, tools.output_text(block.get("content")), block.get("is_error") is True))
            )
    return state, events


def _system(state: CodecState, m: dict[str, Any]) -> tuple[CodecState, list[CodecEvent]]:
    match m.get("subtype"):
        case "init":
            return _init(state, m)
        case "api_retry":
            state, events = stream.retried(state)
            why = f"{m.get('error')}, HTTP {m.get('error_status')}" if m.get("error_status") else "the stream was cut"
            return state, [*events, Notice("model_retry", f"The program repeats a model call ({why}).")]
        case "compact_boundary":
            data = _dict(m.get("compact_metadata"))
            return state, [Compaction(_count(data.get("pre_tokens")), _count(data.get("post_tokens")))]
        case "permission_denied":
            return state, [
                Notice("permission_denied", f"{m.get('tool_name')}: {m.get('decision_reason') or m.get('message')}")
            ]
        case "session_writes_lost":
            return state, [Notice("session_writes_lost", "The program could not write its transcript.")]
    return state, []


def _init(state: CodecState, m: dict[str, Any]) -> tuple[CodecState, list[CodecEvent]]:
    """Said at the start of every turn, before its first model call."""
    id = m.get("session_id")
    if state["resumed"] and id != state["id"]:
        return state, [Unfit(f"Claude Code is in conversation {id}, not in {state['id']}.")]
    events: list[CodecEvent] = []
    if isinstance(id, str) and (not state["known"] or id != state["id"]):
        events.append(Identified(id))
        state = {**state, "id": id}
    listed = m.get("mcp_servers")
    servers = [_dict(server) for server in listed] if isinstance(listed, list) else []
    # It has waited for those that are still pending as long as they may take.
    down = sorted(str(s.get("name")) for s in servers if s.get("status") != "connected")
    events += [
        Notice(
            "mcp_server_failed", f"The MCP server {name!r} did not start or is not reachable; its tools are missing."
        )
        for name in down
        if name not in state["down"]
    ]
    events += map(ServerMissing, down)
    if state.get("servers"):
        events.append(Withhold(False))
    return {**state, "known": True, "down": down}, events


# ---- the control protocol -----------------------------------------------------------------------------------------


def _refused(response: dict[str, Any]) -> tuple[CodecEvent, ...]:
    if response.get("subtype") != "error":
        return ()
    return (Notice("control_refused", f"{response.get('request_id')}: {response.get('error')}"),)


def _control(key: str, id: str, request: dict[str, Any]) -> Send:
    return Send(key, encode_line({"type": "control_request", "request_id": id, "request": request}))


def _user(key: str, id: str, text: str, images: tuple[tuple[str, str], ...] = ()) -> Send:
    content: list[dict[str, Any]] = [
        {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}} for kind, data in images
    ]
    content.append({"type": "text", "text": text})
    message = {
        "type": "user",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
        "session_id": "",
        "uuid": id,
        "client_composed": True,  # taken as it is: "/clear" is no command, "@name" attaches no file
    }
    return Send(key, encode_line(message))


# ---- small things -------------------------------------------------------------------------------------------------


def _message_id(kind: str, key: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"hostler:{kind}:{key}"))


def _parent(m: dict[str, Any]) -> str | None:
    parent = m.get("parent_tool_use_id")
    return parent if isinstance(parent, str) else None


def _in(parent: str | None, event: Event) -> CodecEvent:
    return event if parent is None else In(parent, event)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
