"""Pi's RPC protocol to events and back; pure."""

from __future__ import annotations

import json
from typing import Any

from hostler.runtimes.jsonrpc import obj
from hostler.runtimes.lines import decode_line
from hostler.runtimes.pi import telling
from hostler.runtimes.pi.launch import MARK, server_names
from hostler.runtimes.pi.rules import normal_name
from hostler.runtimes.pi.step import Step, begin_if_ready, end, unfit
from hostler.types.events import Approval, ModelCall, Notice
from hostler.types.result import ErrorInfo
from hostler.types.runtime import (
    Answer,
    CodecState,
    Command,
    Ended,
    Folded,
    Frame,
    Identified,
    Interrupt,
    LaunchContext,
    Prompt,
    ServerMissing,
    Steer,
)

VERSION = 1
APPROVAL = "hostler.approval"
STATUS = "hostler"
_ATTENTION = "MCP servers need attention"
_DIALOGS = ("select", "confirm", "input", "editor")


class PiCodec:
    """Its state: the conversation (``id``, which it must be when it is resumed), whether the extension that holds the rules
    is there (``guarded``), the MCP servers that are ``starting`` (the turn waits for them), the open turn, open tool calls,
    open questions."""

    version = VERSION

    def start(self, ctx: LaunchContext) -> Folded:
        names = server_names(ctx)
        state: CodecState = {
            "v": VERSION,
            "id": None,
            "resume": ctx.resume,
            "guarded": False,
            "servers": names,
            "starting": sorted(names),
            "failed": [],
            "turn": None,
            "unfit": None,
            "tools": [],
            "asks": [],
        }
        step = Step(state)
        step.send("start", {"id": "start", "type": "get_state"})
        return step.done()

    def fold(self, state: CodecState, item: Frame | ModelCall) -> Folded:
        if isinstance(item, ModelCall) or item.kind != "out":
            return Folded(state)
        step = Step(state)
        line = decode_line(item.data)
        for message in line.objects:
            match message.get("type"):
                case "response":
                    _answered(step, message)
                case "extension_ui_request":
                    _asked(step, message)
                case _:
                    telling.told(step, message)
        if line.noise:
            step.emit(Notice("noise", line.noise))
        return step.done()

    def encode(self, state: CodecState, command: Command) -> Folded:
        step = Step(state)
        match command:
            case Prompt():
                _prompt(step, command)
            case Interrupt():
                _interrupt(step)
            case Steer():
                _steer(step, command)
            case Answer():
                _decide(step, command)
        return step.done()


# ---- commands -------------------------------------------------------------------------------------------------------


def _prompt(step: Step, prompt: Prompt) -> None:
    if step.state["unfit"]:
        unfit(step, step.state["unfit"])
        return
    message: dict[str, Any] = {"id": prompt.turn, "type": "prompt", "message": _plain(prompt.text)}
    if prompt.images:
        message["images"] = [{"type": "image", "mimeType": media, "data": data} for media, data in prompt.images]
    step.state["turn"] = {
        "id": prompt.turn,
        "input": message,
        "steer": [],
        "runs": False,
        "interrupt": False,
        "message": 0,  # counts the model's messages
        "said": [],  # items that can still be taken back
        "again": False,  # the next model call repeats one that failed
        "error": None,
    }
    if prompt.fresh:
        names = sorted(step.state["servers"])
        step.state.update(id=None, resume=None, guarded=False, starting=names, failed=[])
        step.send(f"fresh:{prompt.turn}", {"id": f"fresh:{prompt.turn}", "type": "new_session"})
    begin_if_ready(step)


def _plain(text: str) -> str:
    """A prompt that Pi does not take for a command."""
    return MARK + text if text.startswith(("/", MARK)) else text


def _interrupt(step: Step) -> None:
    turn = step.state["turn"]
    if not turn or turn["interrupt"]:
        return
    turn["interrupt"] = True
    for ask in step.state["asks"]:
        step.send(f"answer:{ask}", _cancelled(ask))
    step.state["asks"] = []
    if turn["input"] is not None:
        end(step, Ended("interrupted"))
    else:
        telling.abort(step, "interrupt")


def _steer(step: Step, command: Steer) -> None:
    turn = step.state["turn"]
    message = {"id": command.key, "type": "steer", "message": _plain(command.text)}
    if not turn or turn["interrupt"]:
        step.emit(Notice("steer_refused", "The turn is over; what was said to it was not delivered."))
    elif turn["input"] is None and turn["runs"]:
        step.send(command.key, message)
    else:
        turn["steer"] = [*turn["steer"], [command.key, message]]


def _decide(step: Step, command: Answer) -> None:
    if command.id not in step.state["asks"]:
        return  # answered before, or no longer asked
    step.state["asks"].remove(command.id)
    value = json.dumps({"allow": command.allow, "reason": command.reason})
    step.send(f"answer:{command.id}", {"type": "extension_ui_response", "id": command.id, "value": value})


def _cancelled(ask: str) -> dict[str, Any]:
    return {"type": "extension_ui_response", "id": ask, "cancelled": True}


# ---- answers to commands --------------------------------------------------------------------------------------------


def _answered(step: Step, message: dict[str, Any]) -> None:
    state, key, good = step.state, message.get("id"), message.get("success") is True
    turn, error = state["turn"], str(message.get("error"))
    match message.get("command"):
        case "get_state":
            _joined(step, obj(message.get("data")).get("sessionId"), error)
        case "new_session":
            if not good or obj(message.get("data")).get("cancelled"):
                unfit(step, f"Pi began no new conversation: {error}")
            else:
                step.send(f"joined:{key}", {"id": f"joined:{key}", "type": "get_state"})
        case "prompt":
            if turn and key == turn["id"] and not good:
                end(step, Ended("error", error=ErrorInfo("program_error", f"Pi refused the prompt: {error}")))
        case "steer":
            if not good:
                step.emit(Notice("steer_refused", error))
            elif not turn or turn["input"] is not None:
                # It came when the turn had just ended, and would be said to the next one.
                step.send(f"clear:{key}", {"id": f"clear:{key}", "type": "clear_queue"})
                step.emit(Notice("steer_refused", "The turn was over before this could be said to it."))


def _joined(step: Step, id: Any, error: str) -> None:
    state = step.state
    if not isinstance(id, str) or (state["resume"] and id != state["resume"]):
        unfit(step, f"Pi is in the conversation {id!r}, not in {state['resume']!r} ({error}).")
    elif not state["guarded"]:
        unfit(step, "Pi did not load the extension that holds the session's rules; is it older than 1.0?")
    else:
        state["id"] = id
        step.emit(Identified(id))
        begin_if_ready(step)


# ---- what Pi and its extensions ask ---------------------------------------------------------------------------------


def _asked(step: Step, message: dict[str, Any]) -> None:
    state, ask, method = step.state, str(message.get("id")), message.get("method")
    text = str(message.get("message") or "")
    if method == "setStatus" and message.get("statusKey") == STATUS:
        _status(step, _loads(message.get("statusText")))
    elif method == "notify" and text.startswith(_ATTENTION):
        for name in [n for n in state["starting"] if f"\n  {n}: " in text]:
            _failed(step, name)
    elif method == "notify":
        step.emit(Notice("program_notice", text))
    elif method == "input" and message.get("title") == APPROVAL and state["turn"] and not state["turn"]["interrupt"]:
        asked = _loads(message.get("placeholder"))
        state["asks"] = [*state["asks"], ask]
        step.emit(Approval(ask, normal_name(str(asked.get("tool"))), asked.get("input")))
    elif method in _DIALOGS:
        step.send(f"answer:{ask}", _cancelled(ask))


def _status(step: Step, said: dict[str, Any]) -> None:
    state = step.state
    if said.get("ready"):
        state["guarded"] = True
    elif (name := said.get("connected")) in state["starting"]:
        state["starting"].remove(name)
        begin_if_ready(step)
    elif isinstance(name := said.get("failed"), str):
        _failed(step, name)


def _failed(step: Step, name: str) -> None:
    state = step.state
    if name in state["starting"]:
        state["starting"].remove(name)
        name = state["servers"][name]
        step.emit(
            Notice(
                "mcp_server_failed",
                f"The MCP server {name!r} did not start or is not reachable; its tools are missing.",
            ),
            ServerMissing(name),
        )
        begin_if_ready(step)


def _loads(text: Any) -> dict[str, Any]:
    try:
        return obj(json.loads(text)) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
