"""What Codex asks for: shown as an Approval and answered, or answered at once."""

from __future__ import annotations

from typing import Any

from hostler.runtimes import forms
from hostler.runtimes.codex.items import bare
from hostler.runtimes.jsonrpc import Step, objs
from hostler.types.events import Approval, Notice
from hostler.types.questions import QUESTION, Choice, Question
from hostler.types.runtime import Answer

_DECISIONS = {
    "item/commandExecution/requestApproval": "bash",
    "item/fileChange/requestApproval": "edit",
    "item/permissions/requestApproval": "permissions",
    "mcpServer/elicitation/request": "mcp",
}


def asked(step: Step, number: Any, method: str, params: dict[str, Any]) -> None:
    turn = step.state["turn"]
    attended = turn and step.state.get("attended")
    questions = _questions(method, params)
    if questions and attended:
        _put(step, number, method, params, questions)
    elif method == "item/tool/requestUserInput":
        step.reply(f"declined:{number}", number, {"answers": {}})
        step.emit(Notice("question_declined", "Codex asked the user a question; nobody is there to answer it."))
    elif method == "mcpServer/elicitation/request" and (not turn or questions or _needs_form(params)):
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


def _put(step: Step, number: Any, method: str, params: dict[str, Any], questions: tuple[Question, ...]) -> None:
    ask = f"{step.state['turn']['id']}:{number}"
    shown: dict[str, Any] = {"call": params.get("itemId"), "server": params.get("serverName")}
    shown |= {"message": params.get("message"), "questions": [question.to_dict() for question in questions]}
    step.state["asks"][ask] = [number, method, params.get("requestedSchema") or [q.id for q in questions]]
    step.emit(Approval(ask, QUESTION, {k: v for k, v in shown.items() if v is not None}))


def _questions(method: str, params: dict[str, Any]) -> tuple[Question, ...] | None:
    """What is asked besides leave."""
    if method == "mcpServer/elicitation/request" and params.get("mode") == "form":
        return forms.questions(params.get("requestedSchema"))
    if method != "item/tool/requestUserInput":
        return None
    return tuple(
        Question(
            str(question.get("id")),
            str(question.get("question")),
            str(question.get("header") or ""),
            tuple(
                Choice(str(option.get("label")), str(option.get("description") or ""))
                for option in objs(question.get("options"))
            ),
            free=question.get("isOther") is not False,
        )
        for question in objs(params.get("questions"))
    )


def _needs_form(params: dict[str, Any]) -> bool:
    schema = params.get("requestedSchema")
    return params.get("mode") != "form" or not isinstance(schema, dict) or bool(schema.get("required"))


def _question(step: Step, method: str, params: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"call": params.get("itemId"), "reason": params.get("reason"), "cwd": params.get("cwd")}
    if method == "item/commandExecution/requestApproval":
        shown["command"] = bare(params.get("command"))
    elif method == "item/fileChange/requestApproval":
        shown["changes"] = step.state["patches"].get(str(params.get("itemId")), [])
    elif method == "item/permissions/requestApproval":
        shown["permissions"] = params.get("permissions")
    else:
        shown.update(server=params.get("serverName"), message=params.get("message"))
    return {k: v for k, v in shown.items() if v is not None}


def forget(step: Step, number: Any) -> None:
    """Answered, or no longer asked because the turn was interrupted."""
    step.state["asks"] = {ask: about for ask, about in step.state["asks"].items() if about[0] != number}


def decide(step: Step, command: Answer) -> None:
    ask = step.state["asks"].pop(command.id, None)
    if not ask:
        return  # answered before, or no longer asked
    number, method, extra = ask
    yes = command.allow
    result: dict[str, Any]
    if method == "item/permissions/requestApproval":
        result = {"permissions": extra if yes else {}, "scope": "turn"}
    elif method == "item/tool/requestUserInput":
        none = {id: [f"(no answer: {command.reason or 'the user does not answer this'})"] for id in extra}
        given = command.answers or {} if yes else none
        result = {"answers": {id: {"answers": texts} for id, texts in given.items()}}
    elif method == "mcpServer/elicitation/request":
        content = forms.filled(extra, command.answers or {})
        result = {"action": "accept", "content": content} if yes else {"action": "decline"}
    else:
        result = {"decision": "accept" if yes else "decline"}
    step.reply(f"answer:{command.id}", number, result)
