"""The Agent Client Protocol, client side, to events and back; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hostler.runtimes.acp.updates import Naming, announce, fold_update, native_name, next_call, normal_name, register
from hostler.runtimes.jsonrpc import Step, error_text, new_state, obj, objs
from hostler.runtimes.lines import decode_line
from hostler.types.errors import CapabilityUnsupported
from hostler.types.events import Approval, ModelCall, Notice, Retract, ToolResult
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
    Steer,
    StepStarted,
    Unfit,
)

VERSION = 3
PROTOCOL = 1
AUTH_REQUIRED = -32000
HOST_SERVER = "host"
_KEPT = 16_384  # characters of a prompt that may be repeated; the state is stored with every frame
_REPEATS = 5  # the endpoint ends a row of cuts before
GO_ON = "Your answer broke off. Go on."
_LINE = 2000  # characters of a line of the agent's stderr
_CANCELLED = {"outcome": {"outcome": "cancelled"}}


def failure(message: dict[str, Any]) -> ErrorInfo:
    """Why the agent answered a prompt with an error, as far as the protocol says it."""
    error = message.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return ErrorInfo("model_auth" if code == AUTH_REQUIRED else "program_error", error_text(message))


def no_rule(ctx: LaunchContext) -> str:
    """What becomes of the agent's own permission requests: they are shown to whoever can answer, else granted."""
    return "ask" if ctx.approvals else "allow"


def none(line: str) -> None:
    """The protocol has no word for MCP servers that do not start."""


def nothing(ctx: LaunchContext) -> None:
    """The agent is told no more than the protocol wants."""


def as_it_is(update: dict[str, Any]) -> dict[str, Any]:
    """The agent tells of its tools in the protocol's own terms."""
    return update


def the_models(text: str) -> bool:
    """All that is said is the model's."""
    return False


def under_its_name(session: str) -> str:
    """A session is loaded under the name that it was made with."""
    return session


def no_word(text: str) -> str:
    """Nothing has to stand before a prompt."""
    return ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where agents differ within the protocol.

    ``names_tools``: the first title of a tool call is the tool's name. ``steers``: a second prompt joins the running one.
    ``keeps_cwd``: a session runs where it was made, whatever a resume says, so that must be asked for.
    ``servers``: MCP servers are given with the session, not in the agent's own configuration. ``fresh``: one process makes
    one session after the other. ``commands``: it takes a
    prompt that begins with a slash for a command, but looks at what is meant for the user's eyes only, too.
    ``failed_server``: the MCP server that did not start, by a line of the agent's stderr. ``mode``: the id of the mode in
    which it must work before it hears a prompt. ``meta``: what it is told beside, with each session. ``remark``: whether a
    piece of text is the agent's own word to its user, in among what the model says. ``plain``: what it tells of a tool call,
    as the protocol would have it: ``name``, ``rawInput``, ``rawOutput``. ``loaded``: the name under which a session is to
    be resumed, if not its own. ``silent``: it says no more of a tool call that was denied. ``cut``: whether
    the answer to a prompt shows that a model call was cut. Given, the agent does not repeat such a call, and may tell it as
    the end of a turn: then the prompt is repeated. ``before``: a word to be said before a prompt that it would take for a command.
    """

    names_tools: bool = False
    host_prefix: str = "mcp__host__"
    steers: bool = False
    keeps_cwd: bool = False
    servers: bool = True
    fresh: bool = False
    commands: bool = False
    permission: Callable[[LaunchContext], str] = no_rule
    failure: Callable[[dict[str, Any]], ErrorInfo] = failure
    failed_server: Callable[[str], str | None] = none
    mode: Callable[[LaunchContext], str | None] = nothing
    meta: Callable[[LaunchContext], dict[str, Any] | None] = nothing
    remark: Callable[[str], bool] = the_models
    plain: Callable[[dict[str, Any]], dict[str, Any]] = as_it_is
    loaded: Callable[[str], str] = under_its_name
    silent: bool = False
    cut: Callable[[dict[str, Any]], bool] | None = None
    before: Callable[[str], str] = no_word


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
        )
        step = self._step(state)
        step.request(
            "init",
            "initialize",
            {
                "protocolVersion": PROTOCOL,
                "clientInfo": {"name": "hostler", "title": "hostler", "version": str(VERSION)},
                "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
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
                _prompt(step, command, self.dialect)
            case Interrupt():
                _interrupt(step)
            case Steer():
                _steer(step, command, self.dialect)
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
        if method == "session/prompt":
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
            _join(step, "session/new")
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
            _join(step, step.state["method"])

    def _prompt_answered(self, step: Step, message: dict[str, Any], note: Any) -> None:
        turn = step.state["turn"]
        if not turn or note not in turn["prompts"]:
            return
        turn["prompts"] = [key for key in turn["prompts"] if key != note]
        broke = note == turn["id"] and self._broke(step, message)
        if broke and _again(step):
            return
        if broke and "error" not in message:
            turn["ended"] = {"broken": True}
        elif "error" in message and note != turn["id"]:
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
        for call, (_, _, _, told) in step.state["tools"].items():
            if told:
                step.emit(ToolResult(call, "interrupted", is_error=True))
        interrupted = step.state["turn"]["interrupt"]
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
        if method != "session/request_permission":
            step.refuse(f"refused:{number}", number, method)
            return
        turn, call = step.state["turn"], self.dialect.plain(obj(params.get("toolCall")))
        options = {str(o.get("kind")): o.get("optionId") for o in objs(params.get("options"))}
        if not turn or turn["interrupt"]:
            step.reply(f"answer:{number}", number, _CANCELLED)
            return
        ask = f"{turn['id']}:{number}"
        tool = str(call.get("toolCallId"))
        step.state["asks"][ask] = [number, options, tool]
        if tool not in step.state["tools"] and call.get("rawInput"):
            register(step, call, self._naming)  # some tell of it nowhere else before it is over
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
        number, options, tool = ask
        verb = "allow" if command.allow else "reject"
        chosen = next((options[kind] for kind in (f"{verb}_once", f"{verb}_always") if kind in options), None)
        outcome = {"outcome": {"outcome": "selected", "optionId": chosen}} if chosen is not None else _CANCELLED
        step.reply(f"answer:{command.id}", number, outcome)
        if self.dialect.silent and not command.allow and tool in step.state["tools"]:
            del step.state["tools"][tool]
            step.emit(ToolResult(tool, command.reason or "It was not allowed.", is_error=True))
            next_call(step)


def _logged(step: Step, data: bytes, dialect: Dialect) -> None:
    """A piece of the agent's stderr; the line that has not ended yet is kept."""
    *lines, rest = (step.state["log"] + data.decode(errors="replace")).split("\n")
    step.state["log"] = rest[-_LINE:]
    for line in lines:
        if name := dialect.failed_server(line):
            step.emit(Notice("mcp_server_failed", f"The MCP server {name!r} did not start; its tools are missing."))


# ---- the session ----------------------------------------------------------------------------------------------------


def _join(step: Step, method: str, key: str = "start") -> None:
    setup, loaded = step.state["setup"], step.state["loaded"]
    step.request(key, method, {**setup, "sessionId": loaded} if loaded else setup)


def _located(step: Step, result: dict[str, Any]) -> None:
    cwd, resume = step.state["setup"]["cwd"], step.state["resume"]
    if any(s.get("sessionId") == resume and s.get("cwd") == cwd for s in objs(result.get("sessions"))):
        _join(step, step.state["method"])
    else:
        _unfit(step, f"The agent has no session {resume} in {cwd}: it does not know it, or made it somewhere else.")


def _joined(step: Step, result: dict[str, Any]) -> None:
    state = step.state
    session = state["loaded"] or result.get("sessionId")
    if not isinstance(session, str) or result.get("sessionId") not in (None, session):
        _unfit(step, f"The agent opened the session {result.get('sessionId')!r} instead of {state['resume']!r}.")
        return
    state.update(session=session, setup=state["setup"] if state["fresh"] else None)
    step.emit(Identified(state["resume"] or session))
    if state["mode"]:
        step.request(f"mode:{session}", "session/set_mode", {"sessionId": session, "modeId": state["mode"]})
    else:
        _ready(step)


def _ready(step: Step) -> None:
    step.state["ready"] = True
    if step.state["turn"] and step.state["turn"]["input"] is not None:
        _begin(step)


def _unfit(step: Step, message: str) -> None:
    step.state["unfit"] = message
    step.emit(Unfit(message))


def mcp_servers(ctx: LaunchContext) -> list[dict[str, Any]]:
    """The host's tool server and the caller's, as the protocol wants them."""
    if HOST_SERVER in ctx.mcp_servers:
        raise CapabilityUnsupported(f"The MCP server name {HOST_SERVER!r} is hostler's own; name it otherwise.")
    servers = [_server(name, spec) for name, spec in ctx.mcp_servers.items()]
    if ctx.tool_url:
        servers.append(
            _server(HOST_SERVER, {"url": ctx.tool_url, "headers": {"Authorization": f"Bearer {ctx.tool_token}"}})
        )
    return servers


def _server(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    if url := spec.get("url"):
        kind = spec.get("type") if spec.get("type") in ("http", "sse") else "http"
        return {"type": kind, "name": name, "url": url, "headers": _pairs(spec.get("headers"))}
    return {
        "name": name,
        "command": spec["command"],
        "args": list(spec.get("args") or ()),
        "env": _pairs(spec.get("env")),
    }


def _pairs(values: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in (values or {}).items()]


# ---- commands -------------------------------------------------------------------------------------------------------


def _text(text: str, dialect: Dialect) -> list[dict[str, Any]]:
    plain: dict[str, Any] = {"type": "text", "text": text}
    if word := dialect.before(text):
        return [{"type": "text", "text": word}, plain]
    if dialect.commands and text.lstrip().startswith("/"):
        return [{"type": "text", "text": ".", "annotations": {"audience": ["user"]}}, plain]
    return [plain]


def _prompt(step: Step, prompt: Prompt, dialect: Dialect) -> None:
    if step.state["unfit"]:
        step.emit(Unfit(step.state["unfit"]))
        return
    content = _text(prompt.text, dialect)
    content += [{"type": "image", "mimeType": media, "data": data} for media, data in prompt.images]
    step.state["turn"] = {
        "id": prompt.turn,
        "input": content,
        "prompts": [prompt.turn],
        "steer": [],
        "ended": None,
        "interrupt": False,
        "message": None,  # the id of the message that is being written
        "attempt": 0,  # grows with each model call that was cut, so that its pieces can be taken back
        "block": 0,  # grows where the agent does not name its messages
        "over": False,  # the model call is over
        "worked": False,  # it called tools
        "acted": False,  # it has called tools in this turn
        "broken": False,  # its last model call was cut
        "kept": content if dialect.cut is not None and len(json.dumps(content)) < _KEPT else None,
        "repeats": 0,
    }
    if prompt.fresh:
        step.state.update(session=None, ready=False, resume=None, loaded=None)
        _join(step, "session/new", f"fresh:{prompt.turn}")
    elif step.state["ready"]:
        _begin(step)


def _begin(step: Step) -> None:
    turn = step.state["turn"]
    content, turn["input"] = turn["input"], None
    step.request(turn["id"], "session/prompt", {"sessionId": step.state["session"], "prompt": content}, note=turn["id"])
    step.emit(StepStarted())
    for key, said in turn["steer"]:
        _send_steer(step, key, said)
    turn["steer"] = []


def _again(step: Step) -> bool:
    """Repeat the prompt of a turn whose model call was cut; False where that cannot be done."""
    turn = step.state["turn"]
    if turn["kept"] is None or turn["interrupt"] or turn["repeats"] >= _REPEATS:
        return False
    step.emit(*(Retract(item) for item in step.state["said"]))
    step.state["said"] = []
    turn.update(
        broken=False,
        over=False,
        attempt=turn["attempt"] + 1,
        repeats=turn["repeats"] + 1,
        prompts=[*turn["prompts"], turn["id"]],
    )
    # What tools have done stays in its history; without that nothing of the prompt does.
    content = [{"type": "text", "text": GO_ON}] if turn["acted"] else turn["kept"]
    params = {"sessionId": step.state["session"], "prompt": content}
    step.request(f"{turn['id']}:again{turn['repeats']}", "session/prompt", params, note=turn["id"])
    return True


def _interrupt(step: Step) -> None:
    turn = step.state["turn"]
    if not turn or turn["interrupt"]:
        return
    if turn["input"] is not None:
        step.state["turn"] = None
        step.emit(Ended("interrupted"))
        return
    turn["interrupt"] = True
    for ask, (number, *_) in step.state["asks"].items():
        step.reply(f"answer:{ask}", number, _CANCELLED)
    step.state["asks"] = {}
    step.notify(f"interrupt:{turn['id']}", "session/cancel", {"sessionId": step.state["session"]})


def _steer(step: Step, command: Steer, dialect: Dialect) -> None:
    turn = step.state["turn"]
    if not turn or not dialect.steers or turn["interrupt"]:
        why = "The turn is over" if dialect.steers else "This agent takes nothing during a turn"
        step.emit(Notice("steer_refused", f"{why}; what was said to it was not delivered."))
    elif turn["input"] is not None:
        turn["steer"] = [*turn["steer"], [command.key, _text(command.text, dialect)]]
    else:
        _send_steer(step, command.key, _text(command.text, dialect))


def _send_steer(step: Step, key: str, content: list[dict[str, Any]]) -> None:
    turn = step.state["turn"]
    turn["prompts"] = [*turn["prompts"], key]
    params = {"sessionId": step.state["session"], "prompt": content}
    step.request(key, "session/prompt", params, note=key)


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
