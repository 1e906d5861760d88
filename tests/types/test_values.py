"""State, Options, events and harness names: what they accept and what they say of the rest."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.types import events as ev
from hostler.types.errors import StateIncompatible
from hostler.types.options import HarnessOptions, Options, OptionsDict
from hostler.types.result import ErrorInfo, FileRef, Persistence, Result, Usage
from hostler.types.runtime import Harness, acp_agent, check_harness
from hostler.types.state import State

STATE = State("claude_code", "0b6d-1", "chat/7 é", "/w", "litellm_proxy/coder")


def test_state_round_trip() -> None:
    raw = STATE.dumps()
    assert State.loads(raw) == STATE
    assert State.loads(raw.decode()) == STATE
    assert json.loads(raw)["harness"] == "claude_code"
    none = State("codex", None, "k", "/w", None)
    assert State.loads(none.dumps()) == none


@pytest.mark.parametrize("cut", range(len(STATE.dumps())))
def test_a_torn_state_is_refused(cut: int) -> None:
    with pytest.raises(StateIncompatible):
        State.loads(STATE.dumps()[:cut])


@pytest.mark.parametrize(
    "change",
    [
        {"native_id": "../../etc/passwd"},
        {"native_id": "a/b"},
        {"native_id": "-rf"},
        {"native_id": "x" * 300},
        {"native_id": 7},
        {"harness": ""},
        {"session": "x" * 513},
        {"session": "a\0b"},
        {"workdir": None},
        {"version": 2},
        {"version": "1"},
        {"model": []},
    ],
)
def test_a_forged_state_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(StateIncompatible):
        State.loads(json.dumps({**json.loads(STATE.dumps()), **change}))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        State.loads(raw)
    except StateIncompatible as error:
        assert str(error)


def test_huge_and_deep_states_are_refused() -> None:
    with pytest.raises(StateIncompatible):
        State.loads(b"[" * 60_000)
    with pytest.raises(StateIncompatible, match="bytes"):
        State.loads(b"x" * 100_000)


@pytest.mark.parametrize(
    ("given_name", "meant"),
    [
        ("claude_code", "CLAUDE_CODE"),
        ("claude-code", "CLAUDE_CODE"),
        ("claude", "CLAUDE_CODE"),
        ("Codex", "CODEX"),
        ("opencod", "OPENCODE"),
    ],
)
def test_a_harness_that_is_none_names_the_member_meant(given_name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"Harness.{meant}"):
        check_harness(given_name)


def test_harnesses() -> None:
    assert check_harness(Harness.CODEX) is Harness.CODEX
    agent = acp_agent(["my-agent", "--acp"])
    assert check_harness(agent) is agent
    with pytest.raises(TypeError, match="list"):
        acp_agent("my-agent")
    with pytest.raises(TypeError):
        check_harness(None)


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"modle": "x"}, TypeError, "model"),
        ({"permissions": "readonly"}, ValueError, "read-only"),
        ({"on_busy": "wait"}, ValueError, "queue"),
        ({"max_turns": 0}, ValueError, "max_turns"),
        ({"max_turns": 1.5}, ValueError, "max_turns"),
        ({"timeout": True}, ValueError, "timeout"),
        ({"max_cost": -1}, ValueError, "max_cost"),
        ({"deny": "Bash"}, TypeError, "list"),
        ({"options": "program"}, TypeError, "dict"),
        ({"mcp_servers": {"x": {}}}, TypeError, "'x' is not"),
        ({"mcp_servers": {"x": "npx it"}}, TypeError, "'x' is not"),
        ({"mcp_servers": {"x": {"command": ["npx", "it"]}}}, TypeError, "'x' is not"),
        ({"mcp_servers": {"x": {"command": "npx", "args": "it"}}}, TypeError, "'x' is not"),
        ({"mcp_servers": {"x": {"url": "http://x", "headers": ["a"]}}}, TypeError, "'x' is not"),
    ],
)
def test_bad_options_name_themselves(options: dict[str, object], error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        Options.of(options)


def test_rules_are_json_and_secrets_are_not_among_them() -> None:
    options = Options.of({"api_key": "planted", "metadata": {"a": 1}, "deny": ["Bash"]})
    assert "planted" not in json.dumps(options.rules())
    assert "planted" not in repr(options)
    with pytest.raises(TypeError, match="JSON"):
        Options.of({"metadata": {"a": object()}}).rules()


EVENTS: list[ev.Event] = [
    ev.Text("i", "a\u2028b\0"),
    ev.Reasoning("i", "r"),
    ev.Retract("i"),
    ev.ToolCall("c", "bash", "Bash", {"command": "ls"}, True, "p"),
    ev.ToolResult("c", "out", True),
    ev.FileChange("a.txt", "modified", "diff"),
    ev.Approval("a", "Bash", {"x": [1]}, {"user": 1}),
    ev.Compaction(10, None),
    ev.Notice("code", "message"),
    ev.Accepted({"user": "u"}, "hi"),
    ev.Started("native", 3, True),
    ev.ModelCall("m", Usage(1, 2, 3, 4, True), 0.0, "refused", 429, ErrorInfo("model_rate_limited", "slow", True)),
    ev.ModelCall("m", Usage(), None),
    ev.Answered("a", False, "no"),
    ev.CancelRequested("timeout"),
    ev.FileStaged(FileRef("/session/a", 3, "text/csv", "00"), "app"),
    ev.FileRemoved("/session/a"),
    ev.FileMoved("/session/a", "/artifacts/b"),
    ev.CallbackFailed("on_event", "boom"),
    ev.SnapshotTaken("snap_1", 3, 40, ("pipe: neither file, folder nor link",)),
    ev.SnapshotRestored("snap_1"),
    ev.Forked("other"),
    ev.CheckedOut("/persistent/a", 2, 1),
    ev.Committed("/persistent/a", "turn/a/0", ("new",), ("old",), ("gone",)),
    ev.PersistenceFailed("/persistent/a", "commit", "persistence_conflict", "both changed", ("old",)),
    ev.Done(
        Result(
            "t",
            {"a": 1},
            (ev.FileChange("a", "created", None),),
            (),
            Usage(1),
            0.0,
            "error",
            ErrorInfo("x", "y"),
            "s",
            "t",
            "forked",
            Persistence("committed", ({"dir": "/persistent/a"},)),
            (FileRef("/artifacts/a", 1, None, "ff", True),),
            ("w",),
        )
    ),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_events_survive_json(event: ev.Event) -> None:
    assert ev.event_from_dict(json.loads(json.dumps(ev.event_to_dict(event)))) == event


def as_journalled_before(event: ev.Event) -> str:
    form = {"type": ev._BY_TYPE[type(event)]}
    form |= {f.name: plain(getattr(event, f.name)) for f in fields(event) if f.name != "answer"}
    return json.dumps(form, ensure_ascii=True, separators=(",", ":"), default=repr)


def plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_events_are_journalled_as_ever(event: ev.Event) -> None:
    assert ev.event_to_json(event) == as_journalled_before(event)


# Any text, with halves of surrogate pairs; numbers of any size; keys that JSON makes strings of; what is no JSON at all.
TEXTS = st.text(st.characters(exclude_categories=()))
LEAVES = st.none() | st.booleans() | st.integers() | st.integers(2**63 - 2, 2**65) | st.floats() | TEXTS | st.uuids()
KEYS = TEXTS | st.integers() | st.floats() | st.booleans() | st.none()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(TEXTS, VALUES)
def test_whatever_an_event_holds_is_journalled_as_ever(text: str, value: Any) -> None:
    """Text for text, so that old and new rows of a journal are read alike: integers beyond 64 bits, NaN, lone surrogates."""
    for event in (
        ev.Text(text, text),
        ev.ToolCall(text, text, text, value, parent=text),
        ev.Approval(text, text, value, value),
        ev.Accepted(value, text),
        ev.FileStaged(FileRef(text, 1, None, text), text, value),
        ev.Done(Result(text, output=value, persistence=Persistence("failed", ({"path": value},)), warnings=(text,))),
    ):
        written = ev.event_to_json(event)
        assert written == as_journalled_before(event)
        assert repr(json.loads(written)) == repr(json.loads(json.dumps(ev.event_to_dict(event), default=repr)))


def test_every_event_is_tested_above() -> None:
    assert {type(e) for e in EVENTS} == set(ev._BY_TYPE)
    with pytest.raises(ValueError, match="newer"):
        ev.event_from_dict({"type": "from_the_future"})


def test_usage_adds_up() -> None:
    assert Usage(1, 2, 3, 1) + Usage(10, 20, 30, 1, True) == Usage(11, 22, 33, 2, True)


def test_options_are_declared_alike_for_type_checkers_and_at_run_time() -> None:
    names = set(OptionsDict.__annotations__)
    assert names == {field.name for field in fields(Options)}
    assert names < set(HarnessOptions.__annotations__)
    assert set(Options.RULES) < names
