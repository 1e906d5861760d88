"""How Pi is started, and what its session file tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.runtimes.recorded import context

from hostler.runtimes import programs, runtime_for
from hostler.runtimes.pi import RUNTIME
from hostler.runtimes.pi.launch import server_names
from hostler.types.errors import CapabilityUnsupported, HarnessInstallFailed
from hostler.types.runtime import Harness

ID = "00000000-0000-4000-8000-000000000001"
AGENT = "/home/agent/.pi/agent"


def rules(**given: Any) -> dict[str, Any]:
    text = RUNTIME.launch(context(**given)).files["/files/pi/hostler.js"]
    loaded: dict[str, Any] = json.loads(text.partition("= ")[2].partition(";\n")[0])
    return loaded


def argument(name: str, **given: Any) -> str:
    argv = RUNTIME.launch(context(**given)).argv
    return argv[argv.index(name) + 1]


def test_it_is_the_runtime_of_its_name() -> None:
    assert runtime_for(Harness.PI) is RUNTIME


def test_how_it_is_found(tmp_path: Path) -> None:
    script = tmp_path / "pi"
    script.write_text("#!/usr/bin/env node\n")
    found = {"pi": str(script), "node": "/opt/node"}
    # In a sandbox the bare name may stand for another Node.
    assert RUNTIME.find({}, found.get) == ("/opt/node", str(script))
    assert RUNTIME.find({"program": "/my/pi"}, found.get) == ("/my/pi",)
    script.write_text("#!/bin/sh\n")
    assert RUNTIME.find({}, found.get) == programs.script(str(script), found.get) == (str(script),)
    with pytest.raises(HarnessInstallFailed, match=r"npm install -g @earendil-works/pi-coding-agent.*22\.19"):
        RUNTIME.find({}, {}.get)


def test_no_secret_is_an_argument_and_nothing_of_others_is_loaded() -> None:
    launch = RUNTIME.launch(
        context(tool_url="http://tools.invalid/mcp", tool_token="a-tool-token", instructions="Be.", skills="/skills")
    )
    assert not any("a-token" in word or "a-tool-token" in word for word in launch.argv)
    assert not any("a-token" in word or "a-tool-token" in word for word in launch.env.values())
    for switch in ("--no-approve", "--no-extensions", "--no-skills", "--no-prompt-templates"):
        assert switch in launch.argv
    assert launch.clear == (AGENT,)
    assert launch.env["PI_CODING_AGENT_DIR"] == AGENT
    assert (launch.env["PI_OFFLINE"], launch.env["PI_TELEMETRY"]) == ("1", "0")
    assert launch.env["JITI_FS_CACHE"] == "false"
    assert launch.files["/files/pi/instructions.md"] == "Be."
    settings = json.loads(launch.files[f"{AGENT}/settings.json"])
    assert (settings["defaultModel"], settings["retry"]["provider"]) == ("scripted", {"maxRetries": 0})


def test_the_model() -> None:
    made = json.loads(
        RUNTIME.launch(context(options={"limit": {"context": 7, "output": 3}})).files[f"{AGENT}/models.json"]
    )
    (provider,) = made["providers"].values()
    assert (provider["baseUrl"], provider["apiKey"]) == ("http://model.invalid/v1", "a-token")
    (model,) = provider["models"]
    assert (model["id"], model["reasoning"], model["contextWindow"], model["maxTokens"]) == ("scripted", False, 7, 3)
    assert argument("--thinking") == "off"
    assert argument("--thinking", effort="high") == "high"
    with pytest.raises(CapabilityUnsupported, match="minimal, low"):
        RUNTIME.launch(context(effort="enormous"))


def test_a_conversation_is_begun_under_a_name_and_gone_on_with_only_where_it_is() -> None:
    assert argument("--session-id", new_id=ID) == ID
    assert argument("--session", resume=ID) == ID  # --session-id would begin a new one where there is none
    assert "--session-id" not in RUNTIME.launch(context(resume=ID)).argv


@pytest.mark.parametrize(
    ("given", "tools"),
    [
        ({}, "read,bash,edit,write,mcp__*"),
        ({"permissions": "ask"}, "read,bash,edit,write,mcp__*"),
        ({"permissions": "read-only"}, "read,grep,find,ls,mcp__host__*"),
        ({"permissions": "read-only", "confined": True}, "read,grep,find,ls,bash,mcp__host__*"),
        ({"permissions": "edit"}, "read,grep,find,ls,edit,write,mcp__host__*"),
        ({"permissions": "read-only", "allow": ("bash:git *",)}, "read,grep,find,ls,mcp__host__*,bash"),
    ],
)
def test_the_tools_that_the_model_is_told_of(given: dict[str, Any], tools: str) -> None:
    assert argument("--tools", **given) == tools


def test_rules_of_the_caller() -> None:
    held = rules(permissions="edit", allow=("glob", "bash(git *)"), deny=("write:*.md",), disable_tools=("bash",))
    assert held["allow"] == [{"tool": "find", "pattern": None}, {"tool": "bash", "pattern": "git *"}]
    assert held["deny"] == [{"tool": "write", "pattern": "*.md"}, {"tool": "bash", "pattern": None}]
    assert (held["mode"], held["confined"], held["folders"]) == ("edit", False, ["/session"])
    assert argument("--exclude-tools", disable_tools=("bash", "glob"), deny=("write:*.md",)) == "bash,find"
    with pytest.raises(ValueError, match="is not a rule"):
        rules(deny=("(x)",))


def test_servers() -> None:
    servers = {
        "a-b": {"command": "x", "env": {"A": "$HOME", "B": "!ls"}, "start_timeout": 3},
        "a b": {"url": "http://x.invalid", "headers": {"H": "1"}},
    }
    held = rules(mcp_servers=servers, tool_url="http://t.invalid", tool_token="tt")["servers"]
    assert set(held) == {"host", "a_b", "a_b_"}
    assert (held["a_b"]["config"]["env"], held["a_b"]["seconds"]) == ({"A": "$$HOME", "B": "$!ls"}, 3)
    assert (held["a_b_"]["config"]["url"], held["a_b_"]["seconds"]) == ("http://x.invalid", 30)
    assert held["host"]["config"]["headers"] == {"Authorization": "Bearer tt"}
    assert server_names(context(mcp_servers=servers)) == {"a_b": "a-b", "a_b_": "a b"}
    assert "builtin:mcp" in RUNTIME.launch(context(mcp_servers=servers)).argv
    assert "builtin:mcp" not in RUNTIME.launch(context()).argv


def entry(id: str, parent: str | None, role: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "id": id, "parentId": parent, "message": {"role": role, **more}}


def test_history_is_the_way_to_the_last_entry() -> None:
    call = {"type": "toolCall", "id": "c", "name": "bash", "arguments": {"command": "ls"}}
    lost = {"type": "toolCall", "id": "d", "name": "read", "arguments": {}}
    image = {"type": "image", "mimeType": "image/png", "data": "AA=="}
    lines = [
        {"type": "session", "version": 3, "id": ID, "cwd": "/session"},
        entry("1", None, "system", content="x"),
        entry("2", "1", "user", content=[{"type": "text", "text": "look"}, image]),
        entry("3", "2", "assistant", content=[], stopReason="error"),
        entry("dead", "2", "assistant", content=[{"type": "text", "text": "no"}], stopReason="stop"),
        entry("4", "3", "assistant", content=[{"type": "text", "text": "so"}, call, lost], stopReason="toolUse"),
        entry("5", "4", "toolResult", toolCallId="c", content=[{"type": "text", "text": "a.txt"}]),
        {"type": "compaction", "id": "6", "parentId": "5", "summary": "s"},
        entry("7", "6", "user", content="and?"),
        entry("8", "7", "assistant", content=[{"type": "text", "text": "done"}], stopReason="stop"),
    ]
    content = b"\n".join(json.dumps(line).encode() for line in lines) + b'\n{"torn'
    messages = RUNTIME.history({f".pi/sessions/2026_{ID}.jsonl": content}, ID)
    assert messages == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        },
        {
            "role": "assistant",
            "content": "so",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}},
                {"id": "d", "type": "function", "function": {"name": "read", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "d", "content": "The transcript holds no result of this call."},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "done"},
    ]
    assert RUNTIME.history({f"x_{ID}.jsonl": b""}, ID) == []
    with pytest.raises(CapabilityUnsupported, match=ID):
        RUNTIME.history({}, ID)
