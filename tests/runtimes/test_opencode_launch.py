"""How OpenCode is started, and what its database tells."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.runtimes.recorded import context

from hostler.runtimes import runtime_for
from hostler.runtimes.opencode import RUNTIME
from hostler.runtimes.opencode.launch import failed_server, permission
from hostler.types.errors import CapabilityUnsupported, HarnessInstallFailed
from hostler.types.runtime import Harness

CONFIG = "/files/config/opencode/opencode.json"


def config(**rules: Any) -> dict[str, Any]:
    return json.loads(RUNTIME.launch(context(**rules)).files[CONFIG])  # type: ignore[no-any-return]


def test_it_is_the_runtime_of_its_name() -> None:
    assert runtime_for(Harness.OPENCODE) is RUNTIME


def test_it_is_found_where_it_is_named_or_on_path() -> None:
    assert RUNTIME.find({"program": "/x/opencode"}, lambda name: None) == ("/x/opencode",)
    assert RUNTIME.find({}, lambda name: f"/bin/{name}") == ("/bin/opencode",)
    with pytest.raises(HarnessInstallFailed, match="opencode-ai"):
        RUNTIME.find({}, lambda name: None)


def test_secrets_are_in_no_argument_and_no_variable() -> None:
    launch = RUNTIME.launch(context(tool_url="http://tools.invalid/mcp", tool_token="a-tool-token"))
    assert launch.argv == ("agent", "acp", "--print-logs", "--log-level", "WARN")
    assert not any("a-token" in value or "a-tool-token" in value for value in launch.env.values())
    made = json.loads(launch.files[CONFIG])
    assert made["provider"]["hostler"]["options"]["apiKey"] == "a-token"
    assert made["mcp"]["host"]["headers"] == {"Authorization": "Bearer a-tool-token"}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('time=1 level=WARN run=9 message="server unavailable" key=exits type=local status=failed', "exits"),
        ('level=WARN message="server unavailable" key="my server" type=remote status=failed', "my server"),
        ('level=WARN message="server unavailable" key=later type=remote status=needs_auth', None),
        ('level=ERROR message="something else" key=exits status=failed', None),
        ("", None),
    ],
)
def test_a_server_that_did_not_start_is_in_the_log(line: str, name: str | None) -> None:
    assert failed_server(line) == name


def test_the_configuration() -> None:
    made = config(effort="high", instructions="Be.", options={"limit": {"context": 1000, "output": 100}})
    assert made["model"] == made["small_model"] == "hostler/scripted"
    model = made["provider"]["hostler"]["models"]["scripted"]
    assert (model["options"], model["limit"]) == ({"reasoningEffort": "high"}, {"context": 1000, "output": 100})
    assert made["instructions"] == ["/session/AGENTS.md", "/session/CLAUDE.md", "/files/instructions.md"]
    assert RUNTIME.launch(context(instructions="Be.")).files["/files/instructions.md"] == "Be."


def test_the_rules_are_read_last_and_hold_for_every_agent() -> None:
    rules = json.loads(RUNTIME.launch(context(permissions="read-only")).env["OPENCODE_CONFIG_CONTENT"])
    assert rules["permission"]["*"] == "deny"
    assert all(rules["agent"][name]["permission"] == rules["permission"] for name in ("build", "plan", "general"))
    assert rules["agent"]["title"] == {"disable": True}


def decided(rules: dict[str, Any], tool: str, pattern: str = "x") -> str:
    """OpenCode's own rule: the last that matches holds."""
    from fnmatch import fnmatchcase

    action = "ask"
    for name, value in rules.items():
        if fnmatchcase(tool, name):
            for glob, verdict in value.items() if isinstance(value, dict) else [("*", value)]:
                action = verdict if fnmatchcase(pattern, glob) else action
    return action


@pytest.mark.parametrize(
    ("permissions", "confined", "expected"),
    [
        ("full", False, {"bash": "allow", "edit": "allow", "webfetch": "allow", "external_directory": "allow"}),
        ("read-only", False, {"bash": "deny", "edit": "deny", "webfetch": "deny", "read": "allow", "other_x": "deny"}),
        ("edit", False, {"bash": "deny", "edit": "allow", "webfetch": "deny", "external_directory": "deny"}),
        ("edit", True, {"bash": "allow", "edit": "allow", "webfetch": "deny", "external_directory": "allow"}),
        ("read-only", True, {"bash": "allow", "edit": "deny", "webfetch": "deny"}),
        ("ask", False, {"bash": "ask", "edit": "ask", "read": "allow", "task": "deny", "other_x": "ask"}),
    ],
)
def test_permissions(permissions: str, confined: bool, expected: dict[str, str]) -> None:
    rules = permission(context(permissions=permissions, confined=confined))
    assert {tool: decided(rules, tool) for tool in expected} == expected
    assert decided(rules, "host_look") == "allow"


@pytest.mark.parametrize(("mode", "outside"), [("edit", "deny"), ("ask", "ask")])
def test_results_may_be_read_as_the_workspace_may(mode: str, outside: str) -> None:
    rules = permission(context(permissions=mode, artifacts="/s/a-1/artifacts"))
    assert decided(rules, "external_directory", "/s/a-1/artifacts/tool-results/look/1.json") == "allow"
    assert decided(rules, "external_directory", "/s/a-1/private/x") == outside


def test_skills_may_be_read_and_not_changed() -> None:
    assert config(skills="/s/a-1/skills")["skills"] == {"paths": ["/s/a-1/skills"]}
    assert "skills" not in config()
    for mode, outside in (("edit", "deny"), ("ask", "ask")):
        rules = permission(context(permissions=mode, skills="/s/a-1/skills"))
        assert decided(rules, "external_directory", "/s/a-1/skills/x/SKILL.md") == "allow"
        assert decided(rules, "external_directory", "/etc/passwd") == outside
    edit = permission(context(permissions="edit", skills="/s/a-1/skills"))
    for root in ("s/a-1/skills/x", "../a-1/skills/x", "../../../s/a-1/skills/x"):
        assert decided(edit, "edit", root) == "deny"
    assert decided(edit, "edit", "skills/x") == decided(edit, "edit", "src/a.py") == "allow"
    assert decided(permission(context(permissions="edit", skills="/skills")), "edit", "skills/x") == "allow"  # a mount


def test_rules_of_the_caller() -> None:
    rules = permission(
        context(
            permissions="ask",
            allow=("bash:git *", "bash(echo *)", "write"),
            deny=("bash:git push*",),
            disable_tools=("web_fetch",),
        )
    )
    assert decided(rules, "bash", "git status") == "allow"
    assert decided(rules, "bash", "git push now") == "deny"
    assert decided(rules, "bash", "echo hi") == "allow"
    assert decided(rules, "bash", "rm x") == "ask"
    assert decided(rules, "edit") == "allow"
    assert decided(rules, "webfetch") == "deny"
    with pytest.raises(ValueError, match="not a rule"):
        permission(context(allow=("(",)))


def test_a_denied_command_is_denied_behind_other_words() -> None:
    rules = permission(context(deny=("bash:rm *",), allow=("bash:git *",)))
    for command in ("rm x", "X=1 rm x", "/bin/rm x", "\\rm x", "sh -c 'rm x'", 'sh -c "rm x"', "timeout 5 rm x"):
        assert decided(rules, "bash", command) == "deny"
    for command in ("ls", "farm x", "git status", "rmdir x"):
        assert decided(rules, "bash", command) == "allow"


def test_a_path_is_named_from_any_root_above_the_workspace() -> None:
    rules = permission(context(workdir="/home/ada/barn", deny=("edit:secret/**", "read:/etc/*")))
    for path in (
        "secret/x",
        "barn/secret/x",
        "ada/barn/secret/x",
        "home/ada/barn/secret/a/x",
        "/home/ada/barn/secret/x",
    ):
        assert decided(rules, "edit", path) == "deny"
    for path in ("open/secret/x", "secrets/x", "bob/secret/x"):
        assert decided(rules, "edit", path) == "allow"
    assert decided(rules, "read", "etc/passwd") == decided(rules, "read", "/etc/passwd") == "deny"


# ---- history ---------------------------------------------------------------------------------------------------------


def database(path: Path, *, wal: bool) -> bytes:
    db = sqlite3.connect(path)
    if wal:
        db.execute("pragma journal_mode=wal")
    db.execute("create table message (id text, session_id text, time_created integer, data text)")
    db.execute("create table part (id text, message_id text, data text)")

    def add(number: int, session: str, role: str, *parts: dict[str, Any]) -> None:
        db.execute("insert into message values (?,?,?,?)", (f"m{number}", session, number, json.dumps({"role": role})))
        for at, part in enumerate(parts):
            db.execute("insert into part values (?,?,?)", (f"p{number}{at}", f"m{number}", json.dumps(part)))

    done = {"status": "completed", "input": {"command": "ls"}, "output": "a.txt"}
    failed = {"status": "error", "input": {}, "error": "no"}
    image = {"type": "file", "mime": "image/png", "url": "data:image/png;base64,AAAA"}
    add(
        1,
        "ses_A",
        "user",
        {"type": "text", "text": "look"},
        {"type": "text", "text": "hidden", "synthetic": True},
        image,
    )
    add(
        2,
        "ses_A",
        "assistant",
        {"type": "step-start"},
        {"type": "text", "text": "I look."},
        {"type": "tool", "tool": "bash", "callID": "c1", "state": done},
        {"type": "tool", "tool": "read", "callID": "c2", "state": failed},
    )
    add(3, "ses_A", "assistant")
    add(4, "ses_A", "assistant", {"type": "text", "text": "Done."})
    add(5, "ses_B", "user", {"type": "text", "text": "another session"})
    db.commit()
    if wal:
        db.execute("pragma wal_checkpoint(truncate)")
    db.close()
    return path.read_bytes()


@pytest.mark.parametrize("wal", [False, True])
def test_history(tmp_path: Path, wal: bool) -> None:
    content = database(tmp_path / "db", wal=wal)
    messages = RUNTIME.history({".local/share/opencode/opencode.db": content}, "ses_A")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}},
                {"id": "c2", "type": "function", "function": {"name": "read", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
        {"role": "assistant", "content": "Done."},
    ]


@pytest.mark.parametrize("files", [{}, {"opencode.db": b"not a database at all, by no means"}])
def test_history_that_cannot_be_read(files: dict[str, bytes]) -> None:
    with pytest.raises(CapabilityUnsupported):
        RUNTIME.history(files, "ses_A")
