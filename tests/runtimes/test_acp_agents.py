"""ACP agents of which more is known than their command, and hostler's own: recorded streams, launches, histories."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from tests.runtimes.recorded import context, replay
from tests.sessions.programs import ACP, CLAUDE_ACP, CODEX_ACP, DEEP_AGENTS, QWEN, TOOL_LOOP, Program, ids

import hostler
from hostler.harness import CapabilityUnsupported, HarnessInstallFailed
from hostler.runtimes import runtime_for
from hostler.runtimes.acp import AcpRuntime
from hostler.runtimes.acp.claude import ClaudeAcp
from hostler.runtimes.acp.codex import CodexAcp
from hostler.runtimes.acp.qwen import QwenCode
from hostler.types.events import Approval, Notice, Text, ToolCall, ToolResult
from hostler.types.runtime import CodecEvent, Ended, Frame, Identified, Unfit

OWN = (TOOL_LOOP, DEEP_AGENTS)
PROGRAMS = (*ACP, *OWN)
COMMANDS = ("echo hi > a.txt; cat a.txt", "exit 3", "perl -e 'sleep 300'")


def of(events: list[CodecEvent], *kinds: type) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


@pytest.mark.parametrize("what", ["turns", "resume", "unknown", "ask"])
@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_a_new_host_at_any_frame_says_and_hears_the_same(program: Program, what: str) -> None:
    codec, name = runtime_for(program.harness).codec, f"{program.name}-{what}"
    events, sends, state = replay(codec, name)
    assert (events, sends, state) == replay(codec, name, round_trip=True)
    assert len({send.key for send in sends}) == len(sends)
    assert len(json.dumps(state)) < 3000


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_turns_as_recorded(program: Program) -> None:
    events, _, _ = replay(runtime_for(program.harness).codec, f"{program.name}-turns")
    assert [event.stop_reason for event in of(events, Ended)] == ["done", "interrupted", "error"]
    calls = of(events, ToolCall)
    assert [(call.name, call.builtin, call.input["command"]) for call in calls] == [
        ("bash", True, command) for command in COMMANDS
    ]
    results = of(events, ToolResult)
    assert [result.id for result in results] == [call.id for call in calls]
    assert [result.is_error for result in results] == [False, True, True]
    assert "hi" in results[0].output
    ended = events.index(of(events, Ended)[0])
    assert "".join(event.delta for event in of(events[:ended], Text)).endswith("done")
    error = of(events, Ended)[-1].error
    assert "no such thing" in error.message
    # What the agent says of itself is none of the model's text.
    assert not [event for event in of(events, Text) if "Error" in event.delta or "metadata" in event.delta]


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_the_conversation_is_gone_on_with_or_said_to_be_unknown(program: Program) -> None:
    codec = runtime_for(program.harness).codec
    begun = of(replay(codec, f"{program.name}-turns")[0], Identified)
    events, _, _ = replay(codec, f"{program.name}-resume")
    assert of(events, Identified) == begun
    assert [event.stop_reason for event in of(events, Ended)] == ["done"]
    assert "".join(event.delta for event in of(events, Text)) == "again"
    events, _, _ = replay(codec, f"{program.name}-unknown")
    assert of(events, Unfit)
    assert not of(events, Ended, Text)


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_what_is_asked_and_answered(program: Program) -> None:
    events, sends, _ = replay(runtime_for(program.harness).codec, f"{program.name}-ask")
    asked = of(events, Approval)
    assert [(a.tool, a.input["input"]["command"]) for a in asked] == [
        ("bash", "echo a > a.txt"),
        ("bash", "echo b > b.txt"),
    ]
    answers = [json.loads(send.data)["result"]["outcome"] for send in sends if send.key.startswith("answer:")]
    assert [answer["outcome"] for answer in answers] == ["selected", "selected"]
    # To some a denial is the end of the turn: those are told to go on.
    told = [json.loads(send.data)["params"]["prompt"][0]["text"] for send in sends if send.key == "t1:denied"]
    assert told == (["[Not allowed: echo b > b.txt. Go on without it.]"] if program in (CODEX_ACP, QWEN) else [])
    assert [(event.stop_reason, event.error) for event in of(events, Ended)] == [("done", None)]
    assert "".join(event.delta for event in of(events, Text)).endswith("done")
    results = of(events, ToolResult)
    assert [result.is_error for result in results] == [False, True]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["claude-agent-acp"], ClaudeAcp),
        (["npx", "-y", "@agentclientprotocol/claude-agent-acp@latest"], ClaudeAcp),
        (["npx", "@zed-industries/claude-code-acp"], ClaudeAcp),
        (["node", "/opt/node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js"], ClaudeAcp),
        (["/usr/bin/codex-acp"], CodexAcp),
        (["qwen", "--acp"], QwenCode),
        (["my-agent", "--codex"], AcpRuntime),
    ],
)
def test_what_is_known_of_an_agent_by_its_command(command: list[str], kind: type) -> None:
    runtime = runtime_for(hostler.acp_agent(command))
    assert type(runtime) is kind
    assert runtime.name == "acp"
    assert runtime.find({}, str) == tuple(command)


@pytest.mark.parametrize("program", ACP, ids=ids)
def test_an_agent_that_is_not_there_says_how_to_get_it(program: Program) -> None:
    with pytest.raises(HarnessInstallFailed, match="npm install -g"):
        runtime_for(program.harness).find({}, lambda name: None)


@pytest.mark.parametrize("program", [CLAUDE_ACP, QWEN, *OWN], ids=ids)
def test_the_name_of_the_apps_own_server_is_taken(program: Program) -> None:
    runtime = runtime_for(program.harness)
    ctx = context(mcp_servers={"host": {"command": "x"}}, tool_url="http://127.0.0.1/t", tool_token="t")
    told: Any = runtime.launch if program in OWN else runtime.codec.start
    with pytest.raises(CapabilityUnsupported, match="'host'"):
        told(ctx)


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_no_secret_is_in_the_arguments(program: Program) -> None:
    runtime = runtime_for(program.harness)
    launch = runtime.launch(context(tool_url="http://127.0.0.1/t", tool_token="tool-secret", token="model-secret"))
    assert "secret" not in " ".join(launch.argv)
    assert "model-secret" not in "".join(launch.files.values())


def test_claude_is_configured_by_hostler_alone() -> None:
    runtime = runtime_for(CLAUDE_ACP.harness)
    sent = json.loads(runtime.codec.start(context()).sends[0].data)
    assert sent["method"] == "initialize"
    options = runtime.codec.start(context(permissions="read-only")).state["setup"]["_meta"]["claudeCode"]["options"]
    assert options["settingSources"] == []
    assert set(options["tools"]) == {"Read", "Glob", "Grep", "Agent"}
    confined = runtime.codec.start(context(permissions="edit", confined=True)).state
    assert "Bash" in confined["setup"]["_meta"]["claudeCode"]["options"]["tools"]
    assert (confined["mode"], confined["permission"]) == ("acceptEdits", "allow")
    assert runtime.codec.start(context(permissions="edit")).state["permission"] == "reject"
    told = runtime.codec.start(context(instructions="Be kind.")).state["setup"]["_meta"]["systemPrompt"]
    assert told == {"append": "Be kind."}
    assert runtime.launch(context()).env["ANTHROPIC_MODEL"] == "scripted"


@pytest.mark.parametrize(
    ("rules", "lines"),
    [
        ({}, ['"sandbox_mode" = "danger-full-access"', '"approval_policy" = "never"']),
        ({"permissions": "ask"}, ['"sandbox_mode" = "danger-full-access"', '"approval_policy" = "untrusted"']),
        ({"permissions": "read-only"}, ['"sandbox_mode" = "read-only"', '"approval_policy" = "never"']),
        ({"permissions": "edit"}, ['"sandbox_mode" = "workspace-write"', '"network_access" = false']),
        ({"permissions": "edit", "confined": True}, ['"sandbox_mode" = "danger-full-access"']),
        ({"instructions": "Be kind."}, ['"developer_instructions" = "Be kind."']),
    ],
)
def test_codex_holds_the_mode_by_its_configuration(rules: dict[str, Any], lines: list[str]) -> None:
    launch = runtime_for(CODEX_ACP.harness).launch(context(program=("codex-acp",), **rules))
    assert launch.argv == ("codex-acp",)
    assert all(line in launch.files["/home/agent/.codex/config.toml"] for line in lines)


def test_qwen_trusts_no_configuration_but_ours() -> None:
    launch = runtime_for(QWEN.harness).launch(context(program=("qwen", "--acp"), disable_tools=("glob",)))
    settings = json.loads(launch.files[launch.env["QWEN_CODE_SYSTEM_SETTINGS_PATH"]])
    assert settings["disableAllHooks"] is True
    assert settings["memory"]["enableManagedAutoMemory"] is False
    assert {"glob", "ask_user_question"} <= set(settings["permissions"]["deny"])
    assert "/home/agent/.qwen/skills" in launch.clear


def qwen_record(id: str, parent: str | None, kind: str, parts: list[dict[str, Any]], **more: Any) -> bytes:
    message = {"role": "user" if kind != "assistant" else "model", "parts": parts}
    return json.dumps({"uuid": id, "parentUuid": parent, "type": kind, "message": message, **more}).encode() + b"\n"


def test_the_history_of_qwen_is_its_last_branch() -> None:
    call = {"functionCall": {"id": "c1", "name": "run_shell_command", "args": {"command": "ls"}}}
    answer = {"functionResponse": {"id": "c1", "response": {"output": "a.txt"}}}
    image = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    lines = [
        qwen_record("1", None, "user", [{"text": "look"}, image], provenance="real_user"),
        qwen_record("2", "1", "assistant", [{"text": "hm", "thought": True}, {"text": "I look."}, call]),
        qwen_record("x", "2", "assistant", [{"text": "left"}]),
        qwen_record("3", "2", "tool_result", [answer]),
        qwen_record("4", "3", "system", []),
        qwen_record("5", "4", "assistant", [{"text": "done"}]),
    ]
    id = "0b0e1a5e-0000-4000-8000-000000000000"
    told = runtime_for(QWEN.harness).history({f".qwen/projects/p/chats/{id}.jsonl": b"".join(lines)}, id)
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "assistant"]
    assert told[0]["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert told[1]["content"] == "I look."
    assert told[1]["tool_calls"][0]["function"] == {"name": "run_shell_command", "arguments": '{"command": "ls"}'}
    assert told[2] == {"role": "tool", "tool_call_id": "c1", "content": "a.txt"}
    with pytest.raises(CapabilityUnsupported):
        runtime_for(QWEN.harness).history({}, id)


@pytest.mark.parametrize("program", OWN, ids=ids)
def test_a_worker_is_told_all_in_a_file(program: Program) -> None:
    runtime = runtime_for(program.harness)
    rules = {"permissions": "edit", "artifacts": "/artifacts", "folders": ("/persistent/notes",), "max_turns": 3}
    servers = {"a": {"command": "a", "start_timeout": 4}, "b": {"url": "http://b"}}
    launch = runtime.launch(context(**rules, mcp_servers=servers, tool_url="http://127.0.0.1/t", tool_token="t"))
    told = json.loads(launch.files[launch.argv[-1]])
    assert told["writable"] == ["/session", "/artifacts", "/persistent/notes"]
    assert told["servers"]["a"]["start_timeout"] == 4
    assert told["servers"]["b"]["start_timeout"] == 30
    assert told["servers"]["host"]["headers"] == {"Authorization": "Bearer t"}
    assert (told["max_turns"], told["permissions"], told["fork"]) == (3, "edit", None)


@pytest.mark.parametrize("program", OWN, ids=ids)
def test_a_fork_is_a_session_that_begins_as_another_was(program: Program) -> None:
    runtime = runtime_for(program.harness)
    ctx = context(resume="old", fork_at="6", new_id="new")
    assert json.loads(runtime.launch(ctx).files["/files/settings.json"])["fork"] == {"from": "old", "at": "6"}
    assert runtime.codec.start(ctx).state["resume"] == "new"


def test_a_server_that_did_not_start_is_said() -> None:
    codec = runtime_for(TOOL_LOOP.harness).codec
    folded = codec.fold(
        codec.start(context()).state, Frame(1, "err", b'noise\nhostler: MCP server "a\\"b" did not start: no\n')
    )
    assert [event.code for event in of(list(folded.events), Notice)] == ["mcp_server_failed"]
    assert "'a\"b'" in of(list(folded.events), Notice)[0].message


def test_deep_agents_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HarnessInstallFailed, match=r"hostler\[deepagents\]"):
        runtime_for(DEEP_AGENTS.harness).find({}, str)
