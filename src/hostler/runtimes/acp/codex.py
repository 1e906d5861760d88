"""Codex behind its ACP adapter."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hostler.runtimes.acp.agent import FORK, STEER, AcpRuntime
from hostler.runtimes.acp.codec import Dialect
from hostler.runtimes.codex import RUNTIME as CODEX
from hostler.runtimes.codex.launch import approval_policy, config, sandbox_policy, toml
from hostler.runtimes.codex.launch import launch as codex_launch
from hostler.runtimes.jsonrpc import obj, strs
from hostler.types.runtime import Capabilities, Launch, LaunchContext

_MODES = {"dangerFullAccess": "danger-full-access", "workspaceWrite": "workspace-write", "readOnly": "read-only"}


def on_permission(ctx: LaunchContext) -> str:
    return "ask" if ctx.permissions == "ask" else "allow"


def remark(text: str) -> bool:
    """A warning of Codex to whoever sits before it."""
    return text.startswith("Model metadata for ")


def plain(update: dict[str, Any]) -> dict[str, Any]:
    """It gives its own events as the input and output of a tool."""
    given, came = obj(update.get("rawInput")), obj(update.get("rawOutput"))
    out = dict(update)
    if given.get("server") and given.get("tool"):
        out |= {"name": f"mcp__{given['server']}__{given['tool']}", "rawInput": obj(given.get("arguments"))}
    elif words := strs(given.get("command")):
        command = words[-1] if words[-2:-1] in (["-lc"], ["-c"]) else shlex.join(words)
        out["rawInput"] = {"command": command, "cwd": given.get("cwd")}
    elif "changes" in given:
        out["rawInput"] = {"changes": given["changes"]}
    if "formatted_output" in came:
        out["rawOutput"] = {"output": came["formatted_output"], "metadata": {"exit": came.get("exit_code", 0)}}
    return out


def rules(ctx: LaunchContext) -> dict[str, Any]:
    """Codex's sandbox, and when it asks; see `hostler.runtimes.codex.launch.sandbox_policy`."""
    policy = sandbox_policy(ctx)
    out: dict[str, Any] = {"sandbox_mode": _MODES[policy["type"]], "approval_policy": approval_policy(ctx)}
    if policy["type"] == "workspaceWrite":
        out["sandbox_workspace_write"] = {
            "writable_roots": policy["writableRoots"],
            "network_access": False,
            "exclude_slash_tmp": True,
            "exclude_tmpdir_env_var": True,
        }
    return out


class CodexAcp(AcpRuntime):
    """The Runtime of the adapter; what Codex is configured by, and keeps on disk, is as without it."""

    wire = "responses"
    id_pattern = CODEX.id_pattern
    native_files = CODEX.native_files
    install = "`npm install -g @zed-industries/codex-acp`"
    dialect = Dialect(servers=False, permission=on_permission, remark=remark, plain=plain, stops_when_denied=True)
    capabilities = Capabilities(
        permissions=("full", "read-only", "edit", "ask"),
        approvals=True,
        history=True,
        instructions=True,
        tools=True,
        mcp_servers=True,
        disable_tools=True,
        max_turns=True,
        effort=True,
        images=True,
        portable=True,
        questions="tool",
        reasons={"steer": STEER, "fork": FORK, "allow_deny": CODEX.capabilities.reasons["allow_deny"]},
    )

    def launch(self, ctx: LaunchContext) -> Launch:
        ctx = replace(ctx, approvals=False)  # it has no way for questions that ask for more than leave
        plan = codex_launch(ctx)
        told: dict[str, Any] = {"developer_instructions": ctx.instructions} if ctx.instructions else {}
        if ctx.effort:  # told also to a model that Codex does not know
            told |= {"model_reasoning_effort": ctx.effort, "model_supports_reasoning_summaries": True}
        files = {f"{ctx.home}/.codex/config.toml": toml({**config(ctx), **rules(ctx), **told})}
        return Launch(ctx.program, plan.env, {**plan.files, **files}, clear=plan.clear)

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return CODEX.history(files, native_id)
