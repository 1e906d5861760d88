"""What Gemini CLI says in its own words, on recorded streams and on lines that no recording shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.runtimes.place import of
from tests.runtimes.recorded import context, replay
from tests.runtimes.stdio_driver import text_of

from hostler.runtimes.acp.prompting import GO_ON
from hostler.runtimes.gemini_cli import RUNTIME
from hostler.runtimes.gemini_cli.words import NO_COMMAND, before, cut, failure, plain, tool_of
from hostler.types.events import Approval, ModelCall, Reasoning, Retract, ToolCall, ToolResult
from hostler.types.result import Usage
from hostler.types.runtime import CodecEvent, Ended, Folded, Frame, Identified, Interrupt, Prompt, StepStarted

CODEC = RUNTIME.codec


def turns(events: list[CodecEvent]) -> list[list[CodecEvent]]:
    out: list[list[CodecEvent]] = [[]]
    for event in events:
        out[-1].append(event)
        if isinstance(event, Ended):
            out.append([])
    return out[:-1]


@pytest.mark.parametrize("name", ["gemini-turns", "gemini-ask", "gemini-tools", "gemini-resume"])
def test_a_new_host_at_any_frame_says_and_hears_the_same(name: str) -> None:
    events, sends, state = replay(CODEC, name)
    assert (events, sends, state) == replay(CODEC, name, round_trip=True)
    assert len({s.key for s in sends}) == len(sends)
    assert len(json.dumps(state)) < 4000


def test_turns_as_recorded() -> None:
    events, sends, _ = replay(CODEC, "gemini-turns")
    tools, cut_twice, cut_after_a_tool, stopped, killed, refused = turns(events)
    assert [(c.name, c.native_name, c.builtin) for c in of(tools, ToolCall)] == [
        ("bash", "run_shell_command", True)
    ] * 2
    assert [c.input for c in of(tools, ToolCall)] == [{"command": "echo one"}, {"command": "echo two; false"}]
    assert [(r.output, r.is_error) for r in of(tools, ToolResult)] == [("one", False), ("two", True)]
    assert "hm" in of(tools, Reasoning)[0].delta
    assert (len(of(tools, StepStarted)), tools[-1], text_of(tools)) == (2, Ended("done"), "both")
    # A prompt whose model call was cut is said again: what was told is taken back, and it is no further step.
    assert (len(of(cut_twice, Retract)), len(of(cut_twice, StepStarted))) == (2, 1)
    assert (text_of(cut_twice), cut_twice[-1]) == ("fine", Ended("done"))
    said = {s.key: json.loads(s.data)["params"]["prompt"] for s in sends if b"session/prompt" in s.data}
    assert (
        said["t2"]
        == said["t2:again1"]
        == said["t2:again2"]
        == [
            {"type": "text", "text": NO_COMMAND},
            {"type": "text", "text": "/go"},
        ]
    )
    # After a tool its work is in the history: only the answer is asked for.
    assert said["t3:again1"] == [{"type": "text", "text": GO_ON}]
    assert text_of(cut_after_a_tool) == "fine too"
    assert stopped[-1] == killed[-1] == Ended("interrupted")
    error = of(refused, Ended)[0].error
    assert error is not None
    assert error.code == "model_auth"


def test_questions_as_recorded() -> None:
    allowed, denied, stopped = turns(replay(CODEC, "gemini-ask")[0])
    assert [(a.tool, a.input["input"]) for a in of(allowed, Approval)] == [("bash", {"command": "touch a"})]
    assert len(of(allowed, ToolCall)) == len(of(allowed, ToolResult)) == 1
    (question,) = of(denied, Approval)
    assert (question.tool, question.input["input"]["new_text"]) == ("write", "x")
    assert [(r.output, r.is_error) for r in of(denied, ToolResult)] == [("not now", True)]
    assert (len(of(denied, StepStarted)), denied[-1]) == (2, Ended("done"))
    assert stopped[-1] == Ended("interrupted")


def test_tools_of_the_app_as_recorded() -> None:
    (turn,) = turns(replay(CODEC, "gemini-tools")[0])
    call = of(turn, ToolCall)[0]
    assert (call.name, call.native_name, call.builtin) == ("add", "mcp_host_add", False)
    assert of(turn, ToolResult)[0].output == "sum=3"
    assert of(turn, Approval) == []  # their server asks, and refuses


def test_a_resumed_session_tells_nothing_of_its_past_and_is_asked_for_under_another_name() -> None:
    events, sends, _ = replay(CODEC, "gemini-resume")
    id = of(events, Identified)[0].native_id
    (load,) = [json.loads(s.data) for s in sends if b"session/load" in s.data]
    assert load["params"]["sessionId"] == f" {id}"
    assert "CODEWORD-before" in text_of(events)
    assert text_of(events).startswith("ANSWER")


class Talk:
    """A conversation with the codec up to its first prompt, and on."""

    def __init__(self) -> None:
        self.events: list[CodecEvent] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._take(CODEC.start(context()))
        for result in ({"agentCapabilities": {}}, {"sessionId": "S"}, {}):
            self.answer(result=result)
        self._take(CODEC.encode(self.state, Prompt("t", "go")))

    def answer(self, **message: Any) -> Talk:
        """Answer the last request."""
        return self.fold(Frame(1, "out", json.dumps({"id": self.sent[-1][1]["id"], **message}).encode()))

    def say(self, text: str) -> Talk:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        told = {"method": "session/update", "params": {"sessionId": "S", "update": update}}
        return self.fold(Frame(1, "out", json.dumps(told).encode()))

    def called(self, status: Any) -> Talk:
        return self.fold(ModelCall("m", Usage(calls=1), None, status))

    def fold(self, item: Any) -> Talk:
        return self._take(CODEC.fold(self.state, item))

    def _take(self, folded: Folded) -> Talk:
        self.state = json.loads(json.dumps(folded.state))
        self.events += folded.events
        self.sent += [(s.key, json.loads(s.data)) for s in folded.sends]
        return self


END = {"stopReason": "end_turn", "_meta": {"quota": {"token_count": {"input_tokens": 9, "output_tokens": 1}}}}


def test_the_end_of_a_turn_whose_model_call_was_cut_is_none() -> None:
    talk = Talk().say("half").called("cut").answer(result=END)
    assert of(talk.events, Retract)
    assert talk.sent[-1][0] == "t:again1"
    talk.say("whole").called("ok").answer(result=END)
    assert (talk.events[-1], text_of(talk.events)) == (Ended("done"), "whole")


def test_a_call_that_nobody_saw_the_end_of_was_cut() -> None:
    """The host died in it, so that the endpoint could say nothing."""
    talk = Talk().called("ok").answer(result=END)
    assert talk.events[-1] == Ended("done")
    talk._take(CODEC.encode(talk.state, Prompt("t2", "go")))
    talk.say("half").answer(result=END)
    assert talk.sent[-1][0] == "t2:again1"


def test_it_is_not_repeated_for_ever_nor_when_somebody_stops_it() -> None:
    talk = Talk()
    for _ in range(6):
        talk.say("half").called("cut").answer(result=END)
    error = of(talk.events, Ended)[-1].error
    assert error is not None
    assert (error.code, error.retryable) == ("model_unavailable", True)
    talk = Talk().say("half").called("cut")
    talk._take(CODEC.encode(talk.state, Interrupt()))
    count = len(talk.sent)
    talk.fold(Frame(1, "out", json.dumps({"id": 4, "result": {"stopReason": "cancelled"}}).encode()))
    assert (talk.events[-1], len(talk.sent)) == (Ended("interrupted"), count)


def test_words() -> None:
    assert tool_of("mcp_host_a__b__mcp_host_a__b_1795984534225_0") == "mcp_host_a__b"
    assert tool_of("read_file__call_7") == "read_file"
    assert [before(text) for text in ("/help", " $x", "go", "")] == [NO_COMMAND, NO_COMMAND, "", ""]
    assert cut({"error": {"message": "terminated"}})
    assert not cut({"error": {"message": "scripted 401"}})
    assert cut({"result": {"_meta": {"quota": {"token_count": {"input_tokens": 0, "output_tokens": 0}}}}})
    assert not cut({"result": END})
    assert not cut({"result": {}})
    codes = [failure({"error": {"code": c, "message": "m"}}).code for c in (401, 429, 400, 500, -32603)]
    assert codes == ["model_auth", "model_rate_limited", "model_refused", "model_unavailable", "program_error"]
    assert failure({"error": {"code": 400, "message": "The input token count exceeds 9"}}).code == "context_exceeded"


@pytest.mark.parametrize(
    ("said", "output", "code"),
    [
        ("Output: a\nb\nProcess Group PGID: 7", "a\nb", 0),
        ("Output: (empty)\nExit Code: 3\nProcess Group PGID: 7", "", 3),
        ("Output: x\nSignal: 9", "x", None),
    ],
)
def test_what_a_command_printed(said: str, output: str, code: int | None) -> None:
    content = [{"type": "content", "content": {"type": "text", "text": said}}]
    update = {"toolCallId": "run_shell_command__1", "kind": "execute", "status": "completed", "content": content}
    read = plain(update)
    assert read["content"][0]["content"]["text"] == output
    assert read["rawOutput"]["metadata"]["exit"] == code


def test_what_a_server_said_of_its_failure() -> None:
    answer = [{"functionResponse": {"response": {"content": [{"type": "text", "text": "no"}], "isError": True}}}]
    text = f"MCP tool 'x' reported tool error for function call: {{}} with response: {json.dumps(answer)}"
    for said, read in ((text, "no"), ("MCP tool x with response: [", "MCP tool x with response: [")):
        content = [{"type": "content", "content": {"type": "text", "text": said}}]
        update = {"toolCallId": "mcp_host_x__1", "status": "failed", "content": content}
        assert plain(update)["content"][0]["content"]["text"] == read
