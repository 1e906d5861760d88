"""Codex's app-server protocol to events and back; pure."""

from __future__ import annotations

from typing import Any

from hostler.runtimes.codex.asking import asked, decide
from hostler.runtimes.codex.launch import PROVIDER, approval_policy, sandbox_policy
from hostler.runtimes.codex.output import strict
from hostler.runtimes.codex.telling import not_begun_anew, told
from hostler.runtimes.codex.turn import begin_if_ready, end, send_steer, stop
from hostler.runtimes.jsonrpc import Step, error_text, new_state, obj
from hostler.runtimes.lines import decode_line
from hostler.types.events import ModelCall, Notice
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
    Unfit,
)

VERSION = 2
_JOINS = ("thread/start", "thread/resume", "thread/fork")


class CodexCodec:
    """Its state: the thread, the open turn, unfinished items and tool calls, open approvals, the next request id, the
    caller's MCP servers, which of them are starting, and which start was cancelled and may begin anew: a turn does not
    begin before it is known which tools it has."""

    version = VERSION

    def start(self, ctx: LaunchContext) -> Folded:
        state = new_state(
            VERSION,
            thread=None,
            resume=None if ctx.fork_at else ctx.resume,
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
            servers=sorted(ctx.mcp_servers),
            starting=sorted(ctx.mcp_servers),
            cancelled=[],
            attended=ctx.approvals,
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
        if ctx.skills:
            step.request("skills", "skills/extraRoots/set", {"extraRoots": [ctx.skills]})
        # Begun read-only, whatever the session allows: a thread that *begins* with the right to write makes Codex trust
        # the project, and so read its .codex folder. The real policy follows with the thread's settings.
        thread = {
            "cwd": ctx.workdir,
            "model": ctx.model,
            "modelProvider": PROVIDER,
            "approvalPolicy": "never",
            "sandbox": "read-only",
        }
        if ctx.resume and ctx.fork_at:
            source = {"threadId": ctx.resume, "lastTurnId": ctx.fork_at, "excludeTurns": True}
            step.request("start", "thread/fork", {**thread, **source})
        elif ctx.resume:
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
                asked(step, message["id"], str(message["method"]), obj(message.get("params")))
            else:
                told(step, str(message["method"]), obj(message.get("params")))
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
                decide(step, command)
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
    taken = strict(prompt.schema) if prompt.schema is not None else None
    step.state["turn"] = {
        "id": prompt.turn,
        "native": None,
        "schema": taken[0] if taken else None,
        "wrapped": taken[1] if taken else False,
        "input": content,
        "interrupt": False,
        "steer": [],
        "over": False,
        "tools": False,
        "total": None,
    }
    begin_if_ready(step)


def _interrupt(step: Step) -> None:
    turn = step.state["turn"]
    if not turn or turn["interrupt"]:
        return
    turn["interrupt"] = True
    if turn["input"] is not None:
        end(step, Ended("interrupted"))
    elif turn["native"]:
        stop(step)


def _steer(step: Step, command: Steer) -> None:
    turn = step.state["turn"]
    if not turn:
        step.emit(Notice("steer_refused", "The turn is over; what was said to it was not delivered."))
    elif turn["native"]:
        send_steer(step, command.key, command.text)
    else:
        turn["steer"] = [*turn["steer"], [command.key, command.text]]


# ---- answers to our requests ----------------------------------------------------------------------------------------


def _answer(step: Step, message: dict[str, Any]) -> None:
    found = step.answered(message)
    if not found:
        return
    method, note = found
    turn = step.state["turn"]
    if method == "mcpServerStatus/list":  # or its refusal, by a Codex that has no such thing
        not_begun_anew(step)
        return
    if "error" in message:
        text = error_text(message)
        if method in ("initialize", *_JOINS, "thread/settings/update"):
            _unfit(step, f"Codex refused {method}: {text}")
        elif method == "turn/start" and turn and turn["id"] == note:
            end(step, Ended("error", error=ErrorInfo("program_error", f"Codex refused the prompt: {text}")))
        elif method == "turn/steer":
            step.emit(Notice("steer_refused", text))
        elif method == "skills/extraRoots/set":
            step.emit(Notice("skills_unavailable", f"This Codex cannot be given skills: {text}"))
        return
    result = obj(message.get("result"))
    if method in _JOINS:
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
    begin_if_ready(step)


def _unfit(step: Step, message: str) -> None:
    step.state["unfit"] = message
    step.emit(Unfit(message))
