"""Codex's app-server protocol to events and back; pure."""

from __future__ import annotations

import zlib
from typing import Any

from hostler.runtimes.codex.items import (
    answer_of,
    bare,
    error_info,
    loads,
    raw_call,
    raw_result,
    tool_call,
    tool_result,
)
from hostler.runtimes.codex.launch import PROVIDER, approval_policy, sandbox_policy
from hostler.runtimes.jsonrpc import Step, error_text, new_state, obj, objs, strs
from hostler.runtimes.lines import decode_line
from hostler.types.events import Approval, Compaction, ModelCall, Notice, Reasoning, Retract, Text, ToolCall, ToolResult
from hostler.types.result import ErrorInfo
from hostler.types.runtime import (
    Answer,
    CodecEvent,
    CodecState,
    Command,
    Ended,
    Folded,
    Frame,
    Identified,
    In,
    Interrupt,
    LaunchContext,
    Prompt,
    Steer,
    StepStarted,
    Unfit,
)

VERSION = 1
PATCH_LIMIT = 64 * 1024  # characters of a patch that are kept in the state to be shown with its approval
_BUNDLED = "Codex could not find bubblewrap on PATH"  # it then uses its own
_WARNINGS = 20

_DECISIONS = {
    "item/commandExecution/requestApproval": "bash",
    "item/fileChange/requestApproval": "edit",
    "item/permissions/requestApproval": "permissions",
    "mcpServer/elicitation/request": "mcp",
}


class CodexCodec:
    """Its state: the thread, the open turn, unfinished items and tool calls, open approvals, the next request id."""

    version = VERSION

    def start(self, ctx: LaunchContext) -> Folded:
        state = new_state(
            VERSION,
            thread=None,
            resume=ctx.resume,
            schema=ctx.output_schema,
            settings=_settings(ctx),
            turn=None,
            ended=None,
            unfit=None,
            raw=False,
            items={},
            calls=[],
            waiting=[],
            patches={},
            agents={},
            asks={},
            warned=[],
        )
        step = Step(state)
        step.request(
            "init",
            "initialize",
            {
                "clientInfo": {"name": "hostler", "title": "hostler", "version": str(VERSION)},
                "capabilities": {"experimentalApi": True},
            },
        )
        step.notify("initialized", "initialized")
        # Begun read-only, whatever the session allows: a thread that *begins* with the right to write makes Codex trust
        # the project, and so read its .codex folder. The real policy follows with the thread's settings.
        thread = {
            "cwd": ctx.workdir,
            "model": ctx.model,
            "modelProvider": PROVIDER,
            "approvalPolicy": "never",
            "sandbox": "read-only",
        }
        if ctx.resume:
            step.request("start", "thread/resume", {**thread, "threadId": ctx.resume, "excludeTurns": True})
        else:
            step.request("start", "thread/start", {**thread, "experimentalRawEvents": True})
        return step.done()

    def fold(self, state: CodecState, item: Frame | ModelCall) -> Folded:
        if isinstance(item, ModelCall) or item.kind != "out":
            return Folded(state)
        step = Step(state)
        line = decode_line(item.data)
        for message in line.objects:
            if "method" not in message:
                _answer(step, message)
            elif "id" in message:
                _asked(step, message["id"], str(message["method"]), obj(message.get("params")))
            else:
                _told(step, str(message["method"]), obj(message.get("params")))
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


def _settings(ctx: LaunchContext) -> dict[str, Any]:
    mode = {"model": ctx.model, "reasoning_effort": ctx.effort, "developer_instructions": ctx.instructions}
    return {
        "sandboxPolicy": sandbox_policy(ctx),
        "approvalPolicy": approval_policy(ctx),
        # Not the thread's developerInstructions: a resumed thread keeps those that it began with.
        "collaborationMode": {"mode": "default", "settings": mode},
    }


def _prompt(step: Step, prompt: Prompt) -> None:
    if step.state["unfit"]:
        step.emit(Unfit(step.state["unfit"]))
        return
    content: list[dict[str, Any]] = [{"type": "text", "text": prompt.text}]
    content += [{"type": "image", "url": f"data:{media};base64,{data}"} for media, data in prompt.images]
    step.state["turn"] = {
        "id": prompt.turn,
        "native": None,
        "input": content,
        "interrupt": False,
        "steer": [],
        "over": False,
        "tools": False,
        "total": None,
    }
    if step.state["thread"]:
        _begin(step)


def _begin(step: Step) -> None:
    turn = step.state["turn"]
    params = {"threadId": step.state["thread"], "input": turn["input"]}
    if step.state["schema"]:
        params["outputSchema"] = step.state["schema"]
    turn["input"] = None
    step.request(turn["id"], "turn/start", params, note=turn["id"])


def _interrupt(step: Step) -> None:
    turn = step.state["turn"]
    if not turn or turn["interrupt"]:
        return
    turn["interrupt"] = True
    if turn["input"] is not None:
        _end(step, Ended("interrupted"))
    elif turn["native"]:
        _stop(step)


def _stop(step: Step) -> None:
    turn, thread = step.state["turn"], step.state["thread"]
    step.request(f"interrupt:{turn['id']}", "turn/interrupt", {"threadId": thread, "turnId": turn["native"]})
    # The turn ends without this too, but its commands would run on.
    step.request(f"clean:{turn['id']}", "thread/backgroundTerminals/clean", {"threadId": thread})


def _steer(step: Step, command: Steer) -> None:
    turn = step.state["turn"]
    if not turn:
        step.emit(Notice("steer_refused", "The turn is over; what was said to it was not delivered."))
    elif turn["native"]:
        _send_steer(step, command.key, command.text)
    else:
        turn["steer"] = [*turn["steer"], [command.key, command.text]]


def _send_steer(step: Step, key: str, text: str) -> None:
    params = {
        "threadId": step.state["thread"],
        "expectedTurnId": step.state["turn"]["native"],
        "input": [{"type": "text", "text": text}],
    }
    step.request(key, "turn/steer", params)


def _decide(step: Step, command: Answer) -> None:
    ask = step.state["asks"].pop(command.id, None)
    if not ask:
        return  # answered before, or no longer asked
    number, method, extra = ask
    yes = command.allow
    result: dict[str, Any]
    if method == "item/permissions/requestApproval":
        result = {"permissions": extra if yes else {}, "scope": "session" if command.always else "turn"}
    elif method == "mcpServer/elicitation/request":
        result = {"action": "accept", "content": {}} if yes else {"action": "decline"}
    else:
        result = {"decision": ("acceptForSession" if command.always else "accept") if yes else "decline"}
    step.reply(f"answer:{command.id}", number, result)


# ---- answers to our requests ----------------------------------------------------------------------------------------


def _answer(step: Step, message: dict[str, Any]) -> None:
    found = step.answered(message)
    if not found:
        return
    method, note = found
    turn = step.state["turn"]
    if "error" in message:
        text = error_text(message)
        if method in ("initialize", "thread/start", "thread/resume", "thread/settings/update"):
            _unfit(step, f"Codex refused {method}: {text}")
        elif method == "turn/start" and turn and turn["id"] == note:
            _end(step, Ended("error", error=ErrorInfo("program_error", f"Codex refused the prompt: {text}")))
        elif method == "turn/steer":
            step.emit(Notice("steer_refused", text))
        return
    result = obj(message.get("result"))
    if method in ("thread/start", "thread/resume"):
        _joined(step, result)


def _joined(step: Step, result: dict[str, Any]) -> None:
    state = step.state
    thread = obj(result.get("thread")).get("id")
    if not isinstance(thread, str) or (state["resume"] and thread != state["resume"]):
        _unfit(step, f"Codex opened the thread {thread!r} instead of {state['resume']!r}.")
        return
    state["thread"] = thread
    step.emit(Identified(thread))
    step.request("settings", "thread/settings/update", {"threadId": thread, **state["settings"]})
    state["settings"] = None
    if state["turn"] and state["turn"]["input"] is not None:
        _begin(step)


def _unfit(step: Step, message: str) -> None:
    step.state["unfit"] = message
    step.emit(Unfit(message))


def _named(step: Step, native: str) -> None:
    """The open turn runs, under this id: what waited for it can be said now. Said right after the answer to turn/start,
    before Codex tells that the turn runs, an interrupt would have no effect."""
    turn = step.state["turn"]
    if turn["native"]:
        return
    turn["native"] = native
    if turn["interrupt"]:
        _stop(step)
    for key, text in turn["steer"]:
        _send_steer(step, key, text)
    turn["steer"] = []


# ---- what Codex tells -----------------------------------------------------------------------------------------------


def _told(step: Step, method: str, params: dict[str, Any]) -> None:
    if method in ("warning", "guardianWarning", "configWarning", "deprecationNotice"):
        _warn(step, "program_warning", str(params.get("message") or params.get("summary") or ""))
    elif method == "mcpServer/startupStatus/updated" and params.get("status") == "failed":
        _warn(step, "mcp_unavailable", f"MCP server {params.get('name')!r} did not start: {params.get('error')}")
    elif method == "serverRequest/resolved":
        _forget(step, params.get("requestId"))
    elif params.get("threadId") != step.state["thread"]:
        _sub_agent(step, method, params)
    elif _current(step, method, params):
        _in_turn(step, method, params)


def _current(step: Step, method: str, params: dict[str, Any]) -> bool:
    """Whether a notification belongs to the open turn."""
    turn = step.state["turn"]
    native = params.get("turnId") or obj(params.get("turn")).get("id")
    if not turn or turn["input"] is not None or not native or native == step.state["ended"]:
        return False
    if method == "turn/started":
        _named(step, native)
    return bool(turn["native"] == native)


def _in_turn(step: Step, method: str, params: dict[str, Any]) -> None:
    state, turn = step.state, step.state["turn"]
    item = obj(params.get("item"))
    match method:
        case "turn/started":
            step.emit(StepStarted())
        case "item/agentMessage/delta" | "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta":
            state["items"][params.get("itemId")] = True
            step.emit(_delta(method, params))
        case "item/started":
            if item.get("type") in ("agentMessage", "reasoning"):
                _next_call(step)
                state["items"][item.get("id")] = False
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
        step.state["patches"][item.get("id")] = changes
    call = tool_call(item)
    if not call or call.id in step.state["calls"] or item.get("type") == "webSearch":
        return []  # a web search says what it looks for only at its end
    step.state["calls"].append(call.id)
    return [call]


def _completed(step: Step, item: dict[str, Any]) -> list[CodecEvent]:
    state, number = step.state, item.get("id")
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
        output = loads(text) if step.state["schema"] else None
        _end(step, Ended("done", text=text, output=None if output == text else output))
    elif status == "interrupted":
        _end(step, Ended("interrupted"))
    else:
        _end(step, Ended("error", error=error_info(obj(turn.get("error")))))


def _end(step: Step, ended: Ended) -> None:
    state = step.state
    step.emit(*(ToolResult(call, "interrupted", is_error=True) for call in state["calls"]), ended)
    state.update(turn=None, items={}, calls=[], waiting=[], patches={}, agents={})


def _warn(step: Step, code: str, message: str) -> None:
    """Codex repeats its warnings each turn; a process says each once."""
    mark = zlib.crc32(message.encode("utf-8", "replace"))
    if message and mark not in step.state["warned"] and not message.startswith(_BUNDLED):
        step.state["warned"] = [*step.state["warned"], mark][-_WARNINGS:]
        step.emit(Notice(code, message))


def _sub_agent(step: Step, method: str, params: dict[str, Any]) -> None:
    """Another thread of this process: a sub-agent of the open turn."""
    parent = step.state["agents"].get(params.get("threadId"))
    if not step.state["turn"] or not parent:
        return
    item = obj(params.get("item"))
    events: list[CodecEvent] = []
    if method in ("item/agentMessage/delta", "item/reasoning/summaryTextDelta", "item/reasoning/textDelta"):
        step.state["items"][params.get("itemId")] = True
        events = [_delta(method, params)]
    elif method == "item/started":
        events = _started(step, item)
    elif method == "item/completed":
        events = _completed(step, item)
    step.emit(*(In(parent, e) for e in events if isinstance(e, (Text, Reasoning, ToolCall, ToolResult, Compaction))))


# ---- what Codex asks ------------------------------------------------------------------------------------------------


def _asked(step: Step, number: Any, method: str, params: dict[str, Any]) -> None:
    turn = step.state["turn"]
    if method == "item/tool/requestUserInput":
        step.reply(f"declined:{number}", number, {"answers": {}})
        step.emit(Notice("question_declined", "Codex asked the user a question; nobody is there to answer it."))
    elif method == "mcpServer/elicitation/request" and (not turn or _needs_form(params)):
        step.reply(f"declined:{number}", number, {"action": "decline"})
        step.emit(
            Notice("question_declined", f"MCP server {params.get('serverName')!r} asked: {params.get('message')}")
        )
    elif method not in _DECISIONS:
        step.refuse(f"refused:{number}", number, method)
    elif not turn:
        permissions = method == "item/permissions/requestApproval"
        step.reply(f"declined:{number}", number, {"permissions": {}} if permissions else {"decision": "decline"})
    else:
        # The number alone begins again in the next process.
        ask = f"{turn['id']}:{number}"
        step.state["asks"][ask] = [number, method, params.get("permissions")]
        step.emit(Approval(ask, _DECISIONS[method], _question(step, method, params)))


def _needs_form(params: dict[str, Any]) -> bool:
    schema = params.get("requestedSchema")
    return params.get("mode") != "form" or not isinstance(schema, dict) or bool(schema.get("required"))


def _question(step: Step, method: str, params: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"call": params.get("itemId"), "reason": params.get("reason"), "cwd": params.get("cwd")}
    if method == "item/commandExecution/requestApproval":
        shown["command"] = bare(params.get("command"))
    elif method == "item/fileChange/requestApproval":
        shown["changes"] = step.state["patches"].get(params.get("itemId"), [])
    elif method == "item/permissions/requestApproval":
        shown["permissions"] = params.get("permissions")
    else:
        shown.update(server=params.get("serverName"), message=params.get("message"))
    return {k: v for k, v in shown.items() if v is not None}


def _forget(step: Step, number: Any) -> None:
    """Answered, or no longer asked because the turn was interrupted."""
    step.state["asks"] = {ask: about for ask, about in step.state["asks"].items() if about[0] != number}
