"""Claude Code's transcript to messages."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from hostler.runtimes.claude_code import RUNTIME
from hostler.types.errors import SessionLost

ID = "00000000-0000-4000-8000-000000000001"
Row = dict[str, Any]


def transcript(*rows: Row, torn: bytes = b"") -> dict[str, bytes]:
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows) + torn
    return {f".claude/projects/-w/{ID}.jsonl": content, f".claude/projects/-w/{ID}/subagents/agent-1.jsonl": b"{}"}


def user(id: str, parent: str | None, content: Any, **more: Any) -> Row:
    return {"type": "user", "uuid": id, "parentUuid": parent, "message": {"role": "user", "content": content}, **more}


def assistant(id: str, parent: str | None, *blocks: Row, message: str = "m", **more: Any) -> Row:
    body = {"id": message, "role": "assistant", "model": "x", "content": list(blocks)}
    return {"type": "assistant", "uuid": id, "parentUuid": parent, "message": body, **more}


def text(of: str) -> Row:
    return {"type": "text", "text": of}


def call(id: str) -> Row:
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": id}}


def result(id: str, parent: str, tool: str, output: Any) -> Row:
    return user(id, parent, [{"type": "tool_result", "tool_use_id": tool, "content": output}])


def messages(*rows: Row, torn: bytes = b"") -> list[Row]:
    return RUNTIME.history(transcript(*rows, torn=torn), ID)


def brief(of: list[Row]) -> list[str]:
    out = []
    for m in of:
        calls = ",".join(c["id"] for c in m.get("tool_calls", ()))
        out.append(f"{m['role'][0]}:{m['content'] or ''}" + (f"[{calls}]" if calls else ""))
    return out


def test_a_turn_with_a_tool() -> None:
    got = messages(
        {"type": "queue-operation", "operation": "enqueue", "content": "hi"},
        user("1", None, "hi"),
        {"type": "attachment", "uuid": "2", "parentUuid": "1", "attachment": {"type": "date"}},
        assistant("3", "2", {"type": "thinking", "thinking": "hm"}),
        assistant("4", "3", text("let me")),
        assistant("5", "4", call("a")),
        result("6", "5", "a", [text("out")]),
        assistant("7", "6", text("done"), message="n"),
        torn=b'{"type": "user", "uuid": "8", "par',
    )
    assert brief(got) == ["u:hi", "a:let me[a]", "t:out", "a:done"]
    assert got[1]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "Bash", "arguments": '{"command": "a"}'}}
    ]
    assert got[2]["tool_call_id"] == "a"


def test_calls_side_by_side_hang_beside_the_way_and_are_paired_in_order() -> None:
    got = messages(
        user("1", None, "hi"),
        assistant("2", "1", call("a")),
        result("3", "2", "a", "one"),
        assistant("4", "2", call("b")),
        result("5", "4", "b", "two"),
        assistant("6", "5", text("done"), message="n"),
    )
    assert brief(got) == ["u:hi", "a:[a,b]", "t:one", "t:two", "a:done"]


def test_dead_branches_sub_agents_and_the_programs_own_words_are_left_out() -> None:
    got = messages(
        user("1", None, "hi"),
        assistant("2", "1", text("dead end"), message="dead"),
        user("2b", "1", "retry"),
        user("s", "1", "sub prompt", isSidechain=True),
        assistant("3", "2b", text("API Error"), message="err") | {"message": {"model": "<synthetic>", "content": []}},
        user("4", "3", "caveat", isMeta=True),
        user("5", "4", [text("[Request interrupted by user]")]),
        {
            "type": "attachment",
            "uuid": "6",
            "parentUuid": "5",
            "attachment": {"type": "queued_command", "prompt": "and this"},
        },
        assistant("7", "6", text("fine"), message="n"),
        assistant("t", "s", text("sub answer"), message="sub", isSidechain=True),
    )
    assert brief(got) == ["u:hi", "u:retry", "u:and this", "a:fine"]


def test_the_way_leads_through_a_compaction() -> None:
    got = messages(
        user("1", None, "before"),
        assistant("2", "1", text("early")),
        {"type": "system", "subtype": "compact_boundary", "uuid": "3", "parentUuid": None, "logicalParentUuid": "2"},
        user("4", "3", "This session is being continued ...", isCompactSummary=True),
        user("5", "4", "after"),
        assistant("6", "5", text("late"), message="n"),
    )
    assert brief(got) == ["u:before", "a:early", "u:after", "a:late"]


def test_a_call_without_a_result_still_has_its_pair() -> None:
    got = messages(user("1", None, "hi"), assistant("2", "1", call("a")), user("3", "2", "go on"))
    assert [m["role"] for m in got] == ["user", "assistant", "tool", "user"]
    assert "no result" in got[2]["content"]


def test_images() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    [got] = messages(user("1", None, [image, text("look")]))
    assert got["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "text", "text": "look"},
    ]


def test_a_damaged_transcript_ends_and_a_missing_one_is_said() -> None:
    circle = [user("1", "2", "a"), user("2", "1", "b")]
    assert brief(messages(*circle)) == ["u:a", "u:b"]
    assert messages() == []
    odd: list[Row] = [{"uuid": "9", "parentUuid": {"no": 1}, "type": "user", "message": "x"}]
    assert messages(*odd) == []
    with pytest.raises(SessionLost, match=ID):
        RUNTIME.history({}, ID)


def test_a_long_conversation_is_read_in_bounded_time() -> None:
    rows: list[Row] = [user("u0", None, "start")]
    for n in range(5_000):
        rows.append(assistant(f"a{n}", f"u{n}", text("x" * 2_500), call(f"c{n}"), message=f"m{n}"))
        rows.append(result(f"u{n + 1}", f"a{n}", f"c{n}", "y" * 2_500))
    files = transcript(*rows)
    assert sum(map(len, files.values())) > 25_000_000
    began = time.monotonic()
    assert len(RUNTIME.history(files, ID)) == 10_001
    assert time.monotonic() - began < 10
