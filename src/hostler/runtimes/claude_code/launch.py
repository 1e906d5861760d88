"""How Claude Code is started: everything secret or long in files and environment, its configuration written anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...types.errors import CapabilityUnsupported
from ...types.runtime import Launch, LaunchContext, start_timeout
from . import tools

EFFORTS = ("low", "medium", "high", "xhigh", "max")
SKILLS = "host"  # the plugin whose skills are the app's
_TOOL_MS = 6 * 3600 * 1000
_KEEP_DAYS = 36500  # it deletes transcripts that are older than this at start-up; hostler keeps sessions, not it


def launch(ctx: LaunchContext) -> Launch:
    """Arguments, environment and files for one process that takes many turns on stdin."""
    files = {
        f"{ctx.files_dir}/claude-settings.json": json.dumps(settings(ctx)),
        f"{ctx.home}/.claude/.claude.json": "{}",  # what the agent may have put there is gone
    }
    argv = [*ctx.program, "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
    argv += ["--include-partial-messages", "--forward-subagent-text", "--model", ctx.model]
    # Project instructions are read from the added directory; settings, hooks, skills and agents of a project never are.
    argv += ["--setting-sources", "", "--settings", f"{ctx.files_dir}/claude-settings.json"]
    argv += ["--add-dir", ctx.workdir, "--strict-mcp-config"]
    if ctx.resume:
        argv += ["--resume", ctx.resume]
        if ctx.fork_at and ctx.new_id:
            argv += ["--resume-session-at", ctx.fork_at, "--fork-session", "--session-id", ctx.new_id]
    elif ctx.new_id:
        argv += ["--session-id", ctx.new_id]
    if ctx.instructions:
        files[f"{ctx.files_dir}/claude-instructions.md"] = ctx.instructions
        argv += ["--append-system-prompt-file", f"{ctx.files_dir}/claude-instructions.md"]
    # Else the first launch's instructions would be used for ever, whatever a later one says.
    argv += ["--system-prompt-snapshot", "off"]
    if servers := _servers(ctx):
        files[f"{ctx.files_dir}/claude-mcp.json"] = json.dumps({"mcpServers": servers})
        argv += ["--mcp-config", f"{ctx.files_dir}/claude-mcp.json"]
    argv += _permissions(ctx)
    links: dict[str, str] = {}
    if ctx.skills:
        # A plugin of ours, outside of the home: what an agent puts into its home is offered to nobody.
        files[f"{ctx.files_dir}/{SKILLS}/.claude-plugin/plugin.json"] = json.dumps({"name": SKILLS})
        links[f"{ctx.files_dir}/{SKILLS}/skills"] = ctx.skills
        argv += ["--plugin-dir", f"{ctx.files_dir}/{SKILLS}"]
    if ctx.max_turns is not None:
        argv += ["--max-turns", str(ctx.max_turns)]
    if ctx.effort is not None:
        if ctx.effort not in EFFORTS:
            raise CapabilityUnsupported(f"Claude Code knows the efforts {', '.join(EFFORTS)}, not {ctx.effort!r}.")
        argv += ["--effort", ctx.effort]
    return Launch(tuple(argv), environment(ctx), files, links=links)


def _permissions(ctx: LaunchContext) -> list[str]:
    beside = [part for folder in ctx.beside for part in ("--add-dir", folder)]
    # Where somebody can be asked, its questions come as requests for leave. What else asks for leave the codec refuses,
    # as "none" does, but under "ask".
    prompts = ["--permission-prompt-tool", "stdio"] if ctx.approvals else ["--permission-prompts", "none"]
    match ctx.permissions:
        case "full":
            return ["--permission-mode", "bypassPermissions", *prompts]
        case "edit" if ctx.confined:
            return ["--permission-mode", "bypassPermissions", *prompts]
        case "edit":
            names = ",".join((*tools.READERS, *tools.WRITERS, *_more(ctx)))
            return [*beside, "--tools", names, "--permission-mode", "acceptEdits", *prompts]
        case "read-only" if ctx.confined:  # its shell can change nothing
            names = ",".join((*tools.READERS, "Bash", "Agent", *([tools.ASKS] if ctx.approvals else [])))
            return ["--tools", names, "--permission-mode", "bypassPermissions", *prompts]
        case "read-only":
            names = ",".join((*tools.READERS, *_more(ctx)))
            mode = "manual" if ctx.approvals else "dontAsk"  # which refuses questions, too
            return ["--tools", names, "--permission-mode", mode, *prompts]
        case "ask":
            return [*beside, "--permission-mode", "manual", "--permission-prompt-tool", "stdio"]


def _more(ctx: LaunchContext) -> list[str]:
    return ["Agent", *(["Skill"] if ctx.skills else []), *([tools.ASKS] if ctx.approvals else [])]


def settings(ctx: LaunchContext) -> dict[str, Any]:
    allow = [tools.HOST, *tools.native_rules(ctx.allow)]
    deny = [
        *tools.UNATTENDED,
        *([] if ctx.approvals else [tools.ASKS]),
        *tools.native_rules((*ctx.deny, *ctx.disable_tools)),
    ]
    if ctx.skills:
        allow.append("Skill")
    else:
        deny.append("Skill")
    if ctx.permissions in ("edit", "read-only"):
        allow += tools.READERS
        deny += tools.NETWORK
    return {
        "permissions": {"allow": allow, "deny": deny},
        "cleanupPeriodDays": _KEEP_DAYS,
        "disableAllHooks": True,
        "skillOverrides": dict.fromkeys(tools.VENDOR_SKILLS, "off"),
        "disableSkillShellExecution": True,  # a skill is text; what it has the agent do goes through the agent's tools
        "skipWebFetchPreflight": True,  # it would ask the vendor about every address
    }


def _servers(ctx: LaunchContext) -> dict[str, Any]:
    servers = {name: _server(server) for name, server in ctx.mcp_servers.items()}
    if "host" in servers:
        raise CapabilityUnsupported("The MCP server name 'host' is hostler's own in Claude Code; name it otherwise.")
    if ctx.tool_url:
        servers["host"] = {
            "type": "http",
            "url": ctx.tool_url,
            "headers": {"Authorization": f"Bearer {ctx.tool_token}"},
        }
    return servers


def _server(spec: Mapping[str, Any]) -> dict[str, Any]:
    kind = {"type": "http"} if "url" in spec else {}  # without one it would leave the server out, and say nothing
    return {**kind, **{part: value for part, value in spec.items() if part != "start_timeout"}}


def environment(ctx: LaunchContext) -> Mapping[str, str]:
    models = ("SMALL_FAST", "DEFAULT_HAIKU", "DEFAULT_SONNET", "DEFAULT_OPUS", "DEFAULT_FABLE")
    env = {f"ANTHROPIC_{kind}_MODEL": ctx.model for kind in models} | {
        "HOME": ctx.home,
        "TMPDIR": ctx.tmp,
        "CLAUDE_CONFIG_DIR": f"{ctx.home}/.claude",
        "ANTHROPIC_BASE_URL": ctx.model_url,
        "ANTHROPIC_AUTH_TOKEN": ctx.token,
        "CLAUDE_CODE_SUBAGENT_MODEL": ctx.model,
        "CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
        # Nothing but the model's address is called, and nothing but home and workspace is touched.
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_AUTO_CONNECT_IDE": "0",
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
        # A turn ends with its result: nothing of it goes on behind.
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        "CLAUDE_CODE_DISABLE_CRON": "1",
        "CLAUDE_CODE_DISABLE_WORKFLOWS": "1",
        "CLAUDE_CODE_DISABLE_BUNDLED_SKILLS": "1",
        "CLAUDE_CODE_MCP_AUTO_BACKGROUND_MS": "0",
        # The caller's tools, and the person whom they may ask, take the time that they need; the host has the deadline.
        "CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT": "0",
        "MCP_TOOL_TIMEOUT": str(_TOOL_MS),
        "MCP_TIMEOUT": str(int(1000 * max(map(start_timeout, ctx.mcp_servers.values()), default=30))),
        # A gateway need not know the vendor's betas, and the caller's tools are offered at once, not after a search.
        "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
        "ENABLE_TOOL_SEARCH": "0",
    }
    if ctx.permissions == "full" or (ctx.permissions != "ask" and ctx.confined):
        env["IS_SANDBOX"] = "1"  # else root is refused
    return env
