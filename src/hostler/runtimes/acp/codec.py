"""The Agent Client Protocol, client side, to events and back; pure."""

from __future__ import annotations

import json
from typing import Any

from hostler.runtimes import forms
from hostler.runtimes.acp.dialect import Dialect as Dialect
from hostler.runtimes.acp.dialect import none
from hostler.runtimes.acp.prompting import CANCELLED, begin_if_ready, go_on, interrupt, join, prompt, repeat, steer
from hostler.runtimes.acp.servers import mcp_servers as mcp_servers
from hostler.runtimes.acp.updates import Naming, announce, fold_update, native_name, next_call, normal_name, register
from hostler.runtimes.jsonrpc import Step, error_text, new_state, obj, objs
from hostler.runtimes.lines import decode_line
from hostler.types.events import Approval, ModelCall, Notice, Retract, ToolResult
from hostler.types.questions import QUESTION
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
    Unfit,
)

VERSION = 3
PROTOCOL = 1
_TITLE = 200  # characters
_SETTLED = "settled"
_LINE = 2000  # characters of a line of the agent's stderr


class AcpCodec:
    """Its state: the session, the open turn with its text and tools, open approvals, the next request id."""

    version = VERSION

    def __init__(self, dialect: Dialect | None = None) -> None:
        self.dialect = dialect or Dialect()
        self._naming = Naming(
            self.dialect.names_tools, self.dialect.host_prefix, self.dialect.remark, self.dialect.plain
        )

    def start(self, ctx: LaunchContext) -> Folded:
        servers = mcp_servers(ctx) if self.dialect.servers else []
        meta = self.dialect.meta(ctx)
        state = new_state(
            VERSION,
            session=None,
            ready=False,
            resume=ctx.resume,
            loaded=self.dialect.loaded(ctx.resume) if ctx.resume else None,
            counted=False,
            setup={"cwd": ctx.workdir, "mcpServers": servers, **({"_meta": meta} if meta else {})},
            fresh=self.dialect.fresh,
            permission=self.dialect.permission(ctx),
            method=None,
            mode=self.dialect.mode(ctx),
            turn=None,
            unfit=None,
            tools={},
            said=[],
            asks={},
            log="",
            attended=ctx.approvals,
            settles=bool(ctx.mcp_servers) and self.dialect.failed_server is not none,
        )
        step = self._step(state)
        step.request(
            "init",
            "initialize",
            {
                "protocolVersion": PROTOCOL,
                "clientInfo": {"name": "hostler", "title": "hostler", "version": str(VERSION)},
                "clientCapabilities": {
                    "fs": {"readTextFile": False, "writeTextFile": False},
                    "terminal": False,
                    **({"elicitation": {"form": {}}} if ctx.approvals else {}),
                },
            },
        )
        return step.done()

    def fold(self, state: CodecState, item: Frame | ModelCall) -> Folded:
        step = self._step(state)
        if isinstance(item, ModelCall):
            _call_over(step, item)
        elif item.kind == "note":
            _noted(step, item.data)
        elif item.kind == "err" and self.dialect.failed_server is not none:
            _logged(step, item.data, self.dialect)
        elif item.kind == "out":
            line = decode_line(item.data)
            for message in line.objects:
                if "method" not in message:
                    self._answer(step, message)
                elif "id" in message:
                    self._asked(step, message["id"], str(message["method"]), obj(message.get("params")))
                elif message["method"] == "session/update":
                    self._told(step, obj(message.get("params")))
            if line.noise:
                step.emit(Notice("noise", line.noise))
        return step.done()

    def encode(self, state: CodecState, command: Command) -> Folded:
        step = self._step(state)
        match command:
            case Prompt():
                prompt(step, command, self.dialect)
            case Interrupt():
                interrupt(step)
            case Steer():
                steer(step, command, self.dialect)
            case Answer():
                self._decide(step, command)
        return step.done()

    def _step(self, state: CodecState) -> Step:
        return Step(state, version="2.0")

    # ---- answers to our requests ------------------------------------------------------------------------------------

    def _answer(self, step: Step, message: dict[str, Any]) -> None:
        found = step.answered(message)
        if not found:
            return
        method, note = found
        result = obj(message.get("result"))
        if note == _SETTLED:
            step.state["settles"] = False
            begin_if_ready(step)
        elif method == "session/prompt":
            self._prompt_answered(step, message, note)
        elif "error" in message:
            _unfit(step, f"The agent refused {method}: {error_text(message)}")
        elif method == "initialize":
            self._initialized(step, result)
        elif method == "session/list":
            _located(step, result)
        elif method == "session/set_mode":
            _ready(step)
        else:
            _joined(step, result)

    def _initialized(self, step: Step, result: dict[str, Any]) -> None:
        if not step.state["resume"]:
            join(step, "session/new")
            return
        able = obj(result.get("agentCapabilities"))
        if "resume" in obj(able.get("sessionCapabilities")):
            step.state["method"] = "session/resume"
        elif able.get("loadSession"):
            step.state["method"] = "session/load"
        else:
            _unfit(step, "This agent can neither resume nor load a session.")
            return
        if self.dialect.keeps_cwd:
            step.request("locate", "session/list", {"cwd": step.state["setup"]["cwd"]})
        else:
            join(step, step.state["method"])

    def _prompt_answered(self, step: Step, message: dict[str, Any], note: Any) -> None:
        turn = step.state["turn"]
        if not turn or note not in turn["prompts"]:
            return
        turn["prompts"] = [key for key in turn["prompts"] if key != note]
        broke = note == turn["main"] and self._broke(step, message)
        if broke and repeat(step):
            return
        if broke and "error" not in message:
            turn["ended"] = {"broken": True}
        elif "error" in message and note != turn["main"]:
            step.emit(Notice("steer_refused", error_text(message)))
        elif "error" in message:
            turn["ended"] = {"error": message["error"]}
        else:
            result = obj(message.get("result"))
            turn["ended"] = {"stop": result.get("stopReason"), "at": obj(result.get("_meta")).get("place")}
        if not turn["prompts"]:
            self._end(step, turn["ended"] or {"stop": "end_turn"})

    def _broke(self, step: Step, message: dict[str, Any]) -> bool:
        """Whether the turn ends only because a model call was cut, in an agent that does not repeat it. It is known before
        the end of a call that this was whole, unless the host died meanwhile."""
        turn = step.state["turn"]
        if self.dialect.cut is None or turn["interrupt"]:
            return False
        if "error" in message:
            return self.dialect.cut(message)
        if obj(message.get("result")).get("stopReason") != "end_turn":
            return False
        unseen = step.state["counted"] and not turn["over"]
        return turn["broken"] or unseen or (not turn["acted"] and self.dialect.cut(message))

    def _end(self, step: Step, how: dict[str, Any]) -> None:
        turn = step.state["turn"]
        denied = turn["denied"] and not turn["interrupt"] and "error" not in how
        for call, (_, _, _, told) in step.state["tools"].items():
            if told:
                step.emit(ToolResult(call, "not allowed" if denied else "interrupted", is_error=True))
        if denied:
            go_on(step)
            return
        interrupted = turn["interrupt"]
        step.state.update(turn=None, tools={}, said=[], asks={})
        stop = how.get("stop")
        if interrupted or stop == "cancelled":
            step.emit(Ended("interrupted"))
        elif "broken" in how:
            error = ErrorInfo("model_unavailable", "The model's answer broke off.", retryable=True)
            step.emit(Ended("error", error=error))
        elif "error" in how:
            step.emit(Ended("error", error=self.dialect.failure(how)))
        elif stop == "max_turn_requests":
            step.emit(Ended("max_turns"))
        elif stop == "refusal":
            step.emit(Ended("error", error=ErrorInfo("model_refused", "The model refused to go on.")))
        else:
            if stop == "max_tokens":
                step.emit(Notice("max_tokens", "The answer was cut at the model's limit of output tokens."))
            place = how.get("at")
            step.emit(Ended("done", at=place if isinstance(place, str) else None))

    # ---- what the agent tells ---------------------------------------------------------------------------------------

    def _told(self, step: Step, params: dict[str, Any]) -> None:
        turn = step.state["turn"]
        if turn and turn["input"] is None and params.get("sessionId") == step.state["session"]:
            fold_update(step, obj(params.get("update")), self._naming)

    # ---- what the agent asks ----------------------------------------------------------------------------------------

    def _asked(self, step: Step, number: Any, method: str, params: dict[str, Any]) -> None:
        if method == "elicitation/create":
            _form(step, number, params)
            return
        if method != "session/request_permission":
            step.refuse(f"refused:{number}", number, method)
            return
        turn, call = step.state["turn"], self.dialect.plain(obj(params.get("toolCall")))
        # Of two of a kind the first: what comes after it does more than was asked.
        options = {str(o.get("kind")): o.get("optionId") for o in reversed(objs(params.get("options")))}
        if not turn or turn["interrupt"]:
            step.reply(f"answer:{number}", number, CANCELLED)
            return
        ask = f"{turn['id']}:{number}"
        tool = str(call.get("toolCallId"))
        title = str(call.get("title") or call.get("kind") or "a tool")[:_TITLE]
        step.state["asks"][ask] = [number, options, title, tool]
        if tool not in step.state["tools"] and (call.get("rawInput") or self.dialect.stops_when_denied):
            register(step, call, self._naming)  # some tell of it nowhere else before it is over, or when it is denied
        known = step.state["tools"].get(tool)
        rule = step.state["permission"]
        if known and not known[2]:
            rule = "allow"  # the app's own tools: their server asks and refuses
        if rule == "ask":
            name = known[1] if known else normal_name(native_name(call), call.get("kind"))
            shown = {"call": tool, "title": call.get("title"), "input": call.get("rawInput")}
            step.emit(Approval(ask, name, {k: v for k, v in shown.items() if v}))
        if known and call.get("rawInput"):
            announce(step, tool, call["rawInput"])  # some tell the whole of it nowhere else
        if rule != "ask":
            self._decide(step, Answer(ask, rule == "allow"))

    def _decide(self, step: Step, command: Answer) -> None:
        ask = step.state["asks"].pop(command.id, None)
        if not ask:
            return  # answered before, or no longer asked
        number, options, title, tool = ask
        if "schema" in options:
            content = forms.filled(options["schema"], command.answers or {})
            form = {"action": "accept", "content": content} if command.allow else {"action": "decline"}
            step.reply(f"answer:{command.id}", number, form)
            return
        verb = "allow" if command.allow else "reject"
        chosen = next((options[kind] for kind in (f"{verb}_once", f"{verb}_always") if kind in options), None)
        outcome = {"outcome": {"outcome": "selected", "optionId": chosen}} if chosen is not None else CANCELLED
        step.reply(f"answer:{command.id}", number, outcome)
        if self.dialect.silent and not command.allow and tool in step.state["tools"]:
            del step.state["tools"][tool]
            step.emit(ToolResult(tool, command.reason or "It was not allowed.", is_error=True))
            next_call(step)
        if self.dialect.stops_when_denied and not command.allow:
            turn = step.state["turn"]
            turn["denied"] = [*turn["denied"], f"{title} ({command.reason})" if command.reason else title]


def _form(step: Step, number: Any, params: dict[str, Any]) -> None:
    """The agent has a person fill in a form. The protocol has this as unstable: an agent does it only when it is told that
    we can."""
    turn, schema = step.state["turn"], params.get("requestedSchema")
    questions = forms.questions(schema) if params.get("mode") == "form" else None
    if not turn or turn["interrupt"] or not questions or not step.state.get("attended"):
        step.reply(f"answer:{number}", number, {"action": "decline"})
        return
    ask = f"{turn['id']}:{number}"
    step.state["asks"][ask] = [number, {"schema": schema}, "a form", ""]
    shown = {"message": params.get("message"), "questions": [question.to_dict() for question in questions]}
    step.emit(Approval(ask, QUESTION, shown))


def _logged(step: Step, data: bytes, dialect: Dialect) -> None:
    """A piece of the agent's stderr; the line that has not ended yet is kept."""
    *lines, rest = (step.state["log"] + data.decode(errors="replace")).split("\n")
    step.state["log"] = rest[-_LINE:]
    for line in lines:
        if name := dialect.failed_server(line):
            step.emit(Notice("mcp_server_failed", f"The MCP server {name!r} did not start; its tools are missing."))
            step.emit(ServerMissing(name))


# ---- the session ----------------------------------------------------------------------------------------------------


def _located(step: Step, result: dict[str, Any]) -> None:
    cwd, resume = step.state["setup"]["cwd"], step.state["resume"]
    if any(s.get("sessionId") == resume and s.get("cwd") == cwd for s in objs(result.get("sessions"))):
        join(step, step.state["method"])
    else:
        _unfit(step, f"The agent has no session {resume} in {cwd}: it does not know it, or made it somewhere else.")


def _joined(step: Step, result: dict[str, Any]) -> None:
    state = step.state
    session = state["loaded"] or result.get("sessionId")
    if not isinstance(session, str) or result.get("sessionId") not in (None, session):
        _unfit(step, f"The agent opened the session {result.get('sessionId')!r} instead of {state['resume']!r}.")
        return
    if state.get("settles"):
        # What it logged of its servers before this answer is read before the next one.
        step.request("settle", "session/list", {"cwd": state["setup"]["cwd"]}, note=_SETTLED)
    state.update(session=session, setup=state["setup"] if state["fresh"] else None)
    step.emit(Identified(state["resume"] or session))
    if state["mode"]:
        step.request(f"mode:{session}", "session/set_mode", {"sessionId": session, "modeId": state["mode"]})
    else:
        _ready(step)


def _ready(step: Step) -> None:
    step.state["ready"] = True
    begin_if_ready(step)


def _unfit(step: Step, message: str) -> None:
    step.state["unfit"] = message
    step.emit(Unfit(message))


# ---- the model calls, as the keeper and the endpoint saw them -------------------------------------------------------


def _noted(step: Step, data: bytes) -> None:
    """A call that was cut is made again, and the agent tells its pieces again without a word. The keeper notes the cut
    after all that the agent made of the first attempt and before the second."""
    turn = step.state["turn"]
    try:
        note = json.loads(data)
    except ValueError:
        return
    if turn and isinstance(note, dict) and note.get("what") == "cut":
        turn["broken"] = True
        step.emit(*(Retract(item) for item in step.state["said"]))
        step.state["said"] = []
        turn["attempt"] += 1


def _call_over(step: Step, call: ModelCall) -> None:
    turn = step.state["turn"]
    if not turn or turn["input"] is not None:
        return
    turn["broken"] = call.status in ("cut", "silent")
    if call.status == "ok":
        step.state["counted"] = True
        turn["over"] = True
        next_call(step)
