"""What Codex tells, to events: the items of the open turn, its sub-agents, its end."""

from __future__ import annotations

import json
import zlib
from typing import Any

from hostler.runtimes.codex.asking import forget
from hostler.runtimes.codex.items import answer_of, error_info, loads, raw_call, raw_result, tool_call, tool_result
from hostler.runtimes.codex.turn import begin_if_ready, end, named
from hostler.runtimes.jsonrpc import Step, obj, objs, strs
from hostler.runtimes.schemas import WRAPPED
from hostler.types.events import Compaction, Notice, Reasoning, Retract, Text, ToolCall, ToolResult
from hostler.types.runtime import CodecEvent, Ended, In, ServerMissing, StepStarted

PATCH_LIMIT = 64 * 1024  # characters of a patch that are kept in the state to be shown with its approval
_BUNDLED = "Codex could not find bubblewrap on PATH"  # it then uses its own
_WARNINGS = 20


def told(step: Step, method: str, params: dict[str, Any]) -> None:
    if method in ("warning", "guardianWarning", "configWarning", "deprecationNotice"):
        _warn(step, "program_warning", str(params.get("message") or params.get("summary") or ""))
    elif method == "mcpServer/startupStatus/updated":
        _server(step, str(params.get("name")), params)
    elif method == "serverRequest/resolved":
        forget(step, params.get("requestId"))
    elif params.get("threadId") != step.state["thread"]:
        _sub_agent(step, method, params)
    elif _current(step, method, params):
        _in_turn(step, method, params)


def _server(step: Step, name: str, params: dict[str, Any]) -> None:
    """An MCP server starts, has started, or will not. Those that failed Codex starts once more when the thread gets its
    settings, and a start that it calls off it begins anew, or not: see `not_begun_anew`."""
    state, status = step.state, params.get("status")
    if state["thread"] and params.get("threadId", state["thread"]) != state["thread"]:
        return  # a sub-agent has the same servers, started for itself
    called_off = state.get("cancelled", [])
    others = [other for other in called_off if other != name]
    if status == "cancelled" and name in state["starting"]:
        if not called_off:
            step.request(f"servers:{state['next']}", "mcpServerStatus/list", {"detail": "toolsAndAuthOnly", "limit": 1})
        state["cancelled"] = [*others, name]
        return
    state["cancelled"] = others
    if status == "starting":
        if name in state.get("servers", ()) and name not in state["starting"]:
            state["starting"] = [*state["starting"], name]
        return
    if status != "ready":
        _missing(step, name, str(params.get("error") or status))
    state["starting"] = [other for other in state["starting"] if other != name]
    begin_if_ready(step)


def not_begun_anew(step: Step) -> None:
    """Codex has answered what it answers only when each server has had the time that it may take to start: of those whose
    start was called off until now nothing more is to be heard."""
    state = step.state
    called_off = state.get("cancelled", [])
    for name in called_off:
        _missing(step, name, "cancelled")
    state["starting"] = [name for name in state["starting"] if name not in called_off]
    state["cancelled"] = []
    begin_if_ready(step)


def _missing(step: Step, name: str, why: str) -> None:
    """Said once of a server: started again it fails again, maybe in other words."""
    message = f"The MCP server {name!r} did not start; its tools are missing: {why}"
    _warn(step, "mcp_server_failed", message, mark=f"server {name}")
    step.emit(ServerMissing(name))


def _current(step: Step, method: str, params: dict[str, Any]) -> bool:
    """Whether a notification belongs to the open turn."""
    turn = step.state["turn"]
    native = params.get("turnId") or obj(params.get("turn")).get("id")
    if not turn or turn["input"] is not None or not native or native == step.state["ended"]:
        return False
    if method in ("turn/started", "turn/completed"):
        named(step, native)
    return bool(turn["native"] == native)


def _in_turn(step: Step, method: str, params: dict[str, Any]) -> None:
    state, turn = step.state, step.state["turn"]
    item = obj(params.get("item"))
    match method:
        case "turn/started":
            step.emit(StepStarted())
        case "item/agentMessage/delta" | "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta":
            state["items"][str(params.get("itemId"))] = True
            step.emit(_delta(method, params))
        case "item/started":
            if item.get("type") in ("agentMessage", "reasoning"):
                _next_call(step)
                state["items"][str(item.get("id"))] = False
            started = _started(step, item)
            turn["tools"] = turn["tools"] or bool(started)
            step.emit(*started)
        case "item/completed":
            step.emit(*_completed(step, item))
        case "rawResponseItem/completed":
            _raw(step, item)
        case "rawResponse/completed":
            turn["over"] = True
        case "thread/tokenUsage/updated" if not state["raw"]:
            _counted(step, obj(params.get("tokenUsage")).get("total"))
        case "error" if params.get("willRetry"):
            _retract(step)
            step.emit(Notice("model_retry", str(obj(params.get("error")).get("message") or "")))
        case "model/rerouted":
            step.emit(Notice("model_rerouted", f"{params.get('fromModel')} to {params.get('toModel')}"))
        case "turn/completed":
            _turn_over(step, obj(params.get("turn")))


def _next_call(step: Step) -> None:
    """The model is being called again, if its last call was over."""
    turn = step.state["turn"]
    if turn["over"] and not turn["interrupt"]:
        turn["over"] = False
        step.emit(StepStarted())


def _counted(step: Step, total: Any) -> None:
    """Without the raw events: a model call has been paid for and its tools are done, so the next one begins, if any."""
    turn = step.state["turn"]
    if total == turn["total"]:
        return  # a call that was cut
    _next_call(step)
    turn.update(total=total, over=True)
    if turn["tools"]:
        turn["tools"] = False
        _next_call(step)


def _delta(method: str, params: dict[str, Any]) -> CodecEvent:
    kind = Text if method == "item/agentMessage/delta" else Reasoning
    return kind(str(params.get("itemId")), str(params.get("delta") or ""))


def _started(step: Step, item: dict[str, Any]) -> list[CodecEvent]:
    if item.get("type") == "fileChange":
        changes = objs(item.get("changes"))
        if len(str(changes)) > PATCH_LIMIT:
            changes = [{k: v for k, v in change.items() if k != "diff"} for change in changes]
        step.state["patches"][str(item.get("id"))] = changes
    call = tool_call(item)
    if not call or call.id in step.state["calls"] or item.get("type") == "webSearch":
        return []  # a web search says what it looks for only at its end
    step.state["calls"].append(call.id)
    return [call]


def _completed(step: Step, item: dict[str, Any]) -> list[CodecEvent]:
    state, number = step.state, str(item.get("id"))
    state["patches"].pop(number, None)
    if item.get("type") == "contextCompaction":
        return [Compaction()]
    if item.get("type") in ("agentMessage", "reasoning"):
        streamed = state["items"].pop(number, False)
        return [] if streamed else _whole(item)
    result = tool_result(item)
    if not result:
        return []
    if item.get("type") == "collabAgentToolCall":
        state["agents"].update(dict.fromkeys(strs(item.get("receiverThreadIds")), result.id))
    if result.id in state["calls"]:
        state["calls"].remove(result.id)
        return [result]
    call = tool_call(item)
    return [call, result] if call and call.name == "web_search" else []


def _whole(item: dict[str, Any]) -> list[CodecEvent]:
    number = str(item.get("id"))
    if item.get("type") == "agentMessage":
        text = item.get("text")
        return [Text(number, text)] if isinstance(text, str) and text else []
    text = "\n\n".join(strs(item.get("summary")) or strs(item.get("content")))
    return [Reasoning(number, text)] if text else []


def _raw(step: Step, item: dict[str, Any]) -> None:
    """The model's own tool calls and answers: of a command that its sandbox stopped, Codex tells nothing else."""
    state = step.state
    state["raw"] = True
    if call := raw_call(item):
        _next_call(step)
        state["waiting"].append(call.id)
        if call.id not in state["calls"]:
            state["calls"].append(call.id)
            step.emit(call)
    elif result := raw_result(item):
        if result.id in state["calls"]:
            state["calls"].remove(result.id)
            step.emit(result)
        if result.id in state["waiting"]:
            state["waiting"].remove(result.id)
            if not state["waiting"]:
                _next_call(step)


def _retract(step: Step) -> None:
    step.emit(*(Retract(item) for item, streamed in step.state["items"].items() if streamed))
    step.state["items"] = {}


def _turn_over(step: Step, turn: dict[str, Any]) -> None:
    status = turn.get("status")
    step.state["ended"] = turn.get("id")
    if status == "completed":
        _retract(step)  # whatever is unfinished now belonged to a call that was made again
        text = answer_of(turn)
        answer = loads(text)
        if step.state["turn"].get("wrapped") and isinstance(answer, dict) and set(answer) == {WRAPPED}:
            text = json.dumps(answer[WRAPPED], ensure_ascii=False)
        end(step, Ended("done", text=text, at=step.state["turn"]["native"]))
    elif status == "interrupted":
        end(step, Ended("interrupted"))
    else:
        end(step, Ended("error", error=error_info(obj(turn.get("error")))))


def _warn(step: Step, code: str, message: str, mark: str | None = None) -> None:
    """Codex repeats its warnings each turn; a process says each once. ``mark`` tells it from others, where not its text."""
    known = zlib.crc32((mark or message).encode("utf-8", "replace"))
    if message and known not in step.state["warned"] and not message.startswith(_BUNDLED):
        step.state["warned"] = [*step.state["warned"], known][-_WARNINGS:]
        step.emit(Notice(code, message))


def _sub_agent(step: Step, method: str, params: dict[str, Any]) -> None:
    """Another thread of this process: a sub-agent of the open turn."""
    parent = step.state["agents"].get(params.get("threadId"))
    if not step.state["turn"] or not parent:
        return
    item = obj(params.get("item"))
    events: list[CodecEvent] = []
    if method in ("item/agentMessage/delta", "item/reasoning/summaryTextDelta", "item/reasoning/textDelta"):
        step.state["items"][str(params.get("itemId"))] = True
        events = [_delta(method, params)]
    elif method == "item/started":
        events = _started(step, item)
    elif method == "item/completed":
        events = _completed(step, item)
    step.emit(*(In(parent, e) for e in events if isinstance(e, (Text, Reasoning, ToolCall, ToolResult, Compaction))))
