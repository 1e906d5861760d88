"""The Codex codec on recorded streams and on frames that no recording shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.runtimes.recorded import context, replay
from tests.runtimes.stdio_driver import text_of

from hostler.runtimes.codex import RUNTIME
from hostler.runtimes.codex.items import error_info
from hostler.types.errors import CapabilityUnsupported
from hostler.types.events import Approval, Compaction, Notice, Retract, Text, ToolCall, ToolResult
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
THREAD = "01a227a0-a46f-7fe3-ba26-0d596376e217"
RECORDINGS = ["codex-turns", "codex-resume", "codex-unknown", "codex-ask", "codex-agents", "codex-read-only"]


class Talk:
    """A conversation with the codec, frame by frame."""

    def __init__(self, **rules: Any) -> None:
        self.events: list[CodecEvent] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._no = 0
        self._take(CODEC.start(context(**rules)))

    def joined(self) -> Talk:
        self.tell(id=1, result={})
        return self.tell(id=2, result={"thread": {"id": THREAD}})

    def begun(self, turn: str = "t1", native: str = "n1") -> Talk:
        self.say(Prompt(turn, "go"))
        return self.told("turn/started", turn={"id": native})

    def say(self, command: Any) -> Talk:
        return self._take(CODEC.encode(self.state, command))

    def tell(self, **message: Any) -> Talk:
        self._no += 1
        return self._take(CODEC.fold(self.state, Frame(self._no, "out", json.dumps(message).encode())))

    def told(self, method: str, native: str = "n1", thread: str = THREAD, **params: Any) -> Talk:
        named = {} if "turn" in params else {"turnId": native}
        return self.tell(method=method, params={"threadId": thread, **named, **params})

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
    events, sends, state = replay(CODEC, name)
    assert (events, sends, state) == replay(CODEC, name, round_trip=True)
    assert len({s.key for s in sends}) == len(sends)
    assert len(json.dumps(state)) < 4000


def of(events: list[CodecEvent], *kinds: type) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


def turns(events: list[CodecEvent]) -> list[list[CodecEvent]]:
    out: list[list[CodecEvent]] = [[]]
    for event in events:
        out[-1].append(event)
        if isinstance(event, Ended):
            out.append([])
    return out[:-1]


def test_turns_as_recorded() -> None:
    events, sends, _ = replay(CODEC, "codex-turns")
    tool, cut, interrupted, steered, refused, parallel = turns(events)

    call, result = of(tool, ToolCall, ToolResult)
    assert (call.name, call.native_name, call.input) == (
        "bash",
        "exec_command",
        {"command": "echo hi > a.txt; cat a.txt; false"},
    )
    assert result == ToolResult(call.id, "hi\n", is_error=True)
    assert of(tool, Ended) == [Ended("done", text="final words")]
    assert len(of(tool, StepStarted)) == 2

    assert len(of(cut, Retract)) == 1
    assert text_of(cut) == "the good answer"
    assert len(of(cut, StepStarted)) == 1

    assert of(interrupted, Ended) == [Ended("interrupted")]
    assert of(interrupted, ToolResult)[0].is_error
    assert {"interrupt:t3", "clean:t3"} <= {s.key for s in sends}

    assert "CODEWORD-steer" in of(steered, Ended)[0].text
    assert of(refused, Ended)[0].error.code == "model_auth"

    assert [e.input["command"] for e in of(parallel, ToolCall)] == ["echo one", "echo two"]
    assert [e.output for e in of(parallel, ToolResult)] == ["one\n", "two\n"]
    assert len(of(parallel, StepStarted)) == 2


def test_a_resumed_thread_tells_the_same_with_fewer_events() -> None:
    events, _, state = replay(CODEC, "codex-resume")
    assert state["raw"] is False
    tools, memory = turns(events)
    assert of(events, Identified) == [Identified(THREAD)]
    assert [e.name for e in of(tools, ToolCall)] == ["bash", "bash"]
    assert [e.output for e in of(tools, ToolResult)] == ["hi\n", "a.txt\n"]
    assert len(of(tools, StepStarted)) == 3
    assert "CODEWORD-steer" in of(memory, Ended)[0].text


def test_an_unknown_thread_is_unfit_before_any_prompt_is_sent() -> None:
    events, sends, _ = replay(CODEC, "codex-unknown")
    assert [type(e) for e in events] == [Unfit]
    assert "no rollout found" in events[0].message  # type: ignore[union-attr]
    assert [s.key for s in sends] == ["init", "initialized", "start"]


def test_approvals_as_recorded() -> None:
    events, sends, _ = replay(CODEC, "codex-ask")
    asked, interrupted, after = turns(events)
    approvals = of(asked, Approval)
    assert [(a.id, a.tool) for a in approvals] == [("t1:0", "bash"), ("t1:1", "edit"), ("t1:2", "edit")]
    assert approvals[0].input["command"] == "echo hi > a.txt"
    assert approvals[1].input["changes"][0]["path"] == "/session/p.txt"
    answers = {s.key: json.loads(s.data)["result"] for s in sends if s.key.startswith("answer:")}
    assert answers == {
        "answer:t1:0": {"decision": "accept"},
        "answer:t1:1": {"decision": "decline"},
        "answer:t1:2": {"decision": "accept"},
    }
    assert [r.is_error for r in of(asked, ToolResult)] == [False, True, False]
    assert of(interrupted, Ended) == [Ended("interrupted")]
    assert of(after, Ended)[0].stop_reason == "done"


def test_what_a_sub_agent_says_belongs_to_its_call() -> None:
    events, _, _ = replay(CODEC, "codex-agents")
    spawn = of(events, ToolCall)[0]
    assert {e.parent for e in of(events, In)} == {spawn.id}
    assert "".join(e.event.delta for e in of(events, In)) == "ANSWER users=2 memo=CODEWORD-kid"
    assert text_of([e for e in events if not isinstance(e, In)]).startswith("ANSWER users=3")


def test_commands_that_the_sandbox_stopped_are_told() -> None:
    events, _, _ = replay(CODEC, "codex-read-only")
    assert [(c.name, r.is_error) for c, r in zip(of(events, ToolCall), of(events, ToolResult), strict=True)] == [
        ("bash", True),
        ("edit", True),
    ]


# ---- orders of events that no recording shows -------------------------------------------------------------------------


def test_a_prompt_before_the_handshake_is_sent_after_it() -> None:
    talk = Talk()
    talk.say(Prompt("t1", "early", images=(("image/png", "AAAA"),)))
    assert talk.said() == ["init", "initialized", "start"]
    talk.joined()
    assert talk.said()[3:] == ["settings", "t1"]
    assert talk.message("t1")["params"]["input"] == [
        {"type": "text", "text": "early"},
        {"type": "image", "url": "data:image/png;base64,AAAA"},
    ]
    assert talk.state["settings"] is None


def test_an_interrupt_before_the_handshake_sends_no_prompt() -> None:
    talk = Talk()
    talk.say(Prompt("t1", "early")).say(Interrupt()).joined()
    assert talk.events == [Ended("interrupted"), Identified(THREAD)]
    assert "t1" not in talk.said()
    talk.begun("t2")
    assert "t2" in talk.said()


def test_an_interrupt_and_a_steer_wait_until_the_turn_runs() -> None:
    talk = Talk().joined()
    talk.say(Prompt("t1", "go")).say(Steer("s1", "more")).say(Interrupt()).say(Interrupt())
    assert "interrupt:t1" not in talk.said()
    talk.told("turn/started", turn={"id": "n1"})
    assert talk.message("interrupt:t1")["params"] == {"threadId": THREAD, "turnId": "n1"}
    assert talk.message("s1")["params"]["expectedTurnId"] == "n1"
    assert talk.said().count("interrupt:t1") == 1


def test_the_end_may_come_before_the_answer_to_the_prompt() -> None:
    talk = Talk().joined().begun()
    number = talk.message("t1")["id"]
    talk.told("turn/completed", turn={"id": "n1", "status": "completed", "items": []})
    talk.tell(id=number, result={"turn": {"id": "n1"}})
    assert of(talk.events, Ended) == [Ended("done")]
    talk.begun("t2", "n2")
    talk.told("turn/completed", turn={"id": "n1", "status": "completed", "items": []})  # once more, late
    assert len(of(talk.events, Ended)) == 1
    talk.told("turn/completed", turn={"id": "n2", "status": "completed", "items": []})
    assert len(of(talk.events, Ended)) == 2


def test_a_refused_prompt_ends_the_turn() -> None:
    talk = Talk().joined()
    talk.say(Prompt("t1", "go"))
    talk.tell(id=talk.message("t1")["id"], error={"code": -32600, "message": "no"})
    assert of(talk.events, Ended)[0].error == ErrorInfo("program_error", "Codex refused the prompt: no")


def test_another_thread_than_the_one_asked_for_is_unfit() -> None:
    talk = Talk(resume="01a227a0-a46f-7fe3-ba26-000000000000")
    talk.joined()
    assert [type(e) for e in talk.events] == [Unfit]
    talk.say(Prompt("t1", "go"))
    assert [type(e) for e in talk.events] == [Unfit, Unfit]
    assert "t1" not in talk.said()


def test_tokens_of_an_earlier_turn_do_not_name_the_new_one() -> None:
    talk = Talk(resume=THREAD).joined()
    talk.say(Prompt("t1", "go"))
    talk.told("thread/tokenUsage/updated", "old", tokenUsage={"total": {"totalTokens": 5}})
    assert talk.state["turn"]["native"] is None
    assert of(talk.events, StepStarted) == []


def test_unknown_requests_and_questions_get_a_definite_answer() -> None:
    talk = Talk().joined()
    talk.tell(id=0, method="item/commandExecution/requestApproval", params={"itemId": "c"})
    talk.begun()
    talk.tell(id=1, method="never/heard", params={})
    talk.tell(id=2, method="item/tool/requestUserInput", params={})
    talk.tell(id=3, method="mcpServer/elicitation/request", params={"mode": "url", "serverName": "x"})
    assert talk.message("declined:0")["result"] == {"decision": "decline"}  # nobody asks outside of a turn
    assert talk.message("refused:1")["error"]["code"] == -32601
    assert talk.message("declined:2")["result"] == {"answers": {}}
    assert talk.message("declined:3")["result"] == {"action": "decline"}
    assert of(talk.events, Approval) == []


def test_permissions_and_mcp_tools_ask_too() -> None:
    wanted = {"network": {"enabled": True}}
    talk = Talk().joined().begun()
    talk.tell(id=0, method="item/permissions/requestApproval", params={"itemId": "c", "permissions": wanted})
    params = {"mode": "form", "serverName": "x", "message": "run it?", "requestedSchema": {"type": "object"}}
    talk.tell(id=1, method="mcpServer/elicitation/request", params=params)
    assert [a.tool for a in of(talk.events, Approval)] == ["permissions", "mcp"]
    talk.say(Answer("t1:0", True)).say(Answer("t1:1", False)).say(Answer("t1:1", True)).say(Answer("nonsense", True))
    assert talk.message("answer:t1:0")["result"] == {"permissions": wanted, "scope": "turn"}
    assert talk.message("answer:t1:1")["result"] == {"action": "decline"}


def test_an_approval_that_is_no_longer_asked_is_not_answered() -> None:
    talk = Talk().joined().begun()
    talk.tell(id=7, method="item/commandExecution/requestApproval", params={"itemId": "c", "command": "ls"})
    talk.told("serverRequest/resolved", requestId=7)
    talk.say(Answer("t1:7", True))
    assert "answer:t1:7" not in talk.said()


def test_tools_without_an_end_are_closed_with_the_turn() -> None:
    talk = Talk().joined().begun()
    item = {"type": "mcpToolCall", "id": "c1", "server": "host", "tool": "look", "arguments": {"a": 1}}
    talk.told("item/started", item=item)
    talk.told("turn/completed", turn={"id": "n1", "status": "interrupted", "items": []})
    assert of(talk.events, ToolCall, ToolResult, Ended) == [
        ToolCall("c1", "look", "mcp__host__look", {"a": 1}, builtin=False),
        ToolResult("c1", "interrupted", is_error=True),
        Ended("interrupted"),
    ]


def test_mcp_results_searches_and_compactions() -> None:
    talk = Talk().joined().begun()
    mcp = {"type": "mcpToolCall", "id": "m", "server": "other", "tool": "look", "arguments": {}, "status": "completed"}
    talk.told("item/started", item=mcp)
    talk.told("item/completed", item={**mcp, "result": {"content": [{"type": "text", "text": "42"}]}})
    talk.told("item/started", item={"type": "webSearch", "id": "w", "query": ""})
    talk.told("item/completed", item={"type": "webSearch", "id": "w", "query": "weather"})
    talk.told("item/completed", item={"type": "contextCompaction", "id": "k"})
    call, result, search, found = of(talk.events, ToolCall, ToolResult)
    assert (call.name, call.builtin, result.output) == ("mcp__other__look", True, "42")
    assert (search.name, search.input["query"], found.id) == ("web_search", "weather", "w")
    assert of(talk.events, Compaction) == [Compaction()]


def test_text_without_deltas_is_told_at_its_end() -> None:
    talk = Talk().joined().begun()
    talk.told("item/completed", item={"type": "agentMessage", "id": "m", "text": "whole"})
    talk.told("item/completed", item={"type": "reasoning", "id": "r", "summary": ["a", "b"]})
    assert [(e.item, e.delta) for e in talk.events if hasattr(e, "delta")] == [("m", "whole"), ("r", "a\n\nb")]


def test_an_attempt_that_never_ended_is_retracted_when_the_turn_succeeds() -> None:
    talk = Talk().joined().begun()
    talk.told("item/agentMessage/delta", itemId="m1", delta="half")
    talk.told("item/completed", item={"type": "agentMessage", "id": "m2", "text": "whole"})
    talk.told("turn/completed", turn={"id": "n1", "status": "completed", "items": []})
    assert of(talk.events, Text, Retract) == [Text("m1", "half"), Text("m2", "whole"), Retract("m1")]


def test_a_schema_goes_with_its_prompt_and_what_was_wrapped_is_unwrapped() -> None:
    def ended(text: str) -> Any:
        talk = Talk().joined()
        talk.say(Prompt("t1", "go", schema={"type": "array", "items": {"type": "integer"}}))
        assert talk.message("t1")["params"]["outputSchema"]["required"] == ["value"]
        talk.told("turn/started", turn={"id": "n1"})
        item = {"type": "agentMessage", "id": "m", "text": text}
        talk.told("turn/completed", turn={"id": "n1", "status": "completed", "items": [item]})
        return of(talk.events, Ended)[0]

    assert ended('{"value": [3]}').text == "[3]"
    assert ended("no json").text == "no json"


def test_skills_are_named_before_the_thread_begins_and_their_refusal_is_told() -> None:
    talk = Talk(skills="/s/skills")
    assert [key for key, _ in talk.sent] == ["init", "initialized", "skills", "start"]
    assert talk.message("skills")["params"] == {"extraRoots": ["/s/skills"]}
    talk.tell(id=2, error={"code": -32601, "message": "unknown method"})
    (notice,) = of(talk.events, Notice)
    assert (notice.code, "unknown method" in notice.message) == ("skills_unavailable", True)


def test_noise_and_repeated_warnings() -> None:
    talk = Talk().joined()
    for _ in range(2):
        talk.told("warning", message="careful")
    talk._take(CODEC.fold(talk.state, Frame(9, "out", b"\xff garbage")))
    talk._take(CODEC.fold(talk.state, Frame(10, "err", b"log")))
    assert [n.code for n in of(talk.events, Notice)] == ["program_warning", "noise"]


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ({"codexErrorInfo": "unauthorized", "message": "x"}, "model_auth", False),
        (
            {"codexErrorInfo": {"httpConnectionFailed": {"httpStatusCode": 429}}, "message": "x"},
            "model_rate_limited",
            True,
        ),
        ({"codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": None}}}, "model_unavailable", True),
        ({"codexErrorInfo": "contextWindowExceeded", "message": "x"}, "context_exceeded", False),
        ({"codexErrorInfo": "other", "message": '{"error": {"message": "bad"}}'}, "model_refused", False),
        ({"codexErrorInfo": "brandNew", "message": "unexpected status 403 Forbidden"}, "model_auth", False),
        ({}, "model_unavailable", True),
    ],
)
def test_error_codes(error: dict[str, Any], code: str, retryable: bool) -> None:
    info = error_info(error)
    assert (info.code, info.retryable) == (code, retryable)
    assert info.message


def test_a_turn_whose_beginning_was_not_told_ends_all_the_same() -> None:
    talk = Talk().joined().say(Prompt("t1", "go"))
    talk.told("turn/completed", turn={"id": "n1", "status": "completed", "items": []})
    talk.tell(id=talk.message("t1")["id"], result={"turn": {"id": "n1"}})
    talk.told("turn/started", turn={"id": "n1"})  # late
    assert of(talk.events, Ended) == [Ended("done")]
    talk.say(Prompt("t2", "go"))
    talk.told("turn/started", turn={"id": "n1"})
    assert talk.state["turn"]["native"] is None


def test_a_fork_begins_after_the_turn_that_is_named() -> None:
    talk = Talk(resume=THREAD, fork_at="n7")
    (_, fork) = next((key, m) for key, m in talk.sent if m.get("method") == "thread/fork")
    assert (fork["params"]["threadId"], fork["params"]["lastTurnId"]) == (THREAD, "n7")
    assert fork["params"]["sandbox"] == "read-only"
    talk.tell(id=1, result={}).tell(id=2, result={"thread": {"id": "another"}})
    assert talk.events[-1] == Identified("another")
    refused = Talk(resume=THREAD, fork_at="n7")
    refused.tell(id=1, result={}).tell(id=2, error={"code": -32600, "message": "turn not found: n7"})
    (unfit,) = [e for e in refused.events if isinstance(e, Unfit)]
    assert "thread/fork: turn not found" in unfit.message


def test_the_end_of_a_turn_names_its_place() -> None:
    talk = Talk().joined().begun("t1", "n1")
    talk.told("turn/completed", turn={"id": "n1", "status": "completed", "items": []})
    (end,) = [e for e in talk.events if isinstance(e, Ended)]
    assert end.at == "n1"


def test_the_history_of_a_fork_goes_on_from_its_originals() -> None:
    def rollout(*lines: tuple[int, str], first: int = 0, **about: Any) -> bytes:
        rows: list[dict[str, Any]] = [{"ordinal": first, "type": "session_meta", "payload": about}]
        for number, text in lines:
            said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
            rows.append({"ordinal": number, "type": "response_item", "payload": said})
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)

    files = {
        "x-a.jsonl": rollout((3, "one"), (7, "two"), (9, "three")),
        "x-b.jsonl": rollout((10, "four"), first=8, forked_from_id="a", forked_from_ordinal_exclusive=8),
        "x-c.jsonl": rollout((8, "five"), first=5, forked_from_id="b", forked_from_ordinal_exclusive=5),
        "x-d.jsonl": rollout((8, "six"), first=5, forked_from_id="gone", forked_from_ordinal_exclusive=5),
        "x-e.jsonl": rollout((8, "seven"), forked_from_id="e", forked_from_ordinal_exclusive=5),
    }
    said = {name: [m["content"] for m in RUNTIME.history(files, name)] for name in ("a", "b", "c", "e")}
    assert said == {"a": ["one", "two", "three"], "b": ["one", "two", "four"], "c": ["one", "five"], "e": ["seven"]}
    with pytest.raises(CapabilityUnsupported, match="gone"):
        RUNTIME.history(files, "d")


def servers(talk: Talk) -> list[str]:
    return [e.message for e in talk.events if isinstance(e, Notice) and e.code == "mcp_server_failed"]


STATUS = "mcpServer/startupStatus/updated"


def starting(*names: str) -> Talk:
    """A prompt waits until it is known which of these servers start."""
    talk = Talk(mcp_servers={name: {"command": name} for name in names}).joined().say(Prompt("t1", "go"))
    for name in names:
        talk.told(STATUS, name=name, status="starting", error=None)
    return talk


def test_a_turn_begins_when_it_is_known_which_servers_have_started() -> None:
    talk = starting("a", "b")
    talk.told(STATUS, name="host", status="ready")  # the host's own is not waited for
    talk.told(STATUS, name="b", status="failed", error="no such file")
    assert "t1" not in talk.said()
    talk.told(STATUS, name="a", status="ready")
    assert talk.said().count("t1") == 1
    assert servers(talk) == ["The MCP server 'b' did not start; its tools are missing: no such file"]
    talk.told(STATUS, name="b", status="ready")  # later
    assert talk.said().count("t1") == 1


def test_a_server_that_starts_again_is_waited_for_again_and_said_once() -> None:
    talk = starting("a", "b").told(STATUS, name="a", status="failed", error="connection closed")
    talk.told(STATUS, name="a", status="starting").told(STATUS, name="b", status="ready")
    assert "t1" not in talk.said()
    talk.told(STATUS, name="a", status="failed", error="broken pipe")
    assert talk.said().count("t1") == 1
    assert servers(talk) == ["The MCP server 'a' did not start; its tools are missing: connection closed"]


def test_a_start_that_is_cancelled_and_begun_anew_is_no_failure() -> None:
    talk = starting("a", "b", "c")
    for name in ("a", "b", "c"):
        talk.told(STATUS, name=name, status="cancelled")
    asked = [key for key in talk.said() if key.startswith("servers:")]
    assert len(asked) == 1  # each such request makes Codex start them all
    for name in ("a", "b"):
        talk.told(STATUS, name=name, status="starting")
    talk.told(STATUS, name="b", status="ready")
    assert servers(talk) == []
    talk.tell(id=talk.message(asked[0])["id"], result={"data": []})
    assert servers(talk) == ["The MCP server 'c' did not start; its tools are missing: cancelled"]
    assert "t1" not in talk.said()
    talk.told(STATUS, name="a", status="ready")
    assert talk.said().count("t1") == 1


def test_the_servers_of_a_sub_agent_are_not_waited_for() -> None:
    talk = starting("a").told(STATUS, name="a", status="ready").told("turn/started", turn={"id": "n1"})
    talk.told(STATUS, thread="another", name="a", status="starting")
    talk.told("turn/completed", turn={"id": "n1", "status": "completed"}).say(Prompt("t2", "and now?"))
    assert talk.said().count("t2") == 1


def test_a_codex_that_cannot_be_asked_for_its_servers_is_believed() -> None:
    talk = starting("a").told(STATUS, name="a", status="cancelled")
    (asked,) = (key for key in talk.said() if key.startswith("servers:"))
    talk.tell(id=talk.message(asked)["id"], error={"code": -32601, "message": "unknown method"})
    assert len(servers(talk)) == 1
    assert talk.said().count("t1") == 1


def test_servers_start_in_a_state_of_an_older_hostler() -> None:
    talk = starting("a", "b")
    talk.state = {key: value for key, value in talk.state.items() if key not in ("servers", "cancelled")}
    talk.told(STATUS, name="a", status="cancelled").told(STATUS, name="a", status="starting")
    talk.told(STATUS, name="a", status="ready").told(STATUS, name="b", status="ready")
    assert talk.said().count("t1") == 1


def test_a_turn_that_waits_for_servers_can_be_interrupted() -> None:
    talk = Talk(mcp_servers={"a": {"command": "x"}}).joined().say(Prompt("t1", "go")).say(Interrupt())
    assert [e.stop_reason for e in talk.events if isinstance(e, Ended)] == ["interrupted"]
    talk.told(STATUS, name="a", status="ready")
    assert "t1" not in talk.said()
