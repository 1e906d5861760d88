"""How programs ask a person something, and are answered: forms of MCP servers and ACP agents. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.runtimes.recorded import context

from hostler.harness import Choice, Question
from hostler.runtimes import forms
from hostler.runtimes.acp.codec import AcpCodec
from hostler.runtimes.claude_code.codec import ClaudeCodec
from hostler.runtimes.codex.codec import CodexCodec
from hostler.types.events import Approval, Notice
from hostler.types.runtime import Answer, Folded, Frame, Interrupt, Prompt

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "description": "Whose?"},
        "kind": {"type": "string", "enum": ["a", "b"], "enumNames": ["Ay", "Bee"]},
        "plan": {"type": "string", "oneOf": [{"const": "p", "title": "Pro"}, {"const": "f", "title": "Free"}]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
        "sure": {"type": "boolean"},
        "count": {"type": "integer"},
        "price": {"type": "number"},
    },
    "required": ["name", "sure"],
}


def test_the_fields_of_a_form_are_questions() -> None:
    asked = forms.questions(FORM)
    assert asked is not None
    by_id = {question.id: question for question in asked}
    assert by_id["name"] == Question("name", "Whose?", "Name")
    assert by_id["kind"].choices == (Choice("Ay"), Choice("Bee"))
    assert [choice.label for choice in by_id["plan"].choices] == ["Pro", "Free"]
    assert by_id["tags"].multiple
    assert not by_id["kind"].free
    assert by_id["sure"].choices == (Choice("yes"), Choice("no"))
    assert [q.kind for q in asked] == ["text"] * 5 + ["integer", "number"]
    assert [q.id for q in asked if q.required] == ["name", "sure"]
    answers = {"name": ["Ada"], "kind": ["Bee"], "plan": ["Pro"], "tags": ["x", "y"], "sure": ["no"], "count": ["3"]}
    assert forms.filled(FORM, {**answers, "price": ["1.5"]}) == {
        "name": "Ada",
        "kind": "b",
        "plan": "p",
        "tags": ["x", "y"],
        "sure": False,
        "count": 3,
        "price": 1.5,
    }


@pytest.mark.parametrize("schema", [None, {}, {"properties": {}}, {"properties": "x"}, []])
def test_a_form_without_fields_asks_nothing(schema: Any) -> None:
    assert forms.questions(schema) == ()


def test_a_form_that_nobody_could_fill_in_is_none() -> None:
    assert forms.questions({"properties": {"a": {"type": "string"}, "b": {"type": "object"}}}) is None
    assert forms.questions({"properties": {"b": {"type": "array", "items": {"type": "string"}}}}) is None


def line(**message: Any) -> Frame:
    return Frame(1, "out", json.dumps(message).encode())


def through(state: Any) -> Any:
    return json.loads(json.dumps(state))


SMALL = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def claude(approvals: bool) -> Folded:
    codec = ClaudeCodec()
    state = codec.encode(codec.start(context(approvals=approvals)).state, Prompt("t1", "go")).state
    request = {"subtype": "elicitation", "mcp_server_name": "s", "message": "m", "requested_schema": SMALL}
    return codec.fold(through(state), line(type="control_request", request_id="7", request=request))


def codex(approvals: bool) -> Folded:
    codec = CodexCodec()
    state = codec.start(context(approvals=approvals)).state
    for sent in (line(id=1, result={}), line(id=2, result={"thread": {"id": "th"}})):
        state = codec.fold(state, sent).state
    state = codec.encode(state, Prompt("t1", "go")).state
    params = {"threadId": "th", "serverName": "s", "message": "m", "mode": "form", "requestedSchema": SMALL}
    return codec.fold(through(state), line(id=7, method="mcpServer/elicitation/request", params=params))


def acp(approvals: bool) -> Folded:
    codec = AcpCodec()
    started = codec.start(context(approvals=approvals))
    able = json.loads(started.sends[0].data)["params"]["clientCapabilities"]
    assert able.get("elicitation") == ({"form": {}} if approvals else None)
    state = started.state
    for sent in (line(jsonrpc="2.0", id=1, result={}), line(jsonrpc="2.0", id=2, result={"sessionId": "se"})):
        state = codec.fold(state, sent).state
    state = codec.encode(state, Prompt("t1", "go")).state
    params = {"sessionId": "se", "message": "m", "mode": "form", "requestedSchema": SMALL}
    return codec.fold(through(state), line(jsonrpc="2.0", id=7, method="elicitation/create", params=params))


CODECS = [(ClaudeCodec(), claude), (CodexCodec(), codex), (AcpCodec(), acp)]


def said(folded: Folded) -> Any:
    (send,) = folded.sends
    message = json.loads(send.data)
    return message["response"]["response"] if "response" in message else message["result"]


@pytest.mark.parametrize(("codec", "ask"), CODECS, ids=["claude_code", "codex", "acp"])
def test_a_form_is_put_to_whoever_can_answer(codec: Any, ask: Any) -> None:
    folded = ask(True)
    (approval,) = folded.events
    assert isinstance(approval, Approval)
    assert (approval.tool, approval.input["message"]) == ("question", "m")
    assert [question.id for question in approval.questions] == ["n"]
    state = through(folded.state)
    assert said(codec.encode(state, Answer(approval.id, True, None, {"n": ["3"]}))) == {
        "action": "accept",
        "content": {"n": 3},
    }
    assert said(codec.encode(state, Answer(approval.id, False, "no"))) == {"action": "decline"}


@pytest.mark.parametrize(("codec", "ask"), CODECS, ids=["claude_code", "codex", "acp"])
def test_a_form_that_nobody_can_answer_is_declined_at_once(codec: Any, ask: Any) -> None:
    folded = ask(False)
    assert said(folded) == {"action": "decline"}
    assert not [event for event in folded.events if isinstance(event, Approval)]


def test_an_interrupt_takes_an_open_form_back() -> None:
    folded = acp(True)
    ended = AcpCodec().encode(folded.state, Interrupt())
    assert [json.loads(send.data).get("result") for send in ended.sends] == [{"action": "cancel"}, None]


@pytest.mark.parametrize("permissions", ["full", "edit", "read-only"])
def test_claude_code_asks_for_no_leave_where_its_permissions_are_fixed(permissions: Any) -> None:
    """Its questions come over the same way as its wishes; those are refused, whoever could answer."""
    codec = ClaudeCodec()
    started = codec.start(context(approvals=True, permissions=permissions)).state
    state = codec.encode(started, Prompt("t1", "go")).state
    request = {"subtype": "can_use_tool", "tool_name": "Write", "input": {"file_path": "/etc/x"}}
    folded = codec.fold(state, line(type="control_request", request_id="7", request=request))
    assert said(folded)["behavior"] == "deny"
    assert [type(event) for event in folded.events] == [Notice]
