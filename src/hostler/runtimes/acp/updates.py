"""One `session/update` of an agent to events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hostler.runtimes.jsonrpc import Step, obj, objs
from hostler.types.events import Notice, Reasoning, Text, ToolCall, ToolResult
from hostler.types.runtime import StepStarted

_NORMAL = {
    "bash": "bash",
    "shell": "bash",
    "execute": "bash",
    "run_shell_command": "bash",
    "edit": "edit",
    "edit_file": "edit",
    "multiedit": "edit",
    "patch": "edit",
    "apply_patch": "edit",
    "notebookedit": "edit",
    "notebook_edit": "edit",
    "delete": "edit",
    "move": "edit",
    "write": "write",
    "write_file": "write",
    "read": "read",
    "read_file": "read",
    "glob": "glob",
    "grep": "grep",
    "search": "grep",
    "grep_search": "grep",
    "list": "ls",
    "ls": "ls",
    "list_directory": "ls",
    "replace": "edit",
    "search_file_content": "grep",
    "google_web_search": "web_search",
    "websearch": "web_search",
    "web_search": "web_search",
}
_DONE = ("completed", "failed")


@dataclass(frozen=True, slots=True)
class Naming:
    """How an agent names its tools, and among them the host's; which text is its own word and not the model's; how what
    it tells of a tool call is to be read."""

    by_title: bool
    host_prefix: str
    remark: Callable[[str], bool]
    plain: Callable[[dict[str, Any]], dict[str, Any]]


def fold_update(step: Step, update: dict[str, Any], naming: Naming) -> None:
    match update.get("sessionUpdate"):
        case "agent_message_chunk":
            text = obj(update.get("content")).get("text")
            if isinstance(text, str) and naming.remark(text):
                step.emit(Notice("agent", text.strip()))
            else:
                _chunk(step, update, Text)
        case "agent_thought_chunk":
            _chunk(step, update, Reasoning)
        case "tool_call" | "tool_call_update":
            _tool(step, naming.plain(update), naming)


def native_name(update: dict[str, Any], *, by_title: bool = False) -> str:
    """The agent's own name of a tool. Most give only a kind and a title for people."""
    named = update.get("name") or (update.get("title") if by_title else None)
    return str(named or update.get("kind") or update.get("title") or "tool")


def normal_name(native: str, kind: Any) -> str:
    return _NORMAL.get(native.lower()) or (_NORMAL.get(str(kind)) if native == kind else None) or native


def _chunk(step: Step, update: dict[str, Any], event: type[Text] | type[Reasoning]) -> None:
    turn, state = step.state["turn"], step.state
    text = obj(update.get("content")).get("text")
    if not isinstance(text, str) or not text:
        return
    next_call(step, seen=True)
    given = update.get("messageId")
    name = (
        given
        if given and isinstance(given, str)
        else f"{turn['id']}:{turn['block']}{'' if event is Text else ':thought'}"
    )
    if event is Text and name != turn["message"]:
        _new_message(step, name)
    item = f"{name}#{turn['attempt']}" if turn["attempt"] else name
    if item not in state["said"]:
        state["said"].append(item)
    step.emit(event(item, text))


def _new_message(step: Step, name: str) -> None:
    """What the message before said came from a model call that is over; the thoughts since then belong to the new one."""
    old, said = step.state["turn"]["message"], step.state["said"]
    last = max((i for i, item in enumerate(said) if old and item.partition("#")[0] == old), default=-1)
    step.state["said"] = said[last + 1 :]
    step.state["turn"]["message"] = name


def _tool(step: Step, update: dict[str, Any], naming: Naming) -> None:
    tools, number, status = step.state["tools"], str(update.get("toolCallId")), update.get("status")
    first = update.get("sessionUpdate") == "tool_call"
    if number not in tools:
        if status in _DONE and not first:
            return  # the end of a call that has ended before
        register(step, update, naming)
    given = update.get("rawInput")
    if status in ("in_progress", *_DONE) or (given and not first):
        announce(step, number, given)
    if status in _DONE:
        del tools[number]
        step.emit(ToolResult(number, _output(update), _failed(update)))
        next_call(step)


def register(step: Step, update: dict[str, Any], naming: Naming) -> None:
    """Know of a tool call, before it is told."""
    step.state["tools"][str(update.get("toolCallId"))] = [*_named(update, naming), False]


def next_call(step: Step, *, seen: bool = False) -> None:
    """The model is called again once its call is over and the tools that it called have all answered. ``seen``: it says
    something already, so its last call was over, whether anybody saw that or not."""
    turn = step.state["turn"]
    if (seen or turn["over"]) and turn["worked"] and not step.state["tools"] and not turn["interrupt"]:
        turn.update(over=False, worked=False)
        step.emit(StepStarted())


def announce(step: Step, number: str, given: Any) -> None:
    """Tell of a tool call, once: its arguments are whole, and the model call that made it cannot be taken back."""
    native, name, builtin, told = step.state["tools"][number]
    if not told:
        step.state["tools"][number] = [native, name, builtin, True]
        step.state["said"] = []
        turn = step.state["turn"]
        turn.update(worked=True, acted=True, block=turn["block"] + 1)
        step.emit(ToolCall(number, name, native, {} if given is None else given, builtin))


def _named(update: dict[str, Any], naming: Naming) -> tuple[str, str, bool]:
    native = native_name(update, by_title=naming.by_title)
    if native.startswith(naming.host_prefix):
        return native, native.removeprefix(naming.host_prefix), False
    return native, normal_name(native, update.get("kind")), True


def _output(update: dict[str, Any]) -> str:
    parts = objs(update.get("content"))
    texts = [str(obj(p.get("content")).get("text") or "") for p in parts if p.get("type") == "content"]
    if any(texts):
        return "\n".join(texts)
    raw = update.get("rawOutput")
    if isinstance(raw, dict):
        raw = raw.get("output") or raw.get("error") or ""
    return raw if isinstance(raw, str) else ""


def _failed(update: dict[str, Any]) -> bool:
    raw = update.get("rawOutput")
    about = raw.get("metadata") if isinstance(raw, dict) else None
    left = about.get("exit", 0) if isinstance(about, dict) else 0  # None: the command was ended
    return update.get("status") == "failed" or left != 0
