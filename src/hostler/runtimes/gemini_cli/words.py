"""What Gemini CLI says and is told in words of its own, within the Agent Client Protocol."""

from __future__ import annotations

import json
import re
from typing import Any

from hostler.runtimes.failures import http_failure
from hostler.runtimes.jsonrpc import error_text, obj, objs
from hostler.types.result import ErrorInfo
from hostler.types.runtime import LaunchContext

NO_COMMAND = "\u2060"  # a word joiner: nothing to see, and nothing that a command begins with
_SYNTHETIC = re.compile(r"(?P<name>.+)__(?P=name)_\d+_\d+")
_SHELL = re.compile(
    r"Output: (?P<output>.*?)(?P<end>(?:\n(?:Error|Exit Code|Signal|Background PIDs|Process Group PGID): [^\n]*)*)",
    re.DOTALL,
)
_RESPONSE = " with response: "
_EXIT = re.compile(r"^Exit Code: (-?\d+)$", re.MULTILINE)
_LENGTH = re.compile(r"token count|context window|too long", re.IGNORECASE)


def mode(ctx: LaunchContext) -> str:
    """Asked for once more when a session was loaded: what it tells of the past is said before the answer."""
    return "yolo" if ctx.permissions == "full" else "default"


def loaded(session: str) -> str:
    """The name under which a session is loaded. Under its own one Gemini CLI would begin a new file, of the same name when
    it is the same minute, and so lose what it is about to load; it finds the session without regard to spaces."""
    return f" {session}"


def before(text: str) -> str:
    """What stands before a prompt that would be taken for a command."""
    return NO_COMMAND if text.strip().startswith(("/", "$", NO_COMMAND)) else ""


def plain(update: dict[str, Any]) -> dict[str, Any]:
    """A tool call in the protocol's terms. It names tools only in the ids of their calls, and tells what they are given
    only for people to read. The first that is said of a call may be that it failed."""
    out = {**update, "name": tool_of(str(update.get("toolCallId")))}
    if not update.get("rawInput") and (given := _given(update)):
        out["rawInput"] = given
    if update.get("sessionUpdate") == "tool_call_update":
        out["sessionUpdate"] = "tool_call"
    text = "".join(str(obj(part.get("content")).get("text") or "") for part in objs(update.get("content")))
    if update.get("kind") == "execute" and update.get("status") == "completed":
        out |= _printed(text)
    elif update.get("status") == "failed" and text.startswith("MCP tool "):
        out["content"] = [_said(_reported(text))]
    return out


def _said(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


def _reported(text: str) -> str:
    """What an MCP server said of its failure, out of what Gemini CLI makes of it."""
    try:
        answers = objs(json.loads(text.rpartition(_RESPONSE)[2]))
    except (ValueError, RecursionError):
        return text
    told = [obj(obj(answer.get("functionResponse")).get("response")).get("content") for answer in answers]
    return "\n".join(str(part.get("text") or "") for parts in told for part in objs(parts)) or text


def _printed(text: str) -> dict[str, Any]:
    """What a shell command printed and how it ended, of what the model is told of both."""
    if not (found := _SHELL.fullmatch(text)):
        return {}
    output = "" if found["output"] == "(empty)" else found["output"]
    code = _EXIT.search(found["end"])
    ended = int(code[1]) if code else None if "\nSignal: " in found["end"] else 0
    return {"content": [_said(output)], "rawOutput": {"output": output, "metadata": {"exit": ended}}}


def tool_of(call: str) -> str:
    """The tool of a call, by its id: the name, then what the model called it or the name and two numbers."""
    found = _SYNTHETIC.fullmatch(call)
    return found["name"] if found else call.partition("__")[0]


def _given(update: dict[str, Any]) -> dict[str, Any]:
    title = update.get("title")
    for part in objs(update.get("content")):
        if part.get("type") == "diff":
            return {"file_path": part.get("path"), "old_text": part.get("oldText"), "new_text": part.get("newText")}
    if not isinstance(title, str):
        return {}
    if update.get("kind") == "execute":
        return {"command": title}
    paths = [place["path"] for place in objs(update.get("locations")) if isinstance(place.get("path"), str)]
    return {"title": title, **({"file_path": paths[0]} if paths else {})}


def cut(message: dict[str, Any]) -> bool:
    """Whether the answer to a prompt shows that the model's broke off: the connection failed, or no tokens were counted.
    What was asked is forgotten then, but for the work of tools."""
    if "error" in message:
        return obj(message["error"]).get("message") in ("terminated", "fetch failed", "socket hang up")
    quota = obj(obj(obj(message.get("result")).get("_meta")).get("quota"))
    return bool(quota) and not any(obj(quota.get("token_count")).values())


def failure(message: dict[str, Any]) -> ErrorInfo:
    """Why a turn failed: the code of the error is the model's HTTP status."""
    code, text = obj(message.get("error")).get("code"), error_text(message)
    if _LENGTH.search(text):
        return ErrorInfo("context_exceeded", text)
    if isinstance(code, int) and 400 <= code < 600:
        return http_failure(code, text)
    return ErrorInfo("program_error", text)
