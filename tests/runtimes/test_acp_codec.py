"""The ACP codec: recorded streams of OpenCode, and what other agents do by the protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.runtimes.recorded import context, replay
from tests.runtimes.stdio_driver import text_of

from hostler.runtimes import runtime_for
from hostler.runtimes.acp import AcpRuntime
from hostler.runtimes.acp.codec import AcpCodec, mcp_servers
from hostler.runtimes.opencode import RUNTIME
from hostler.types.events import Approval, ModelCall, Notice, Reasoning, Retract, Text, ToolCall, ToolResult
from hostler.types.result import Usage
from hostler.types.runtime import (
    Answer,
    Codec,
    CodecEvent,
    Ended,
    Folded,
    Frame,
    Identified,
    Interrupt,
    Prompt,
    Steer,
    StepStarted,
    Unfit,
    acp_agent,
)

RECORDINGS = ["opencode-turns", "opencode-resume", "opencode-unknown", "opencode-ask"]
ABLE = {"loadSession": True}


def of(events: list[CodecEvent], *kinds: type) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


class Talk:
    """A conversation with the codec, frame by frame."""

    def __init__(self, codec: Codec | None = None, **rules: Any) -> None:
        self.codec = codec or AcpCodec()
        self.events: list[CodecEvent] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._no = 0
        self._take(self.codec.start(context(**rules)))

    def joined(self, able: dict[str, Any] = ABLE) -> Talk:
        return self.tell(id=1, result={"agentCapabilities": able}).tell(id=2, result={"sessionId": "S"})

    def say(self, command: Any) -> Talk:
        return self._take(self.codec.encode(self.state, command))

    def tell(self, **message: Any) -> Talk:
        return self.frame("out", {"jsonrpc": "2.0", **message})

    def frame(self, kind: Any, value: Any) -> Talk:
        self._no += 1
        return self._take(self.codec.fold(self.state, Frame(self._no, kind, json.dumps(value).encode())))

    def called(self, status: Any = "ok") -> Talk:
        return self._take(self.codec.fold(self.state, ModelCall("m", Usage(), None, status)))

    def update(self, what: str, /, **fields: Any) -> Talk:
        return self.tell(
            method="session/update", params={"sessionId": "S", "update": {"sessionUpdate": what, **fields}}
        )

    def chunk(self, text: str, message: str | None = None) -> Talk:
        named = {"messageId": message} if message else {}
        return self.update("agent_message_chunk", content={"type": "text", "text": text}, **named)

    def ended(self, key: str = "t1", **result: Any) -> Talk:
        return self.tell(id=self.message(key)["id"], result=result or {"stopReason": "end_turn"})

    def said(self) -> list[str]:
        return [key for key, _ in self.sent]

    def message(self, key: str) -> dict[str, Any]:
        (found,) = [message for k, message in self.sent if k == key]
        return found

    def _take(self, folded: Folded) -> Talk:
        self.state = json.loads(json.dumps(folded.state))
        self.events += folded.events
        self.sent += [(send.key, json.loads(send.data)) for send in folded.sends]
        return self


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_new_host_at_any_frame_says_and_hears_the_same(name: str) -> None:
    events, sends, state = replay(RUNTIME.codec, name)
    assert (events, sends, state) == replay(RUNTIME.codec, name, round_trip=True)
    assert len({s.key for s in sends}) == len(sends)
    assert len(json.dumps(state)) < 2000


def turns(events: list[CodecEvent]) -> list[list[CodecEvent]]:
    out: list[list[CodecEvent]] = [[]]
    for event in events:
        out[-1].append(event)
        if isinstance(event, Ended):
            out.append([])
    return out[:-1]


def test_turns_as_recorded() -> None:
    events, sends, _ = replay(RUNTIME.codec, "opencode-turns")
    tool, cut, interrupted, steered, refused, parallel = turns(events)

    call, result = of(tool, ToolCall, ToolResult)
    assert (call.name, call.input["command"]) == ("bash", "echo hi > a.txt; cat a.txt; false")
    assert result == ToolResult(call.id, "hi\n", is_error=True)
    assert of(tool, Reasoning)[0].delta == "hmm"
    assert text_of(tool) == "final words"
    assert len(of(tool, StepStarted)) == 2

    assert [r.item for r in of(cut, Retract)] == [of(cut, Reasoning)[0].item, of(cut, Text)[0].item]
    assert text_of(cut) == "the good answer"
    assert len(of(cut, StepStarted)) == 2

    assert of(interrupted, Ended) == [Ended("interrupted")]
    assert of(interrupted, ToolResult)[0].is_error
    assert "CODEWORD-steer" in text_of(steered)
    assert {"t4", "s1"} <= {s.key for s in sends}
    assert (of(refused, Ended)[0].error.code, of(refused, Ended)[0].error.message) == ("model_unavailable", "bad key")
    assert [e.output for e in of(parallel, ToolResult)] == ["one\n", "two\n"]
    assert len(of(parallel, StepStarted)) == 2


def test_a_resume_tells_nothing_of_the_past() -> None:
    events, sends, _ = replay(RUNTIME.codec, "opencode-resume")
    assert [type(e) for e in events[:2]] == [Identified, StepStarted]
    assert "CODEWORD-steer" in text_of(events)
    assert [s.key for s in sends] == ["init", "locate", "start", "t7"]


def test_a_session_that_is_not_there_is_unfit_before_any_prompt_is_sent() -> None:
    events, sends, _ = replay(RUNTIME.codec, "opencode-unknown")
    assert [type(e) for e in events] == [Unfit]
    assert [s.key for s in sends] == ["init", "locate"]


def test_approvals_as_recorded() -> None:
    events, sends, _ = replay(RUNTIME.codec, "opencode-ask")
    asked, interrupted, after = turns(events)
    assert [(a.id, a.tool) for a in of(asked, Approval)] == [("t1:0", "bash"), ("t1:1", "write"), ("t1:2", "write")]
    assert [r.is_error for r in of(asked, ToolResult)] == [False, True, False]
    answers = {s.key: json.loads(s.data)["result"]["outcome"] for s in sends if s.key.startswith("answer:")}
    assert answers["answer:t1:0"] == {"outcome": "selected", "optionId": "once"}
    assert answers["answer:t1:1"] == {"outcome": "selected", "optionId": "reject"}
    (open_ask,) = of(interrupted, Approval)
    assert answers[f"answer:{open_ask.id}"] == {"outcome": "cancelled"}
    assert of(interrupted, Ended) == [Ended("interrupted")]
    assert of(after, Ended) == [Ended("done")]


# ---- other agents -----------------------------------------------------------------------------------------------------


def test_a_prompt_before_the_handshake_is_sent_after_it() -> None:
    talk = Talk()
    talk.say(Prompt("t1", "early", images=(("image/png", "AAAA"),)))
    assert talk.said() == ["init"]
    talk.joined()
    assert talk.said() == ["init", "start", "t1"]
    assert talk.message("start")["method"] == "session/new"
    assert talk.message("t1")["params"]["prompt"][1] == {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    assert talk.state["setup"] is None  # and with it what the MCP servers were told


def test_an_interrupt_before_the_handshake_sends_no_prompt() -> None:
    talk = Talk().say(Prompt("t1", "early")).say(Interrupt()).joined()
    assert talk.events == [Ended("interrupted"), Identified("S")]
    assert "t1" not in talk.said()


def test_a_load_tells_nothing_of_the_past() -> None:
    talk = Talk(resume="S").say(Prompt("t1", "go"))
    talk.tell(id=1, result={"agentCapabilities": ABLE})
    assert talk.message("start")["method"] == "session/load"
    talk.chunk("old words", "m0").update("tool_call", toolCallId="c0", title="x", status="completed")
    talk.tell(id=2, result={})
    talk.chunk("new words", "m1").ended()
    assert talk.events == [Identified("S"), StepStarted(), Text("m1", "new words"), Ended("done")]


def test_a_resume_is_preferred_to_a_load() -> None:
    talk = Talk(resume="S").tell(id=1, result={"agentCapabilities": {**ABLE, "sessionCapabilities": {"resume": {}}}})
    assert talk.message("start")["method"] == "session/resume"


@pytest.mark.parametrize("refused", [True, False])
def test_a_session_that_cannot_be_resumed_is_unfit(refused: bool) -> None:
    talk = Talk(resume="S")
    if refused:
        talk.tell(id=1, result={"agentCapabilities": ABLE})
        talk.tell(id=2, error={"code": -32002, "message": "Resource not found"})
    else:
        talk.tell(id=1, result={"agentCapabilities": {}})
    assert [type(e) for e in talk.events] == [Unfit]
    talk.say(Prompt("t1", "go"))
    assert [type(e) for e in talk.events] == [Unfit, Unfit]
    assert "t1" not in talk.said()


def test_another_session_than_the_one_asked_for_is_unfit() -> None:
    talk = Talk(resume="S").tell(id=1, result={"agentCapabilities": ABLE}).tell(id=2, result={"sessionId": "T"})
    assert [type(e) for e in talk.events] == [Unfit]


def test_messages_without_ids_are_told_apart_by_the_tools_between_them() -> None:
    talk = Talk().joined().say(Prompt("t1", "go"))
    talk.chunk("first").update("tool_call", toolCallId="c", title="Look", kind="read", rawInput={"path": "/a"})
    talk.update("tool_call_update", toolCallId="c", status="completed", rawOutput={"output": "text"})
    talk.chunk("second").ended()
    assert of(talk.events, Text) == [Text("t1:0", "first"), Text("t1:1", "second")]
    assert of(talk.events, ToolResult) == [ToolResult("c", "text")]
    assert len(of(talk.events, StepStarted)) == 2


def test_a_call_is_told_once_with_whole_arguments() -> None:
    talk = Talk().joined().say(Prompt("t1", "go"))
    talk.update(
        "tool_call", toolCallId="c", name="Bash", title="Terminal", kind="execute", status="pending", rawInput={}
    )
    assert of(talk.events, ToolCall) == []
    talk.update("tool_call_update", toolCallId="c", title="ls", rawInput={"command": "ls"})
    talk.update("tool_call_update", toolCallId="c", status="in_progress", rawInput={"command": "ls"})
    talk.update("tool_call_update", toolCallId="c", status="failed", rawOutput={"error": "no"})
    talk.update("tool_call_update", toolCallId="c", status="failed", rawOutput={"error": "no"})
    assert of(talk.events, ToolCall, ToolResult) == [
        ToolCall("c", "bash", "Bash", {"command": "ls"}),
        ToolResult("c", "no", is_error=True),
    ]


def test_a_call_of_a_host_tool_is_not_a_builtin() -> None:
    talk = Talk(RUNTIME.codec, workdir="/w").joined().say(Prompt("t1", "go"))
    talk.update("tool_call", toolCallId="c", title="host_look", kind="other", status="pending", rawInput={})
    talk.update("tool_call_update", toolCallId="c", title="host_look", status="in_progress", rawInput={"a": 1})
    assert of(talk.events, ToolCall) == [ToolCall("c", "look", "host_look", {"a": 1}, builtin=False)]


@pytest.mark.parametrize(
    ("approvals", "kinds", "answer", "chosen"),
    [
        (True, ("allow_always", "allow_once", "reject_once"), Answer("t1:0", True), "id-allow_once"),
        (True, ("allow_always",), Answer("t1:0", True), "id-allow_always"),
        (True, ("allow_once", "reject_always"), Answer("t1:0", False), "id-reject_always"),
        (True, ("allow_once",), Answer("t1:0", False), None),
        (False, ("reject_once", "allow_once"), None, "id-allow_once"),
    ],
)
def test_options_are_chosen_by_kind(
    approvals: bool, kinds: tuple[str, ...], answer: Answer | None, chosen: str | None
) -> None:
    talk = Talk(approvals=approvals).joined().say(Prompt("t1", "go"))
    options = [{"optionId": f"id-{kind}", "kind": kind} for kind in kinds]
    call = {"toolCallId": "c", "kind": "execute", "title": "ls", "rawInput": {"command": "ls"}}
    talk.tell(id=0, method="session/request_permission", params={"toolCall": call, "options": options})
    if answer:
        assert [(a.id, a.tool) for a in of(talk.events, Approval)] == [("t1:0", "bash")]
        talk.say(answer).say(answer)
    outcome = talk.message("answer:t1:0")["result"]["outcome"]
    assert outcome == ({"outcome": "selected", "optionId": chosen} if chosen else {"outcome": "cancelled"})


def test_requests_that_nobody_serves_get_a_definite_answer() -> None:
    talk = Talk().joined()
    talk.tell(id=0, method="fs/read_text_file", params={})
    talk.tell(id=1, method="session/request_permission", params={"options": []})
    assert talk.message("refused:0")["error"]["code"] == -32601
    assert talk.message("answer:1")["result"] == {"outcome": {"outcome": "cancelled"}}


@pytest.mark.parametrize(
    ("stop", "reason", "code"),
    [
        ("end_turn", "done", None),
        ("cancelled", "interrupted", None),
        ("max_turn_requests", "max_turns", None),
        ("refusal", "error", "model_refused"),
        ("max_tokens", "done", None),
        ("brand_new", "done", None),
    ],
)
def test_stop_reasons(stop: str, reason: str, code: str | None) -> None:
    talk = Talk().joined().say(Prompt("t1", "go")).ended(stopReason=stop)
    (end,) = of(talk.events, Ended)
    assert (end.stop_reason, end.error and end.error.code) == (reason, code)


def test_an_error_ends_the_turn_and_one_after_an_interrupt_is_the_interrupt() -> None:
    talk = Talk().joined().say(Prompt("t1", "go"))
    talk.tell(id=talk.message("t1")["id"], error={"code": -32000, "message": "Authentication required"})
    talk.say(Prompt("t2", "go")).say(Interrupt())
    talk.tell(id=talk.message("t2")["id"], error={"code": -32603, "message": "aborted"})
    first, second = of(talk.events, Ended)
    assert first.error.code == "model_auth"
    assert second == Ended("interrupted")


def test_a_turn_that_was_spoken_to_ends_with_its_last_answer() -> None:
    talk = Talk(RUNTIME.codec).joined().say(Prompt("t1", "go")).say(Steer("s1", "more"))
    talk.ended("t1")
    assert of(talk.events, Ended) == []
    talk.ended("s1")
    assert of(talk.events, Ended) == [Ended("done")]


def test_an_agent_that_takes_nothing_during_a_turn_says_so() -> None:
    talk = Talk().joined().say(Prompt("t1", "go")).say(Steer("s1", "more"))
    assert [n.code for n in of(talk.events, Notice)] == ["steer_refused"]
    assert "s1" not in talk.said()


def test_a_cut_takes_back_only_what_its_own_call_said() -> None:
    talk = Talk().joined().say(Prompt("t1", "go")).say(Steer("s1", "more"))
    talk.chunk("kept", "m1").chunk("half", "m2")
    talk.called("cut")  # the endpoint knows it before the agent has told all of it
    talk.chunk(" more", "m2").frame("note", {"call": 2, "what": "cut", "bytes": 9})
    talk.chunk("whole", "m2").frame("note", {"call": 9, "what": "gone", "bytes": 9}).ended()
    assert [e.item for e in of(talk.events, Retract)] == ["m2"]
    assert text_of(talk.events) == "keptwhole"


def test_a_cut_call_of_a_sub_agent_takes_nothing_back() -> None:
    talk = Talk().joined().say(Prompt("t1", "go"))
    talk.chunk("I ask another.", "m1").update("tool_call", toolCallId="c", title="task", status="in_progress")
    talk.frame("note", {"call": 2, "what": "cut", "bytes": 9})
    assert of(talk.events, Retract) == []


def test_steps_are_counted_when_the_call_and_its_tools_are_over() -> None:
    talk = Talk().joined().say(Prompt("t1", "go"))
    for call in ("a", "b"):  # tools that run while the model still speaks
        talk.update("tool_call", toolCallId=call, title=call, status="in_progress")
        talk.update("tool_call_update", toolCallId=call, status="completed")
    assert len(of(talk.events, StepStarted)) == 1
    talk.called()
    assert len(of(talk.events, StepStarted)) == 2
    talk.called()  # the answer in words
    talk.chunk("done", "m").ended()
    assert len(of(talk.events, StepStarted)) == 2


def test_servers_are_given_with_the_session() -> None:
    ctx = context(
        tool_url="http://tools.invalid/mcp",
        tool_token="a-tool-token",
        mcp_servers={"files": {"command": "serve", "args": ["-x"], "env": {"A": "b"}}},
    )
    assert mcp_servers(ctx) == [
        {"name": "files", "command": "serve", "args": ["-x"], "env": [{"name": "A", "value": "b"}]},
        {
            "type": "http",
            "name": "host",
            "url": "http://tools.invalid/mcp",
            "headers": [{"name": "Authorization", "value": "Bearer a-tool-token"}],
        },
    ]


def test_any_command_is_a_runtime() -> None:
    runtime = runtime_for(acp_agent(["my-agent", "--acp"]))
    assert isinstance(runtime, AcpRuntime)
    launch = runtime.launch(context(program=runtime.find({}, str)))
    assert launch.argv == ("my-agent", "--acp")
    assert launch.env["OPENAI_BASE_URL"] == "http://model.invalid/v1"


def test_a_new_conversation_begins_in_the_process_that_runs() -> None:
    talk = Talk(RUNTIME.codec).joined()
    talk.say(Prompt("t1", "one")).tell(id=3, result={"stopReason": "end_turn"})
    talk.say(Prompt("t2", "two", fresh=True))
    (key, new) = talk.sent[-1]
    assert (key, new["method"]) == ("fresh:t2", "session/new")
    assert new["params"] == talk.sent[1][1]["params"]
    talk.tell(id=new["id"], result={"sessionId": "S2"})
    assert of(talk.events, Identified) == [Identified("S"), Identified("S2")]
    (_, prompt) = talk.sent[-1]
    assert (prompt["method"], prompt["params"]["sessionId"]) == ("session/prompt", "S2")
    assert prompt["params"]["prompt"] == [{"type": "text", "text": "two"}]


def test_a_server_that_did_not_start_is_told_by_the_agents_log_in_pieces() -> None:
    talk = Talk(RUNTIME.codec).joined()
    line = b'level=WARN message="server unavailable" key=barn type=local status=failed\n'
    for piece in (b"level=INFO message=x\n" + line[:30], line[30:50], line[50:] + b"more", b"\n" * 3, b"\xff" * 5000):
        talk._take(talk.codec.fold(talk.state, Frame(9, "err", piece)))
    (notice,) = of(talk.events, Notice)
    assert (notice.code, "'barn'" in notice.message) == ("mcp_server_failed", True)
    assert len(json.dumps(talk.state)) < 20_000  # what has no end of a line is not kept for ever
