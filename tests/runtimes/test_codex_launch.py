"""How Codex is started, and what its rollout file tells."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from tests.runtimes.recorded import context

from hostler.runtimes import runtime_for
from hostler.runtimes.codex import RUNTIME
from hostler.runtimes.codex.launch import approval_policy, sandbox_policy, toml
from hostler.types.errors import CapabilityUnsupported
from hostler.types.runtime import Harness

CONFIG = "/home/agent/.codex/config.toml"


def config(**rules: Any) -> dict[str, Any]:
    return tomllib.loads(RUNTIME.launch(context(**rules)).files[CONFIG])


def test_it_is_the_runtime_of_its_name() -> None:
    assert runtime_for(Harness.CODEX) is RUNTIME


def test_secrets_are_in_no_argument_and_no_file() -> None:
    launch = RUNTIME.launch(context(tool_url="http://tools.invalid/mcp", tool_token="a-tool-token", instructions="Be."))
    assert launch.argv == ("agent", "app-server")
    assert {**launch.env, "CODEX_SQLITE_HOME": ""} == {
        "CODEX_HOME": "/home/agent/.codex",
        "CODEX_SQLITE_HOME": "",
        "HOSTLER_MODEL_KEY": "a-token",
        "HOSTLER_TOOL_KEY": "a-tool-token",
    }
    assert not any("a-token" in text or "a-tool-token" in text for text in launch.files.values())


def test_a_home_in_another_place_has_an_index_of_its_own() -> None:
    places = [RUNTIME.launch(context(home=home)).env["CODEX_SQLITE_HOME"] for home in ("/a", "/b", "/a")]
    assert places[0] == places[2] != places[1]
    assert places[0].startswith("/a/.codex/")


def test_the_configuration() -> None:
    made = config(tool_url="http://tools.invalid/mcp", tool_token="x", mcp_servers={"a b": {"command": "serve"}})
    provider = made["model_providers"]["hostler"]
    assert (made["model"], made["model_provider"]) == ("scripted", "hostler")
    assert (provider["base_url"], provider["wire_api"]) == ("http://model.invalid/v1", "responses")
    assert made["mcp_servers"]["host"]["bearer_token_env_var"] == "HOSTLER_TOOL_KEY"
    assert made["mcp_servers"]["a b"]["default_tools_approval_mode"] == "approve"
    assert "projects" not in made  # to name a project would be to trust it, or to hide its AGENTS.md
    assert "web_search" not in made
    assert config(permissions="read-only")["web_search"] == "disabled"


def test_what_the_caller_adds_does_not_undo_what_hostler_needs() -> None:
    given = {"model_context_window": 1000, "model_provider": "evil", "features": {"hooks": True, "fast_mode": False}}
    made = config(options={"config": given})
    assert made["model_context_window"] == 1000
    assert made["model_provider"] == "hostler"
    assert (made["features"]["hooks"], made["features"]["fast_mode"]) == (False, False)


def test_tools_are_switched_off_or_the_start_is_refused() -> None:
    made = config(disable_tools=("bash", "web_search"))
    assert (made["features"]["shell_tool"], made["web_search"]) == (False, "disabled")
    with pytest.raises(CapabilityUnsupported, match="'edit'"):
        RUNTIME.launch(context(disable_tools=("edit",)))


def test_a_home_below_the_temporary_folder_is_refused() -> None:
    with pytest.raises(CapabilityUnsupported, match="below its temporary directory"):
        RUNTIME.launch(context(home="/tmp/x/home", tmp="/tmp/x"))


@pytest.mark.parametrize(
    ("permissions", "confined", "sandbox", "approval"),
    [
        ("full", False, "dangerFullAccess", "never"),
        ("read-only", False, "readOnly", "never"),
        ("edit", False, "workspaceWrite", "never"),
        ("ask", False, "dangerFullAccess", "untrusted"),
        ("read-only", True, "dangerFullAccess", "never"),
        ("ask", True, "dangerFullAccess", "untrusted"),
    ],
)
def test_permissions(permissions: str, confined: bool, sandbox: str, approval: str) -> None:
    ctx = context(permissions=permissions, confined=confined)
    assert (sandbox_policy(ctx)["type"], approval_policy(ctx)) == (sandbox, approval)


def test_toml_is_read_back_as_it_was() -> None:
    value = {"a": 'q"\\\n\x7f\x01 ü 🐎', "b": [1, 2.5, True], "c": {"d e": {"f": "g"}}, "h": {}}
    assert tomllib.loads(toml(value)) == value
    with pytest.raises(TypeError):
        toml({"a": None})


# ---- history ---------------------------------------------------------------------------------------------------------

THREAD = "01a227a0-a46f-7fe3-ba26-0d596376e217"
ROLLOUT = f".codex/sessions/2026/01/02/rollout-2026-01-02T03-04-05-{THREAD}.jsonl"


def item(**payload: Any) -> bytes:
    return json.dumps({"type": "response_item", "payload": payload}).encode() + b"\n"


def said(role: str, text: str, **more: Any) -> bytes:
    kind = "output_text" if role == "assistant" else "input_text"
    return item(type="message", role=role, content=[{"type": kind, "text": text}], **more)


def kinds(*names: str) -> dict[str, Any]:
    return {"internal_chat_message_metadata_passthrough": {"content_item_kinds": list(names)}}


def test_history_is_what_was_said_without_what_codex_added() -> None:
    rollout = b"".join(
        [
            b'{"type":"session_meta","payload":{}}\n',
            said("developer", "rules"),
            said("user", "<environment_context>x</environment_context>"),
            said("user", "<b>bold</b> words", **kinds("user.text")),
            said("assistant", "Let me look."),
            item(type="function_call", name="exec_command", call_id="c1", arguments='{"cmd":"ls"}'),
            item(type="custom_tool_call", name="apply_patch", call_id="c2", input="*** Begin"),
            item(type="function_call_output", call_id="c1", output="a.txt"),
            item(type="custom_tool_call_output", call_id="c2", output=[{"type": "input_text", "text": "ok"}]),
            said("assistant", "Done."),
            said("user", "thanks \u2028"),
            b'{"type":"response_item","payl',
        ]
    )
    assert RUNTIME.history({ROLLOUT: rollout}, THREAD) == [
        {"role": "user", "content": "<b>bold</b> words"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "exec_command", "arguments": '{"cmd":"ls"}'}},
                {"id": "c2", "type": "function", "function": {"name": "apply_patch", "arguments": "*** Begin"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "c2", "content": "ok"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "thanks \u2028"},
    ]


def test_history_of_another_thread_is_not_given() -> None:
    with pytest.raises(CapabilityUnsupported):
        RUNTIME.history({ROLLOUT: b""}, "01a227a0-a46f-7fe3-ba26-000000000000")
