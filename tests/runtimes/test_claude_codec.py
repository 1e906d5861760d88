"""The Claude Code codec on recorded streams, and on what no recording holds."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtimes.stdio_driver import text_of

from hostler.runtimes.claude_code import RUNTIME
from hostler.types import runtime as seam
from hostler.types.events import (
    Answered,
    Approval,
    Compaction,
    Notice,
    Reasoning,
    Retract,
    Text,
    ToolCall,
    ToolResult,
)
from hostler.types.runtime import (
    Answer,
    CodecEvent,
    CodecState,
    Ended,
    Folded,
    Frame,
    Identified,
    In,
    Interrupt,
    LaunchContext,
    Prompt,
    Steer,
    StepStarted,
    Unfit,
)

CODEC = RUNTIME.codec
STREAMS = {
    path.stem.removeprefix("claude-"): path for path in (Path(__file__).parent / "streams").glob("claude-*.jsonl")
}
ID = "00000000-0000-4000-8000-000000000001"
Item = Frame | seam.Command


def context(**rules: Any) -> LaunchContext:
    place = {"home": "/h", "tmp": "/t", "workdir": "/w", "files_dir": "/f"}
    given = {"program": ("claude",), "model": "m", "model_url": "http://127.0.0.1:1", "token": "t", "new_id": ID}
    return LaunchContext(**{**place, **given, **rules})


def items(name: str) -> list[Item]:
    out: list[Item] = []
    for number, line in enumerate(STREAMS[name].read_text().splitlines(), 1):
        entry = json.loads(line)
        if "out" in entry:
            out.append(Frame(number, "out", entry["out"].encode()))
        else:
            kind, fields = entry["do"]
            if kind == "Prompt":
                fields["images"] = tuple(map(tuple, fields["images"]))
            out.append(getattr(seam, kind)(**fields))
    return out


def step(state: CodecState, item: Item) -> Folded:
    return CODEC.fold(state, item) if isinstance(item, Frame) else CODEC.encode(state, item)


def play(what: list[Item], state: CodecState | None = None, *, restart: bool = False) -> Iterator[Folded]:
    """Fold all items; with ``restart`` each in a new process, as far as the codec can tell."""
    state = CODEC.start(context(permissions="ask", approvals=True)).state if state is None else state
    for item in what:
        before = copy.deepcopy(state)
        folded = step(json.loads(json.dumps(state)) if restart else state, item)
        assert state == before
        yield folded
        state = folded.state


def events(what: list[Item], state: CodecState | None = None) -> list[CodecEvent]:
    return [event for folded in play(what, state) for event in folded.events]


def turns(name: str) -> list[list[CodecEvent]]:
    out: list[list[CodecEvent]] = [[]]
    for event in events(items(name)):
        out[-1].append(event)
        if isinstance(event, Ended):
            out.append([])
    assert out.pop() == []
    return out


def kinds(of: list[CodecEvent]) -> str:
    return " ".join(f"In:{type(e.event).__name__}" if isinstance(e, In) else type(e).__name__ for e in of)


def line(**message: Any) -> Frame:
    return Frame(1, "out", json.dumps(message).encode())


def open_turn(turn: str = "t1") -> CodecState:
    return CODEC.encode(CODEC.start(context()).state, Prompt(turn, "go")).state


def prompt_uuid(state: CodecState) -> str:
    return str(state["open"][0])


def message(text: str, id: str = "m", parent: str | None = None) -> Frame:
    content = [{"type": "text", "text": text}]
    return line(type="assistant", message={"id": id, "model": "x", "content": content}, parent_tool_use_id=parent)


def result(state: CodecState, **fields: Any) -> Frame:
    given = {"subtype": "success", "is_error": False, "result": "ok", "user_message_uuids": [*state["open"]]}
    return line(type="result", **{**given, **fields})


# ---- recorded streams ---------------------------------------------------------------------------------------------


def test_there_are_recordings() -> None:
    assert len(STREAMS) == 11


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_a_new_process_at_any_frame_goes_on_alike(name: str) -> None:
    together, apart = list(play(items(name))), list(play(items(name), restart=True))
    assert together == apart
    for number in range(0, len(together), 7):  # and from the state that was stored in the middle
        rest = list(play(items(name)[number + 1 :], json.loads(json.dumps(together[number].state))))
        assert rest == together[number + 1 :]


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_the_state_stays_small_and_every_send_has_its_own_key(name: str) -> None:
    folded = list(play(items(name)))
    assert max(len(json.dumps(f.state)) for f in folded) < 2000
    keys = [send.key for f in folded for send in f.sends]
    assert len(keys) == len(set(keys))
    assert not any(b"\n" in send.data for f in folded for send in f.sends)


def test_a_turn_with_thought_tool_and_answer() -> None:
    first, second = turns("tool")
    assert kinds(first) == (
        "Identified StepStarted Reasoning Text Text ToolCall ToolResult StepStarted Text Text Ended"
    )
    call = next(e for e in first if isinstance(e, ToolCall))
    assert (call.name, call.native_name, call.builtin, call.parent) == ("bash", "Bash", True, None)
    assert call.input["command"] == "echo hi"
    assert next(e for e in first if isinstance(e, ToolResult)) == ToolResult(call.id, "hi")
    assert first[0] == Identified(ID)
    assert first[-1] == Ended("done", "done")
    assert kinds(second) == "StepStarted Text Text Ended"
    assert second[-1] == Ended("done", "again")


def test_calls_side_by_side_are_paired_by_id() -> None:
    [turn] = turns("parallel")
    calls = [e.id for e in turn if isinstance(e, ToolCall)]
    outputs = {e.id: e.output for e in turn if isinstance(e, ToolResult)}
    assert [outputs[id] for id in calls] == ["one", "two"]


def test_a_sub_agent_is_told_apart() -> None:
    [turn] = turns("subagent")
    agent = next(e for e in turn if isinstance(e, ToolCall))
    inner = [e.event for e in turn if isinstance(e, In)]
    assert {e.parent for e in turn if isinstance(e, In)} == {agent.id}
    assert [type(e) for e in inner] == [Reasoning, Text, ToolCall, ToolResult, Text]
    assert text_of(turn).endswith("main answer")
    assert "sub answer" not in text_of(turn)
    assert sum(isinstance(e, StepStarted) for e in turn) == 2
    assert agent.name == "agent"


def test_a_cut_stream_is_retracted_and_counts_once() -> None:
    [turn] = turns("cut")
    assert text_of(turn) == "fine"
    assert any(isinstance(e, Text) and e.delta.startswith("one") for e in turn)
    assert sum(isinstance(e, Retract) for e in turn) == 1
    assert sum(isinstance(e, StepStarted) for e in turn) == 1
    assert turn[-1] == Ended("done", "fine")


def test_a_stream_that_is_always_cut_leaves_no_text() -> None:
    [turn] = turns("cut-always")
    ended = turn[-1]
    assert text_of(turn) == ""
    assert isinstance(ended, Ended)
    assert ended.error is not None
    assert (ended.stop_reason, ended.error.code, ended.error.retryable) == ("error", "model_unavailable", True)


def test_an_error_of_the_model_is_no_answer() -> None:
    [turn] = turns("refused")
    ended = turn[-1]
    assert isinstance(ended, Ended)
    assert ended.error is not None
    assert (ended.stop_reason, ended.text, ended.error.code) == ("error", None, "model_rate_limited")
    assert not any(isinstance(e, (Text, StepStarted)) for e in turn)
    assert [e.code for e in turn if isinstance(e, Notice)] == ["model_retry", "model_retry"]


def test_interrupts_end_the_turn_and_nothing_else() -> None:
    streaming, running, after = turns("interrupted")
    assert streaming[-1] == running[-1] == Ended("interrupted")
    assert text_of(streaming) == "one two"
    assert next(e for e in running if isinstance(e, ToolResult)).is_error
    assert isinstance(after[-1], Ended)
    assert after[-1].stop_reason == "done"


def test_what_is_said_to_a_turn_belongs_to_it_even_when_it_comes_late() -> None:
    heard, late, after = turns("steered")
    assert heard[-1] == Ended("done", "heard")
    assert late[-1] == Ended("done", "heard too")
    assert text_of(late) == "lateheard too"
    assert isinstance(after[-1], Ended)
    assert "CODEWORD-s1,CODEWORD-s2" in str(after[-1].text)


def test_questions_are_asked_answered_and_withdrawn() -> None:
    allowed, denied, interrupted = turns("asked")
    for turn in (allowed, denied, interrupted):
        [approval] = [e for e in turn if isinstance(e, Approval)]
        assert approval.tool == "bash"
        assert approval.input["command"].startswith("touch ")
    assert not next(e for e in allowed if isinstance(e, ToolResult)).is_error
    assert next(e for e in denied if isinstance(e, ToolResult)).output == "no"
    assert [e.allow for e in interrupted if isinstance(e, Answered)] == [False]
    assert interrupted[-1] == Ended("interrupted")


def test_the_limit_of_turns_counts_for_each_prompt() -> None:
    first, second = turns("max-turns")
    assert first[-1] == Ended("max_turns")
    assert sum(isinstance(e, StepStarted) for e in first) == 2
    assert isinstance(second[-1], Ended)
    assert second[-1].stop_reason == "done"


def test_structured_output() -> None:
    [turn] = turns("schema")
    assert turn[-1] == Ended("done", '{"n":3}', {"n": 3})


# ---- commands -----------------------------------------------------------------------------------------------------


def test_the_handshake_carries_the_schema_and_no_secret() -> None:
    [send] = CODEC.start(context(output_schema={"type": "object"}, instructions="secret plan")).sends
    assert send.key == "init"
    assert json.loads(send.data)["request"] == {"subtype": "initialize", "jsonSchema": {"type": "object"}}


def test_a_prompt_is_said_word_for_word_with_its_images() -> None:
    text = "/clear @file \u2028 \U0001f40e"
    state = CODEC.start(context()).state
    [send] = CODEC.encode(state, Prompt("t1", text, (("image/png", "aGk="),))).sends
    said = json.loads(send.data)
    assert send.key == "t1"
    assert said["message"]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "text", "text": text},
    ]
    assert said["client_composed"] is True
    assert send == CODEC.encode(state, Prompt("t1", text, (("image/png", "aGk="),))).sends[0]
    assert said["uuid"] != json.loads(CODEC.encode(state, Prompt("t2", text)).sends[0].data)["uuid"]


def test_interrupts_are_numbered_and_need_a_turn() -> None:
    state = open_turn()
    first = CODEC.encode(state, Interrupt())
    second = CODEC.encode(first.state, Interrupt())
    assert [f.sends[0].key for f in (first, second)] == ["interrupt:t1:1", "interrupt:t1:2"]
    assert CODEC.encode(CODEC.start(context()).state, Interrupt()).sends == ()


def test_steering_no_turn_begins_none() -> None:
    folded = CODEC.encode(CODEC.start(context()).state, Steer("s", "x"))
    assert folded.sends == ()
    assert [e.code for e in folded.events if isinstance(e, Notice)] == ["steer_late"]


def test_answers_have_the_key_of_their_question() -> None:
    state = open_turn()
    allow, deny = (CODEC.encode(state, Answer("q", yes, "why")).sends[0] for yes in (True, False))
    assert allow.key == deny.key == "answer:q"
    assert json.loads(allow.data)["response"]["response"] == {"behavior": "allow"}
    assert json.loads(deny.data)["response"]["response"] == {"behavior": "deny", "message": "why"}


def test_a_question_behind_the_end_of_the_turn_is_refused() -> None:
    """Case H02: nobody would see it, and the program would wait for ever."""
    ask = line(type="control_request", request_id="q", request={"subtype": "can_use_tool", "tool_name": "Bash"})
    state = open_turn()
    over = CODEC.fold(state, result(state)).state
    folded = CODEC.fold(over, ask)
    assert folded.events == ()
    assert json.loads(folded.sends[0].data)["response"]["response"]["behavior"] == "deny"


def test_other_questions_get_a_definite_no() -> None:
    ask = line(type="control_request", request_id="q", request={"subtype": "request_user_dialog"})
    [send] = CODEC.fold(open_turn(), ask).sends
    response = json.loads(send.data)["response"]
    assert (send.key, response["subtype"], response["request_id"]) == ("refuse:q", "error", "q")


# ---- what no recording holds --------------------------------------------------------------------------------------


def test_text_that_was_not_streamed_is_said_once() -> None:
    start = {"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m"}}}
    whole = [message("one"), message("two"), message("three", "n")]
    assert text_of(events(whole, open_turn())) == "onetwothree"
    streamed = [
        line(**start),
        line(type="stream_event", event={"type": "content_block_start", "index": 0}),
        line(
            type="stream_event",
            event={"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one"}},
        ),
        message("one"),
        line(type="stream_event", event={"type": "content_block_start", "index": 1}),
        message("two"),  # its deltas are missing
        line(type="stream_event", event={"type": "message_stop"}),
    ]
    got = events(streamed, open_turn())
    assert text_of(got) == "onetwo"
    assert sum(isinstance(e, StepStarted) for e in got) == 1


def test_a_repeated_message_without_any_marker_is_retracted() -> None:
    """As older versions do it: a second message_start, and that is all."""
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "half"}}
    attempt = [
        line(type="stream_event", event={"type": "message_start", "message": {"id": "same"}}),
        line(type="stream_event", event=delta),
    ]
    got = events([*attempt, *attempt], open_turn())
    assert text_of(got) == "half"
    assert sum(isinstance(e, Retract) for e in got) == 1
    assert sum(isinstance(e, StepStarted) for e in got) == 1
    got = events([*attempt, message("whole", "other")], open_turn())
    assert text_of(got) == "whole"


def test_a_provider_that_gives_one_id_to_all_messages() -> None:
    def answer(text: str) -> list[Frame]:
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        stream = [{"type": "message_start", "message": {"id": "msg"}}, delta, {"type": "message_stop"}]
        return [line(type="stream_event", event=event) for event in stream]

    got = events([*answer("one"), *answer("two")], open_turn())
    assert len({e.item for e in got if isinstance(e, Text)}) == 2
    assert sum(isinstance(e, StepStarted) for e in got) == 2


def test_results_that_are_not_the_turns_do_not_end_it() -> None:
    state = CODEC.start(context()).state
    assert kinds(events([result(state)], {**state, "known": True})) == "Notice"
    state = open_turn()
    assert kinds(events([result(state, user_message_uuids=["another"])], state)) == "Notice"
    twice = events([result(state), result(state)], state)
    assert kinds(twice) == "Ended Notice"


def test_an_older_program_names_no_messages_in_its_result() -> None:
    state = open_turn()
    assert events([result(state, user_message_uuids=None)], state) == [Ended("done", "ok")]
    state = CODEC.encode(state, Steer("s", "x")).state
    assert events([result(state, user_message_uuids=None)], state) == [Ended("done", "ok")]


def test_a_prompt_taken_out_of_the_queue_ends_its_turn() -> None:
    state = open_turn()
    gone = line(type="command_lifecycle", command_uuid=prompt_uuid(state), state="cancelled")
    assert events([gone, gone], state) == [Ended("interrupted")]


def test_a_prompt_that_the_conversation_has_already_does_not_wait_for_ever() -> None:
    state = open_turn()
    [ended] = events([line(type="command_lifecycle", command_uuid=prompt_uuid(state), state="completed")], state)
    assert isinstance(ended, Ended)
    assert ended.error is not None
    assert ended.error.code == "prompt_repeated"


def test_a_repeated_steer_does_not_keep_the_turn_open() -> None:
    state = CODEC.encode(open_turn(), Steer("s", "x")).state
    prompt, steer = state["open"]
    repeated = line(type="command_lifecycle", command_uuid=steer, state="completed")
    assert events([repeated, result(state, user_message_uuids=[prompt])], state) == [Ended("done", "ok")]
    assert events([result(state, user_message_uuids=[prompt]), repeated], state) == [Ended("done", "ok")]


@pytest.mark.parametrize(
    ("fields", "stop", "code"),
    [
        ({"subtype": "error_max_turns", "is_error": True}, "max_turns", None),
        (
            {"subtype": "error_during_execution", "is_error": True, "terminal_reason": "aborted_tools"},
            "interrupted",
            None,
        ),
        ({"is_error": True, "api_error_status": 401}, "error", "model_auth"),
        ({"is_error": True, "api_error_status": 429}, "error", "model_rate_limited"),
        ({"is_error": True, "api_error_status": 400}, "error", "model_refused"),
        ({"is_error": True, "api_error_status": 529}, "error", "model_unavailable"),
        ({"is_error": True, "terminal_reason": "api_error"}, "error", "model_unavailable"),
        ({"is_error": True, "terminal_reason": "prompt_too_long"}, "error", "context_too_long"),
        ({"subtype": "error_max_structured_output_retries", "is_error": True}, "error", "output_invalid"),
        ({"subtype": "error_during_execution", "is_error": True, "errors": ["boom"]}, "error", "program_error"),
        ({"subtype": "success", "is_error": False, "result": ""}, "done", None),
    ],
)
def test_how_a_result_is_read(fields: dict[str, Any], stop: str, code: str | None) -> None:
    state = open_turn()
    [ended] = events([result(state, **fields)], state)
    assert isinstance(ended, Ended)
    assert (ended.stop_reason, ended.error and ended.error.code) == (stop, code)


def test_a_fork_is_in_the_conversation_that_it_was_named_and_says_where_its_turns_end() -> None:
    state = CODEC.start(context(resume="r", new_id=ID, fork_at="m-9")).state
    assert kinds(events([line(type="system", subtype="init", session_id="r")], state)) == "Unfit"
    assert events([line(type="system", subtype="init", session_id=ID)], state) == [Identified(ID)]
    said = {"type": "assistant", "message": {"id": "m1", "content": [{"type": "text", "text": "ok"}]}}
    outer, inner = line(**said, uuid="u-7"), line(**said, uuid="u-8", parent_tool_use_id="toolu_1")
    state = open_turn()
    end = events([outer, inner, result(state)], state)[-1]
    assert isinstance(end, Ended)
    assert end.at == "u-7"


def test_a_conversation_that_is_not_the_resumed_one_is_unfit() -> None:
    state = CODEC.start(context(resume=ID, new_id=None)).state
    assert kinds(events([line(type="system", subtype="init", session_id="other")], state)) == "Unfit"
    unknown = line(
        type="result", subtype="error_during_execution", is_error=True, errors=["No conversation found with session ID"]
    )
    [unfit] = events([unknown], state)
    assert isinstance(unfit, Unfit)
    assert "No conversation found" in unfit.message
    assert kinds(events([Prompt("t", "x"), unknown], state)) == "Unfit"
    assert events([line(type="system", subtype="init", session_id=ID)] * 2, state) == [Identified(ID)]


def test_a_server_that_is_down_is_said_once() -> None:
    init = line(type="system", subtype="init", session_id=ID, mcp_servers=[{"name": "a", "status": "failed"}])
    fine = line(type="system", subtype="init", session_id=ID, mcp_servers=[{"name": "a", "status": "connected"}])
    got = events([init, init, fine, init], open_turn())
    assert [e.code for e in got if isinstance(e, Notice)] == ["mcp_server_failed"] * 2


def test_compaction() -> None:
    boundary = line(type="system", subtype="compact_boundary", compact_metadata={"trigger": "auto", "pre_tokens": 9})
    assert events([boundary], open_turn()) == [Compaction(9, None)]


def test_odd_lines() -> None:
    state = open_turn()
    two = message("one").data + message("two\u2028three", "n").data
    odd = [
        Frame(1, "out", b"npm warn old"),
        Frame(2, "out", b"\xef\xbb\xbf" + two + b"\r"),
        Frame(3, "out", b"\xff\xfe\x00"),
        Frame(4, "out", b""),
        Frame(5, "out", b"null"),
        Frame(6, "err", b"{}"),
        Frame(7, "note", b'{"call": 1, "what": "cut"}'),
        line(type="brand_new", data=1),
        line(no="type"),
        Frame(8, "exit", b"1"),
    ]
    got = events(odd, state)
    assert text_of(got) == "onetwo\u2028three"
    assert [e.code for e in got if isinstance(e, Notice)] == ["noise"] * 3


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(sorted(STREAMS)), data=st.data())
def test_no_line_breaks_the_codec(name: str, data: st.DataObject) -> None:
    """One value anywhere in one line is replaced: nothing raises, and the state stays JSON."""
    what = items(name)
    number = data.draw(st.sampled_from([n for n, item in enumerate(what) if isinstance(item, Frame)]))
    frame = what[number]
    assert isinstance(frame, Frame)
    spoilt = json.loads(frame.data)
    at: Any = spoilt
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = data.draw(_JUNK)
        break
    what[number] = Frame(frame.no, "out", json.dumps(spoilt).encode())
    list(play(what, restart=True))
