"""How Claude Code is started, as far as it can be told without starting it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hostler.runtimes import available, programs, runtime_for
from hostler.runtimes.claude_code import RUNTIME
from hostler.runtimes.claude_code.tools import native_rules, normal_name
from hostler.testing.fake_runtime import FAKE
from hostler.types.errors import CapabilityUnsupported, HarnessInstallFailed
from hostler.types.runtime import Harness, Launch, LaunchContext, check_harness

TOKEN, TOOL_TOKEN = "model-token", "tool-token"


def launch(**rules: Any) -> Launch:
    place = {"home": "/h", "tmp": "/t", "workdir": "/w", "files_dir": "/f"}
    given = {"program": ("claude",), "model": "m", "model_url": "http://127.0.0.1:1", "token": TOKEN}
    return RUNTIME.launch(LaunchContext(**{**place, **given, **rules}))


def value(plan: Launch, flag: str) -> str:
    return plan.argv[plan.argv.index(flag) + 1]


def settings(plan: Launch) -> Any:
    return json.loads(plan.files[value(plan, "--settings")])


def test_nothing_secret_or_long_is_in_the_arguments() -> None:
    long = "rule " * 100_000
    server = {"type": "http", "url": "http://x", "headers": {"Authorization": "server-token"}}
    plan = launch(instructions=long, tool_url="http://u/tools", tool_token=TOOL_TOKEN, mcp_servers={"s": server})
    line = " ".join(plan.argv)
    assert not any(secret in line for secret in (TOKEN, TOOL_TOKEN, "server-token"))
    assert len(line) < 2000
    assert plan.files[value(plan, "--append-system-prompt-file")] == long
    servers = json.loads(plan.files[value(plan, "--mcp-config")])["mcpServers"]
    assert servers["host"]["headers"] == {"Authorization": f"Bearer {TOOL_TOKEN}"}
    assert servers["s"] == server
    assert all(path.startswith(("/h/", "/f/")) for path in plan.files)
    assert plan.env["ANTHROPIC_AUTH_TOKEN"] == TOKEN


def test_skills_come_from_a_plugin_outside_of_the_home() -> None:
    plan = launch(skills="/s/skills")
    plugin = value(plan, "--plugin-dir")
    assert plan.links == {f"{plugin}/skills": "/s/skills"}
    assert json.loads(plan.files[f"{plugin}/.claude-plugin/plugin.json"]) == {"name": "host"}
    assert plugin.startswith("/f/")
    assert "Skill" in settings(plan)["permissions"]["allow"]
    assert "Skill" in value(launch(skills="/s/skills", permissions="read-only"), "--tools").split(",")
    for plain in (launch(), launch(permissions="read-only")):
        assert "--plugin-dir" not in plain.argv
        assert plain.links == {}
        assert "Skill" in settings(plain)["permissions"]["deny"]


def test_no_model_but_the_sessions_own_is_asked_for() -> None:
    env = launch(model="special").env
    named = {key: value for key, value in env.items() if key.endswith("_MODEL")}
    assert len(named) >= 5
    assert set(named.values()) == {"special"}


def test_a_conversation_is_begun_or_gone_on_with() -> None:
    assert value(launch(new_id="n"), "--session-id") == "n"
    resumed = launch(resume="r", new_id="n")
    assert value(resumed, "--resume") == "r"
    assert "--session-id" not in resumed.argv
    assert "--fork-session" not in resumed.argv
    forked = launch(resume="r", new_id="n", fork_at="m")
    assert [value(forked, name) for name in ("--resume", "--resume-session-at", "--session-id")] == ["r", "m", "n"]
    assert "--fork-session" in forked.argv


@pytest.mark.parametrize(
    ("permissions", "confined", "mode", "sandboxed"),
    [
        ("full", False, "bypassPermissions", True),
        ("edit", True, "bypassPermissions", True),
        ("edit", False, "acceptEdits", False),
        ("read-only", False, "dontAsk", False),
        ("read-only", True, "bypassPermissions", True),
        ("ask", False, "manual", False),
    ],
)
def test_permissions(permissions: str, confined: bool, mode: str, sandboxed: bool) -> None:
    plan = launch(permissions=permissions, confined=confined)
    assert value(plan, "--permission-mode") == mode
    assert ("IS_SANDBOX" in plan.env) is sandboxed
    tools = value(plan, "--tools").split(",") if "--tools" in plan.argv else None
    assert (tools is None) is (permissions in ("full", "ask") or (permissions == "edit" and confined))
    if tools is not None:
        assert ("Bash" in tools) is confined  # where the mounts hold the rule
        assert ("Write" in tools) is (permissions == "edit")
    denied = settings(plan)["permissions"]["deny"]
    assert "AskUserQuestion" in denied
    assert ("WebFetch" in denied) is (permissions in ("edit", "read-only"))


def test_rules_of_the_caller_are_put_in_the_programs_words() -> None:
    given = ["bash", "bash:git *", "Bash(npm *)", "write:src/**", "edit", "mcp__x__y", "ls"]
    assert native_rules(given) == [
        "Bash",
        "Bash(git *)",
        "Bash(npm *)",
        "Edit(src/**)",
        "Edit",
        "NotebookEdit",
        "mcp__x__y",
    ]
    rules = settings(launch(allow=["bash:git *"], deny=["bash:rm *"], disable_tools=["web_search"]))["permissions"]
    assert "Bash(git *)" in rules["allow"]
    assert {"Bash(rm *)", "WebSearch"} <= set(rules["deny"])


@pytest.mark.parametrize(
    ("native", "name"),
    [
        ("Bash", "bash"),
        ("NotebookEdit", "edit"),
        ("Task", "agent"),
        ("mcp__host__add", "add"),
        ("mcp__x__y", "mcp__x__y"),
    ],
)
def test_names_of_tools(native: str, name: str) -> None:
    assert normal_name(native) == name


def test_what_it_cannot_hold_is_refused() -> None:
    with pytest.raises(CapabilityUnsupported, match="efforts"):
        launch(effort="enormous")
    with pytest.raises(CapabilityUnsupported, match="'host'"):
        launch(mcp_servers={"host": {}})


def test_transcripts_are_kept_and_leftover_configuration_is_overwritten() -> None:
    plan = launch()
    assert settings(plan)["cleanupPeriodDays"] > 10_000
    assert settings(plan)["disableAllHooks"] is True
    assert plan.files["/h/.claude/.claude.json"] == "{}"
    assert value(plan, "--setting-sources") == ""


# ---- programs and the table of runtimes ---------------------------------------------------------------------------


def test_where_the_program_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert RUNTIME.find({"program": "/my/claude"}, None) == ("/my/claude",)
    assert RUNTIME.find({"program": ["env", Path("/my/claude")]}, None) == ("env", "/my/claude")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "claude_agent_sdk", raising=False)
    assert RUNTIME.find({}, {"claude": "/usr/bin/claude"}.get) == ("/usr/bin/claude",)
    with pytest.raises(HarnessInstallFailed, match=r"hostler\[claude\]"):
        RUNTIME.find({}, lambda _: None)
    binary = tmp_path / "claude_agent_sdk" / "_bundled" / "claude"
    binary.parent.mkdir(parents=True)
    (tmp_path / "claude_agent_sdk" / "__init__.py").write_text("raise AssertionError('imported')")
    binary.touch(0o755)
    assert RUNTIME.find({}, lambda _: None) == (str(binary),)
    binary.chmod(0o644)
    assert programs.bundled("claude_agent_sdk", "_bundled", "claude") is None


def test_runtimes_are_looked_up_by_harness_by_name_and_as_themselves() -> None:
    assert runtime_for(Harness.CLAUDE_CODE) is runtime_for("claude_code") is RUNTIME
    assert runtime_for(check_harness(FAKE)) is runtime_for("fake") is FAKE
    assert "claude_code" in available()
    with pytest.raises(CapabilityUnsupported, match="claude_code"):
        runtime_for("a program of the future")
    with pytest.raises(TypeError, match="CLAUDE_CODE"):
        check_harness("claude-code")
