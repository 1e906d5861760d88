"""What Claude Code asks over its control protocol: for leave to use a tool, or a person for an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...types.events import Answered, Approval, Notice
from ...types.questions import QUESTION, Choice, Question
from ...types.runtime import Answer, CodecState, Folded, Send
from .. import forms
from ..jsonrpc import obj, objs
from ..lines import encode_line
from . import tools

_WITHDRAWN = "The program no longer asks: its turn went on or ended."
_REFUSED = "The user does not allow this."


def asked(state: CodecState, id: str, request: dict[str, Any]) -> Folded:
    """A request that is shown to whoever can answer, or answered at once."""
    match request.get("subtype"):
        case "can_use_tool" if state["turn"] is None:  # behind the end of its turn: nobody would see it
            return Folded(state, sends=(_reply(id, _denied("The turn is over.")),))
        case "can_use_tool" if request.get("tool_name") == tools.ASKS and state.get("questions") is not None:
            given = obj(request.get("input"))
            shown = {"questions": [question.to_dict() for question in _questions(given)]}
            return _open(state, Approval(id, QUESTION, shown), {"input": given})
        case "can_use_tool" if state.get("refuses"):
            name = str(request.get("tool_name"))
            notice = Notice("permission_denied", f"{name}: the permissions of this session do not allow it.")
            return Folded(state, (notice,), (_reply(id, _denied("The permissions of this session do not allow it.")),))
        case "can_use_tool":
            name = tools.normal_name(str(request.get("tool_name")))
            return _open(state, Approval(id, name, request.get("input")), None)
        case "elicitation":
            return _form(state, id, request)
    response = {"subtype": "error", "request_id": id, "error": f"unsupported: {request.get('subtype')}"}
    return Folded(state, sends=(Send(f"refuse:{id}", encode_line({"type": "control_response", "response": response})),))


def withdrawn(state: CodecState, id: str) -> Folded:
    if id not in state["asks"]:
        return Folded(state)
    return Folded(_closed(state, id), (Answered(id, False, _WITHDRAWN),))


def answered(state: CodecState, answer: Answer) -> Folded:
    about = (state.get("questions") or {}).get(answer.id)
    if about is None:
        response = {"behavior": "allow"} if answer.allow else _denied(answer.reason or _REFUSED)
    elif "schema" in about:
        accepted = {"action": "accept", "content": forms.filled(about["schema"], answer.answers or {})}
        response = accepted if answer.allow else {"action": "decline"}
    elif answer.allow:
        response = {"behavior": "allow", "updatedInput": _with_answers(about["input"], answer.answers or {})}
    else:
        response = _denied(answer.reason or "The user does not answer this.")
    return Folded(_closed(state, answer.id), sends=(_reply(answer.id, response),))


def _open(state: CodecState, approval: Approval, about: dict[str, Any] | None) -> Folded:
    state = {**state, "asks": [*state["asks"], approval.id]}
    if about is not None:
        state["questions"] = {**state["questions"], approval.id: about}
    return Folded(state, (approval,))


def _closed(state: CodecState, id: str) -> CodecState:
    state = {**state, "asks": [ask for ask in state["asks"] if ask != id]}
    if state.get("questions"):
        state["questions"] = {ask: about for ask, about in state["questions"].items() if ask != id}
    return state


def _form(state: CodecState, id: str, request: dict[str, Any]) -> Folded:
    """A server of the caller's wants something filled in."""
    server, message = str(request.get("mcp_server_name")), str(request.get("message"))
    questions = forms.questions(request.get("requested_schema"))
    if state.get("questions") is None or state["turn"] is None or request.get("mode") == "url" or not questions:
        notice = Notice("question_declined", f"The MCP server {server!r} asked: {message}")
        return Folded(state, (notice,), (_reply(id, {"action": "decline"}),))
    shown = {"server": server, "message": message, "questions": [question.to_dict() for question in questions]}
    return _open(state, Approval(id, QUESTION, shown), {"schema": request["requested_schema"]})


def _questions(given: dict[str, Any]) -> tuple[Question, ...]:
    return tuple(
        Question(
            str(number),
            str(question.get("question")),
            str(question.get("header") or ""),
            tuple(
                Choice(str(option.get("label")), str(option.get("description") or ""))
                for option in objs(question.get("options"))
            ),
            multiple=question.get("multiSelect") is True,
        )
        for number, question in enumerate(objs(given.get("questions")), 1)
    )


def _with_answers(given: dict[str, Any], answers: Mapping[str, list[str]]) -> dict[str, Any]:
    texts = {q.text: ", ".join(answers[q.id]) for q in _questions(given) if answers.get(q.id)}
    return {**given, "answers": texts}


def _denied(reason: str) -> dict[str, Any]:
    return {"behavior": "deny", "message": reason}


def _reply(id: str, answer: dict[str, Any]) -> Send:
    response = {"subtype": "success", "request_id": id, "response": answer}
    return Send(f"answer:{id}", encode_line({"type": "control_response", "response": response}))
