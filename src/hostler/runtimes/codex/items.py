"""Codex's items, and the model's raw calls below them, to tool events."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from hostler.runtimes.codex.launch import HOST_SERVER
from hostler.runtimes.failures import http_failure
from hostler.runtimes.jsonrpc import obj, objs
from hostler.types.events import ToolCall, ToolResult
from hostler.types.result import ErrorInfo

# Codex takes a patch as a tool of its own or as a shell command, depending on the model.
_PATCH = re.compile(r"\s*(cd\s+\S+\s*(&&|;)\s*)?apply_patch\b")
_EXIT = re.compile(r"(?:Process exited with code|Exit code:) (-?\d+)")
_BODY = "Output:\n"
_SHELL = ("exec_command", "shell", "shell_command", "local_shell", "container.exec")
_FAILED = re.compile(
    r"\s*(error|failed|unsupported call|unable to|[\w.]+ (failed|rejected|is unavailable))\b|.*\baborted by user\s*$",
    re.IGNORECASE | re.DOTALL,
)


def tool_call(item: dict[str, Any]) -> ToolCall | None:
    """The call that a started item stands for, None if it is no tool."""
    number, kind = str(item.get("id")), item.get("type")
    match kind:
        case "commandExecution":
            return ToolCall(number, "bash", "exec_command", {"command": bare(item.get("command"))})
        case "fileChange":
            return ToolCall(number, "edit", kind, {"changes": item.get("changes") or []})
        case "mcpToolCall":
            return _mcp_call(number, str(item.get("server")), str(item.get("tool")), item.get("arguments"))
        case "dynamicToolCall":
            name = str(item.get("tool"))
            return ToolCall(number, name, name, item.get("arguments"), builtin=False)
        case "webSearch":
            return ToolCall(number, "web_search", kind, {"query": item.get("query"), "action": item.get("action")})
        case "collabAgentToolCall":
            given = {"prompt": item.get("prompt"), "agents": item.get("receiverThreadIds") or []}
            return ToolCall(number, "task", str(item.get("tool")), given)
        case "imageView":
            return ToolCall(number, "view_image", "imageView", {"path": item.get("path")})
    return None


def tool_result(item: dict[str, Any]) -> ToolResult | None:
    """What a completed item gave, None if it is no tool."""
    number, bad = str(item.get("id")), item.get("status") in ("failed", "declined")
    match item.get("type"):
        case "commandExecution":
            bad = bad or item.get("exitCode") not in (0, None)
            return ToolResult(number, str(item.get("aggregatedOutput") or _status(item)), bad)
        case "fileChange":
            return ToolResult(
                number, _status(item) or "\n".join(str(c.get("path")) for c in objs(item.get("changes"))), bad
            )
        case "mcpToolCall":
            error = item.get("error")
            text = (
                str(error.get("message"))
                if isinstance(error, dict)
                else content_text(obj(item.get("result")).get("content"))
            )
            return ToolResult(number, text, bad or bool(error))
        case "dynamicToolCall":
            return ToolResult(number, content_text(item.get("contentItems")), bad or item.get("success") is False)
        case "webSearch" | "imageView":
            return ToolResult(number, "")
        case "collabAgentToolCall":
            states = obj(item.get("agentsStates"))
            told = [str(s.get("message")) for s in states.values() if isinstance(s, dict) and s.get("message")]
            return ToolResult(number, "\n".join(told), bad)
    return None


def raw_call(item: dict[str, Any]) -> ToolCall | None:
    """A tool call as the model made it."""
    kind, number = item.get("type"), item.get("call_id")
    if (
        kind not in ("function_call", "custom_tool_call", "local_shell_call")
        or not number
        or not isinstance(number, str)
    ):
        return None
    native = str(item.get("name") or "local_shell")
    given = loads(item.get("arguments")) if kind == "function_call" else (item.get("input") or item.get("action"))
    space = str(item.get("namespace") or "")
    if space.startswith("mcp__"):
        return _mcp_call(number, space.removeprefix("mcp__").rstrip("_"), native, given)
    if native == "apply_patch":
        return ToolCall(number, "edit", native, {"patch": given} if isinstance(given, str) else given)
    if native in _SHELL:
        command = given.get("cmd") or given.get("command") if isinstance(given, dict) else given
        if isinstance(given, dict):
            given = {"command": command, **{k: v for k, v in given.items() if k not in ("cmd", "command")}}
        name = "edit" if isinstance(command, str) and _PATCH.match(command) else "bash"
        return ToolCall(number, name, native, given)
    return ToolCall(number, "question" if native == "request_user_input" else native, native, given)


def raw_result(item: dict[str, Any]) -> ToolResult | None:
    """What the model was answered, without Codex's own head above a command's output."""
    number = item.get("call_id")
    if item.get("type") not in ("function_call_output", "custom_tool_call_output"):
        return None
    if not number or not isinstance(number, str):
        return None
    output = item.get("output")
    text = output if isinstance(output, str) else content_text(output)
    head, found, body = text.partition(_BODY)
    if found and (code := _EXIT.search(head)):
        return ToolResult(number, body, code[1] != "0")
    return ToolResult(number, text, bool(_FAILED.match(text)))


def answer_of(turn: dict[str, Any]) -> str | None:
    """The last message of a completed turn, as far as Codex repeats it."""
    said = [str(i.get("text") or "") for i in objs(turn.get("items")) if i.get("type") == "agentMessage"]
    return said[-1] if said else None


def error_info(error: dict[str, Any]) -> ErrorInfo:
    """Why a turn failed."""
    info, message = error.get("codexErrorInfo"), str(error.get("message") or "Codex gave no reason.")
    if detail := error.get("additionalDetails"):
        message = f"{message} ({detail})"
    if isinstance(info, dict):
        about = next(iter(info.values()), None)
        return http_failure(about.get("httpStatusCode") if isinstance(about, dict) else None, message)
    match info:
        case "unauthorized":
            return http_failure(401, message)
        case "rateLimitExceeded" | "usageLimitExceeded":
            return http_failure(429, message)
        case "badRequest" | "cyberPolicy" | "misalignmentPolicyViolation":
            return http_failure(400, message)
        case "contextWindowExceeded":
            return ErrorInfo("context_exceeded", message)
        case "sandboxError" | "threadRollbackFailed" | "tooManyDenials":
            return ErrorInfo("program_error", message)
    body = loads(message)
    if isinstance(body, dict) and isinstance(body.get("error"), dict):  # the provider's refusal as it came
        return http_failure(400, str(body["error"].get("message") or message))
    found = re.search(r"\bstatus:? (\d{3})\b", message)
    return http_failure(int(found[1]) if found else None, message)


def content_text(content: Any) -> str:
    """The text of MCP or Responses content parts; other kinds are named."""
    parts = content if isinstance(content, list) else []
    return "\n".join(
        str(p.get("text")) if p.get("text") is not None else f"[{p.get('type')}]" for p in parts if isinstance(p, dict)
    )


def bare(command: Any) -> Any:
    """The command inside of `/bin/bash -lc '...'`."""
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        words = []
    return words[2] if len(words) == 3 and words[1] in ("-c", "-lc") else command


def loads(text: Any) -> Any:
    """JSON, or the text itself."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


def _mcp_call(number: str, server: str, tool: str, given: Any) -> ToolCall:
    host = server == HOST_SERVER
    native = f"mcp__{server}__{tool}"
    return ToolCall(number, tool if host else native, native, loads(given), builtin=not host)


def _status(item: dict[str, Any]) -> str:
    return "" if item.get("status") in ("completed", "inProgress") else str(item.get("status") or "")
