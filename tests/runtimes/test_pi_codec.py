"""The Pi codec on recorded streams and on lines that no recording shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.runtimes.place import of
from tests.runtimes.recorded import context, replay
from tests.runtimes.stdio_driver import text_of

from hostler.runtimes.pi import RUNTIME
from hostler.runtimes.pi.launch import MARK
from hostler.types.events import Approval, Compaction, Notice, Reasoning, Retract, Text, ToolCall, ToolResult
from hostler.types.result import ErrorInfo
from hostler.types.runtime import (
    Answer,
    CodecEvent,
    Ended,
    Folded,
    Frame,
    Identified,
    In,
    Interrupt,
    Prompt,
    Steer,
    StepStarted,
    Unfit,
)

CODEC = RUNTIME.codec
ID = "00000000-0000-4000-8000-000000000001"


def turns(events: list[CodecEvent]) -> list[list[CodecEvent]]:
    out: list[list[CodecEvent]] = [[]]
    for event in events:
        out[-1].append(event)
        if isinstance(event, Ended):
            out.append([])
    return out[:-1]


@pytest.mark.parametrize("name", ["pi-turns", "pi-ask", "pi-tools", "pi-resume"])
def test_a_new_host_at_any_frame_says_and_hears_the_same(name: str) -> None:
    events, sends, state = replay(CODEC, name)
    assert (events, sends, state) == replay(CODEC, name, round_trip=True)
    assert len({s.key for s in sends}) == len(sends)
    assert len(json.dumps(state)) < 4000


def test_turns_as_recorded() -> None:
    events, _, _ = replay(CODEC, "pi-turns")
    tools, cut, stopped, killed, steered, refused, fresh = turns(events)
    assert of(tools, Identified) == [Identified(ID)]
    assert [(c.name, c.builtin) for c in of(tools, ToolCall)] == [("bash", True)] * 2
    results = {r.id: r for r in of(tools, ToolResult)}
    assert [results[c.id].is_error for c in of(tools, ToolCall)] == [False, True]
    assert results[of(tools, ToolCall)[0].id].output == "one\n"
    assert [r.delta for r in of(tools, Reasoning)] == ["hm"]
    assert (len(of(tools, StepStarted)), tools[-1], text_of(tools)) == (2, Ended("done"), "both")
    # A call that was cut is made again: what was said is taken back, and it is no further step.
    assert (len(of(cut, Retract)), len(of(cut, StepStarted))) == (2, 1)
    assert (text_of(cut), cut[-1]) == ("fine", Ended("done"))
    assert stopped[-1] == killed[-1] == Ended("interrupted")
    assert [r.is_error for r in of(killed, ToolResult)] == [True]
    assert "CODEWORD-s1" in text_of(steered)
    error = of(refused, Ended)[0].error
    assert error is not None
    assert error.code == "model_auth"
    (named,) = of(fresh, Identified)
    assert named.native_id != ID
    assert "users=1 memo=" in text_of(fresh)


def test_questions_as_recorded() -> None:
    allowed, denied, stopped = turns(replay(CODEC, "pi-ask")[0])
    assert [(a.tool, a.input["command"]) for a in of(allowed, Approval)] == [("bash", "touch a")]
    assert [r.is_error for r in of(allowed, ToolResult)] == [False]
    assert [(r.output, r.is_error) for r in of(denied, ToolResult)] == [("not now", True)]
    assert denied[-1] == Ended("done")
    assert stopped[-1] == Ended("interrupted")


def test_servers_as_recorded() -> None:
    (turn,) = turns(replay(CODEC, "pi-tools")[0])
    assert [n.code for n in of(turn, Notice)] == ["mcp_server_failed"]
    assert "'no server'" in of(turn, Notice)[0].message
    call, result = of(turn, ToolCall)[0], of(turn, ToolResult)[0]
    assert (call.name, call.native_name, call.builtin) == ("add", "mcp__host__add", False)
    assert (result.id, result.output, result.is_error) == (call.id, "sum=3", False)
    assert turn.index(of(turn, Notice)[0]) < turn.index(of(turn, StepStarted)[0])


class Talk:
    """A conversation with the codec, line by line."""

    def __init__(self, *, joined: bool = True, **rules: Any) -> None:
        self.events: list[CodecEvent] = []
        self.sent: dict[str, dict[str, Any]] = {}
        self._take(CODEC.start(context(**rules)))
        if joined:
            self.status(ready=True).response("get_state", "start", data={"sessionId": ID})

    def say(self, command: Any) -> Talk:
        return self._take(CODEC.encode(self.state, command))

    def tell(self, type: str, **message: Any) -> Talk:
        return self._take(CODEC.fold(self.state, Frame(1, "out", json.dumps({"type": type, **message}).encode())))

    def response(self, command: str, id: str, *, success: bool = True, **more: Any) -> Talk:
        return self.tell("response", command=command, id=id, success=success, **more)

    def status(self, **said: Any) -> Talk:
        text = json.dumps(said)
        return self.tell("extension_ui_request", id="u", method="setStatus", statusKey="hostler", statusText=text)

    def _take(self, folded: Folded) -> Talk:
        self.state = json.loads(json.dumps(folded.state))
        self.events += folded.events
        self.sent |= {send.key: json.loads(send.data) for send in folded.sends}
        return self


def test_without_the_extension_that_holds_the_rules_nothing_is_said_to_it() -> None:
    talk = Talk(joined=False).say(Prompt("t", "go")).response("get_state", "start", data={"sessionId": ID})
    assert of(talk.events, Unfit)
    assert "t" not in talk.sent
    assert of(talk.say(Prompt("t2", "go")).events, Unfit)[1:]


def test_another_conversation_than_the_one_to_be_resumed() -> None:
    talk = Talk(joined=False, resume=ID).status(ready=True).response("get_state", "start", data={"sessionId": "other"})
    assert "other" in of(talk.events, Unfit)[0].message


def test_the_prompt_waits_for_the_conversation_and_for_the_servers() -> None:
    servers = {"a b": {"command": "x"}, "c": {"command": "y"}}
    talk = Talk(mcp_servers=servers, tool_url="http://tools.invalid").say(Prompt("t", "go"))
    assert "t" not in talk.sent
    talk.status(connected="host").status(failed="a_b")
    assert "t" not in talk.sent
    report = "MCP servers need attention:\n  c: failed: spawn y ENOENT\n  host: failed\nRun /mcp to fix."
    talk.tell("extension_ui_request", id="n", method="notify", message=report)
    assert talk.sent["t"]["message"] == "go"
    assert [n.message.split("'")[1] for n in of(talk.events, Notice)] == ["a b", "c"]


@pytest.mark.parametrize("text", ["/mcp", "/skill:x y", MARK + "x", "go"])
def test_no_prompt_is_a_command(text: str) -> None:
    talk = Talk().say(Prompt("t", text))
    talk.tell("agent_start").say(Steer("s", text))
    assert talk.sent["t"]["message"] == talk.sent["s"]["message"] == (text if text == "go" else MARK + text)


def test_an_interrupt_before_the_prompt_is_said_ends_the_turn() -> None:
    talk = Talk(joined=False).say(Prompt("t", "go")).say(Interrupt())
    assert talk.events == [Ended("interrupted")]
    assert list(talk.sent) == ["start"]


def test_an_interrupt_before_anything_runs_is_said_again() -> None:
    talk = Talk().say(Prompt("t", "go")).say(Interrupt())
    assert "interrupt:t" in talk.sent
    talk.tell("agent_start")
    assert talk.sent["interrupt-again:t"] == {"type": "abort"}
    assert talk.tell("agent_settled", aborted=True).events[-1] == Ended("interrupted")


def test_what_is_said_to_a_turn_that_is_over_is_not_said_to_the_next() -> None:
    talk = Talk().say(Prompt("t", "go")).say(Steer("early", "first"))
    assert "early" not in talk.sent  # nothing runs yet
    talk.tell("agent_start")
    assert talk.sent["early"]["type"] == "steer"
    talk.say(Steer("late", "x")).tell("agent_settled").response("steer", "late")
    assert talk.sent["clear:late"]["type"] == "clear_queue"
    assert of(talk.events, Notice)[-1].code == "steer_refused"
    talk.say(Steer("later", "x"))
    assert of(talk.events, Notice)[-1].code == "steer_refused"


def test_a_refused_prompt_and_a_refused_conversation_are_errors() -> None:
    talk = Talk().say(Prompt("t", "go")).response("prompt", "t", success=False, error="No API key")
    error = of(talk.events, Ended)[0].error
    assert error is not None
    assert "No API key" in error.message
    talk = Talk().say(Prompt("t", "go", fresh=True)).response("new_session", "fresh:t", data={"cancelled": True})
    assert of(talk.events, Unfit)


def test_what_nobody_answers_is_cancelled() -> None:
    talk = Talk()
    for method in ("select", "confirm", "input", "editor"):
        talk.tell("extension_ui_request", id=method, method=method, title="x")
        assert talk.sent[f"answer:{method}"]["cancelled"] is True
    talk.tell("extension_ui_request", id="late", method="input", title="hostler.approval", placeholder="{}")
    assert talk.sent["answer:late"]["cancelled"] is True
    assert not of(talk.events, Approval)


def test_open_questions_and_tools_end_with_the_turn() -> None:
    talk = Talk().say(Prompt("t", "go")).tell("agent_start").tell("turn_start")
    talk.tell("tool_execution_start", toolCallId="c", toolName="find", args={"pattern": "*"})
    asked = json.dumps({"tool": "find", "input": {"pattern": "*"}})
    talk.tell("extension_ui_request", id="q", method="input", title="hostler.approval", placeholder=asked)
    assert of(talk.events, Approval) == [Approval("q", "glob", {"pattern": "*"})]
    talk.say(Interrupt())
    assert talk.sent["answer:q"]["cancelled"] is True
    talk.say(Answer("q", True))
    assert "value" not in talk.sent["answer:q"]
    talk.tell("agent_settled", aborted=True)
    assert talk.events[-2:] == [ToolResult("c", "interrupted", True), Ended("interrupted")]
    assert talk.state["asks"] == talk.state["tools"] == []


def test_failures_compactions_and_calls_of_tools_by_tools() -> None:
    talk = Talk().say(Prompt("t", "go")).tell("agent_start").tell("turn_start")
    talk.tell("compaction_end", result={"tokensBefore": 10, "estimatedTokensAfter": 2})
    talk.tell("tool_execution_start", toolCallId="c/1", toolName="read", args={}, parentToolCallId="c")
    talk.tell("tool_execution_end", toolCallId="c/1", result={"content": "text"}, parentToolCallId="c")
    assert talk.events[-3:] == [
        Compaction(10, 2),
        In("c", ToolCall("c/1", "read", "read", {}, parent="c")),
        In("c", ToolResult("c/1", "text")),
    ]
    talk.tell("message_start", message={"role": "assistant"})
    talk.tell("message_update", assistantMessageEvent={"type": "text_delta", "contentIndex": 0, "delta": "x"})
    talk.tell("message_end", message={"role": "assistant", "stopReason": "error", "errorMessage": "503: away"})
    talk.tell("agent_settled")
    assert of(talk.events, Text) == [Text("t:1:0", "x")]
    assert talk.events[-1] == Ended("error", error=ErrorInfo("model_unavailable", "503: away", True))
    talk.say(Prompt("t2", "go")).tell("agent_start")
    end = {"role": "assistant", "stopReason": "error", "errorMessage": "400: maximum context length is 10"}
    talk.tell("message_end", message=end).tell("agent_settled")
    error = of(talk.events, Ended)[-1].error
    assert error is not None
    assert error.code == "context_exceeded"
