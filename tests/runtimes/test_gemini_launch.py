"""How Gemini CLI is started, and what its chat file tells."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from tests.runtimes.recorded import context

from hostler.runtimes import runtime_for
from hostler.runtimes.gemini_cli import RUNTIME
from hostler.runtimes.gemini_cli.launch import renamed, server_names
from hostler.types.errors import CapabilityUnsupported, HarnessInstallFailed
from hostler.types.runtime import Harness

ID = "0b0e1a5e-0000-4000-8000-000000000001"


def rules(**given: Any) -> dict[str, list[tuple[int, Any]]]:
    """Decision to (priority, tools), the highest first."""
    text = RUNTIME.launch(context(**given)).files["/files/gemini/rules.toml"]
    out: dict[str, list[tuple[int, Any]]] = {}
    for rule in sorted(tomllib.loads(text)["rule"], key=lambda rule: -rule["priority"]):
        out.setdefault(rule["decision"], []).append((rule["priority"], rule["toolName"]))
    return out


def test_it_is_the_runtime_of_its_name() -> None:
    assert runtime_for(Harness.GEMINI_CLI) is RUNTIME
    with pytest.raises(HarnessInstallFailed, match="npm install -g @google/gemini-cli"):
        RUNTIME.find({}, {}.get)
    assert RUNTIME.find({"program": ["node", "/my/gemini.js"]}, {}.get) == ("node", "/my/gemini.js")


def test_no_secret_is_an_argument_and_nothing_of_others_is_loaded() -> None:
    launch = RUNTIME.launch(context(tool_url="http://t.invalid", tool_token="a-tool-token", instructions="Be."))
    assert not any("a-token" in word or "a-tool-token" in word for word in launch.argv)
    assert not any("a-tool-token" in text for text in (*launch.files.values(), *launch.env.values()))
    assert launch.env["GOOGLE_GEMINI_BASE_URL"] == "http://model.invalid"
    assert launch.argv[launch.argv.index("--allowed-mcp-server-names") + 1] == "host"
    assert launch.argv[launch.argv.index("--extensions") + 1] == "none"
    settings = json.loads(launch.files["/home/agent/.gemini/settings.json"])
    assert settings["hooksConfig"] == {"enabled": False}
    assert settings["privacy"] == {"usageStatisticsEnabled": False}
    assert settings["security"]["auth"] == {"selectedType": "gemini-api-key"}
    assert launch.files["/home/agent/.gemini/HOSTLER.md"] == "Be."
    for place in (".env", ".gemini/extensions", ".gemini/policies", ".gemini/commands"):
        assert f"/home/agent/{place}" in launch.clear
    aliases = settings["modelConfigs"]["customAliases"]
    assert {alias["modelConfig"]["model"] for alias in aliases.values()} == {"scripted"}


def test_its_files_lie_where_they_lay_in_another_workspace() -> None:
    files = RUNTIME.launch(context(workdir="/elsewhere")).files
    assert json.loads(files["/home/agent/.gemini/projects.json"]) == {"projects": {"/elsewhere": "hostler"}}
    assert files["/home/agent/.gemini/tmp/hostler/.project_root"] == "/elsewhere"
    assert RUNTIME.native_files[0].pattern.startswith(".gemini/tmp/hostler/chats/")


def test_permissions() -> None:
    assert rules()["allow"] == [(1, "*")]
    ask = rules(permissions="ask")
    assert ask["ask_user"] == [(1, "*")]
    assert "read_file" in ask["allow"][0][1]
    edit = rules(permissions="edit")
    assert (500, ["write_file", "replace"]) in edit["allow"]
    assert "run_shell_command" in edit["deny"][1][1]
    assert (500, ["write_file", "replace", "run_shell_command"]) in rules(permissions="edit", confined=True)["allow"]
    read = rules(permissions="read-only")
    assert {"write_file", "replace", "run_shell_command", "web_fetch"} <= set(read["deny"][1][1])
    assert "run_shell_command" not in rules(permissions="read-only", confined=True)["deny"][1][1]
    for mode in ("full", "ask", "edit", "read-only"):
        assert "save_memory" in rules(permissions=mode)["deny"][0][1]


def test_rules_of_the_caller() -> None:
    given = {"allow": ("bash:git *",), "deny": ("write:*.md", "web_search"), "disable_tools": ('bash(rm "x")',)}
    text = RUNTIME.launch(context(**given)).files["/files/gemini/rules.toml"]
    by_priority = [rule for rule in tomllib.loads(text)["rule"] if rule["priority"] in (800, 900)]
    assert [(r["decision"], r["toolName"], r.get("commandRegex") or r.get("argsPattern")) for r in by_priority] == [
        ("allow", ["run_shell_command"], 'git\\ .*"'),
        ("deny", ["write_file"], '"(?:file_path|dir_path|path|pattern|query|url|prompt)":".*\\.md"'),
        ("deny", ["google_web_search"], None),
        ("deny", ["run_shell_command"], 'rm\\ \\\\"x\\\\""'),
    ]
    with pytest.raises(ValueError, match="is not a rule"):
        rules(deny=("(x)",))


def test_servers() -> None:
    servers = {"a_b": {"command": "x"}, "a b": {"url": "http://x.invalid"}}
    ctx = context(mcp_servers=servers, tool_url="http://t.invalid", tool_token="tt")
    assert server_names(ctx) == {"host": "host", "a-b": "a_b", "a-b-": "a b"}
    assert list(renamed(ctx).mcp_servers) == ["a-b", "a-b-"]
    # Under these modes only the app's own tools may be called.
    assert server_names(context(mcp_servers=servers, permissions="edit")) == {}


def line(**record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


def test_history_is_what_the_log_says_in_the_end() -> None:
    result = [{"functionResponse": {"id": "c", "response": {"output": "a.txt"}}}]
    call = {"id": "c", "name": "list_directory", "args": {"dir_path": "."}, "result": result}
    image = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    log = b"".join(
        [
            line(sessionId=ID, projectHash="x"),
            line(**{"$set": {"messages": [{"id": "0", "type": "user", "content": [{"text": "<session_context>x"}]}]}}),
            line(id="1", type="user", content=[{"text": "\u2060"}, {"text": "/look"}, image]),
            line(id="2", type="gemini", content="so"),
            line(id="2", type="gemini", content="so", toolCalls=[call, {"id": "d", "name": "glob", "args": {}}]),
            line(id="3", type="user", content=result),
            line(id="dead", type="user", content="undone"),
            line(**{"$rewindTo": "dead"}),
            line(id="4", type="info", content="x"),
            line(id="5", type="user", content="Your answer broke off. Go on."),
            line(id="6", type="gemini", content=[{"text": "done"}]),
            b'{"torn',
        ]
    )
    path = f".gemini/tmp/hostler/chats/session-2026-11-29T20-35-{ID[:8]}.jsonl"
    assert RUNTIME.history({path: log, path.replace("2026", "2025"): line(sessionId="other")}, ID) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "/look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        },
        {
            "role": "assistant",
            "content": "so",
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "list_directory", "arguments": '{"dir_path": "."}'},
                },
                {"id": "d", "type": "function", "function": {"name": "glob", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "d", "content": "interrupted"},
        {"role": "assistant", "content": "done"},
    ]
    with pytest.raises(CapabilityUnsupported, match=ID):
        RUNTIME.history({}, ID)
