"""What Pi tells of a turn, to events."""

from __future__ import annotations

import re
from typing import Any

from hostler.runtimes.failures import http_failure
from hostler.runtimes.jsonrpc import obj, objs
from hostler.runtimes.pi.rules import normal_name
from hostler.runtimes.pi.step import Step, end
from hostler.types.events import Compaction, Notice, Reasoning, Retract, Text, ToolCall, ToolResult
from hostler.types.result import ErrorInfo
from hostler.types.runtime import Ended, In, StepStarted

HOST_PREFIX = "mcp__host__"
_STATUS = re.compile(r"(\d{3})\b")
_LENGTH = re.compile(r"context.?(length|window)|too many tokens|prompt is too long|maximum context", re.IGNORECASE)


def told(step: Step, message: dict[str, Any]) -> None:
    turn = step.state["turn"]
    match message.get("type"):
        case "compaction_end":
            if result := obj(message.get("result")):
                step.emit(Compaction(_count(result.get("tokensBefore")), _count(result.get("estimatedTokensAfter"))))
        case "extension_error":
            step.emit(Notice("extension_error", f"{message.get('event')}: {message.get('error')}"))
        case _ if not turn or turn["input"] is not None:
            return  # of no turn that is open
        case "agent_start":
            _runs(step)
        case "turn_start":
            if not turn["again"] and not turn["interrupt"]:
                step.emit(StepStarted())
            turn["again"] = False
        case "message_start":
            if obj(message.get("message")).get("role") == "assistant":
                turn.update(message=turn["message"] + 1, said=[])
        case "message_update":
            _piece(step, obj(message.get("assistantMessageEvent")))
        case "message_end":
            _whole(step, obj(message.get("message")))
        case "auto_retry_start":
            step.emit(*(Retract(item) for item in turn["said"]))
            turn.update(said=[], again=True, error=None)
        case "tool_execution_start":
            _call(step, message)
        case "tool_execution_end":
            _result(step, message)
        case "agent_settled":
            if turn["runs"]:
                _settled(step, turn)


def abort(step: Step, key: str) -> None:
    """Stop the run. What was said to it and not read yet goes with it: Pi would go on with that."""
    turn = step.state["turn"]["id"]
    step.send(f"{key}:queue:{turn}", {"type": "clear_queue"})
    step.send(f"{key}:{turn}", {"type": "abort"})


def _runs(step: Step) -> None:
    turn = step.state["turn"]
    first, turn["runs"] = not turn["runs"], True
    if first and turn["interrupt"]:
        abort(step, "interrupt-again")  # the first one came before there was anything to stop
    for key, message in turn["steer"]:
        step.send(key, message)
    turn["steer"] = []


def _piece(step: Step, piece: dict[str, Any]) -> None:
    kind, delta, turn = piece.get("type"), piece.get("delta"), step.state["turn"]
    if kind not in ("text_delta", "thinking_delta") or not isinstance(delta, str) or not delta:
        return
    item = f"{turn['id']}:{turn['message']}:{piece.get('contentIndex')}"
    if item not in turn["said"]:
        turn["said"] = [*turn["said"], item]
    step.emit(Text(item, delta) if kind == "text_delta" else Reasoning(item, delta))


def _whole(step: Step, message: dict[str, Any]) -> None:
    turn = step.state["turn"]
    if message.get("role") != "assistant":
        return
    if message.get("stopReason") == "error":
        turn["error"] = str(message.get("errorMessage") or "it says no reason")[:2000]
    else:
        turn.update(error=None, said=[])
    if message.get("stopReason") == "length":
        step.emit(Notice("max_tokens", "The answer was cut at the model's limit of output tokens."))


def _call(step: Step, message: dict[str, Any]) -> None:
    call, native, parent = str(message.get("toolCallId")), str(message.get("toolName")), message.get("parentToolCallId")
    builtin = not native.startswith(HOST_PREFIX)
    name = normal_name(native) if builtin else native.removeprefix(HOST_PREFIX)
    step.state["tools"] = [*step.state["tools"], call]
    nested = parent if isinstance(parent, str) else None
    event = ToolCall(call, name, native, message.get("args"), builtin=builtin, parent=nested)
    step.emit(In(nested, event) if nested else event)


def _result(step: Step, message: dict[str, Any]) -> None:
    call, parent = str(message.get("toolCallId")), message.get("parentToolCallId")
    if call not in step.state["tools"]:
        return
    step.state["tools"].remove(call)
    event = ToolResult(call, text_of(obj(message.get("result")).get("content")), message.get("isError") is True)
    step.emit(In(parent, event) if isinstance(parent, str) else event)


def _settled(step: Step, turn: dict[str, Any]) -> None:
    if turn["interrupt"]:
        end(step, Ended("interrupted"))
    elif turn["error"] is not None:
        end(step, Ended("error", error=_failure(turn["error"])))
    else:
        end(step, Ended("done"))


def _failure(text: str) -> ErrorInfo:
    if _LENGTH.search(text):
        return ErrorInfo("context_exceeded", text)
    status = _STATUS.match(text)
    return http_failure(int(status[1]) if status else None, text)


def text_of(content: Any) -> str:
    """The text of a message's or a result's content."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text") or "") for part in objs(content) if part.get("type") == "text")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
