"""The script of a model: which step a conversation has reached, read from the conversation itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
from typing import Any, NamedTuple, TypeAlias

Step: TypeAlias = dict[str, Any]

_CALLS = {"shell", "tool", "args", "tools", "namespace", "custom", "timeout"}
_SAYS = {"text", "think", "chunks", "chunk_delay", "usage", "headers"}
_FAULTS = {"delay", "hang", "drop", "truncate", "stream_error", "error", "type", "message", "retry_after"}
KEYS = frozenset(_CALLS | _SAYS | _FAULTS)
_DIRECTIVE = re.compile(r"@@(.*?)@@", re.S)
_CODEWORD = re.compile(r"CODEWORD-\w+")
SHELLS = (  # the shell tools of the agent programs, and the argument that takes the command
    ("Bash", "command"),
    ("exec_command", "cmd"),
    ("shell_command", "command"),
    ("shell", "command"),
    ("local_shell", "command"),
    ("bash", "command"),
    ("run_shell_command", "command"),
    ("execute", "command"),
)


class Said(NamedTuple):
    """One message of the conversation; ``calls`` is the number of tools that it calls."""

    role: str
    text: str
    calls: int = 0


def next_step(said: Sequence[Said], tools: Set[str], raw: str, unscripted: Step | None = None) -> Step:
    """The step that answers this conversation. ``raw`` is the whole of it as text, searched for code words, which are the
    answer where there is no script, unless another is given."""
    words = ",".join(sorted(set(_CODEWORD.findall(raw))))
    answer: Step = {"text": f"ANSWER users={sum(m.role == 'user' for m in said)} memo={words}"}
    at = max((i for i, m in enumerate(said) if m.role == "user" and _DIRECTIVE.search(m.text)), default=None)
    if at is None or any(_supersedes(m) for m in said[at + 1 :]):
        return unscripted or answer
    try:
        steps = json.loads(_DIRECTIVE.findall(said[at].text)[-1])
    except ValueError as error:
        return {"text": f"BAD DIRECTIVE: {error}"}
    steps = steps if isinstance(steps, list) else [steps]
    done = sum(m.role == "assistant" and m.calls > 0 for m in said[at + 1 :])
    if done >= len(steps):
        return {"text": f"DONE after {done} tool step(s). memo={words}"}
    return prepare(steps[done], tools, answer)


def prepare(step: Any, tools: Set[str], answer: Step) -> Step:
    """A step ready to be played: checked, with its calls under ``tools``."""
    if not isinstance(step, dict):
        return {"text": f"BAD DIRECTIVE: a step is a JSON object, not {step!r}"}
    if unknown := sorted(set(step) - KEYS):
        return {"text": f"UNKNOWN DIRECTIVE: {', '.join(unknown)}; known are {', '.join(sorted(KEYS))}"}
    calls = step.get("tools") or ([step] if calls_tools(step) else [])
    if not calls:
        return step if "error" in step else {**answer, **step}
    if not tools:  # a side call of the program (a title, a summary) that sees the same prompt
        return answer
    ready = [_call(call, tools) for call in calls]
    if None in ready:
        return {"text": "NO SHELL TOOL among " + ",".join(sorted(tools))}
    return {**{k: v for k, v in step.items() if k not in ("shell", "tool", "args")}, "tools": ready}


def calls_tools(step: Step) -> bool:
    """Whether this step calls tools."""
    return any(key in step for key in ("shell", "tool", "tools"))


def _call(call: Step, tools: Set[str]) -> Step | None:
    if "shell" not in call:
        return {**call, "args": call.get("args", {})}
    for name, argument in SHELLS:
        if name in tools:
            command: Any = ["bash", "-lc", call["shell"]] if name in ("shell", "local_shell") else call["shell"]
            args = {argument: command}
            if name in ("bash", "Bash"):
                args["description"] = "scripted"
            if name == "Bash" and call.get("timeout"):
                args["timeout"] = call["timeout"]
            return {"tool": name, "args": args}
    return None


def _supersedes(message: Said) -> bool:
    """A later prompt ends a script; reminders that programs add in the user's name (``<...>``) do not."""
    if message.role != "user" or not message.text or _DIRECTIVE.search(message.text):
        return False
    return "CODEWORD" in message.text or message.text.lstrip()[:1] not in "<#["
