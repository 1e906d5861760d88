"""Codex, driven through its app-server on stdio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hostler.runtimes.codex import history as _history
from hostler.runtimes.codex import launch as _launch
from hostler.runtimes.codex.codec import CodexCodec
from hostler.runtimes.codex.output import strict
from hostler.types.runtime import Capabilities, Codec, Launch, LaunchContext, NativeFile


class Codex:
    """The Runtime of Codex."""

    name = "codex"
    wire: Literal["anthropic", "responses", "chat", "gemini"] = "responses"
    id_pattern = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    project_instructions: tuple[str, ...] = ()
    model_first: bool = True
    project_code: tuple[str, ...] = ()
    tool_names: frozenset[str] | None = None
    native_files = (NativeFile(".codex/sessions/**/rollout-*-{id}.jsonl", "jsonl"),)
    capabilities = Capabilities(
        permissions=("full", "read-only", "edit", "ask"),
        approvals=True,
        steer=True,
        history=True,
        instructions=True,
        tools=True,
        mcp_servers=True,
        disable_tools=True,
        max_turns=True,
        effort=True,
        output="schema",
        skills="native",
        images=True,
        portable=True,
        fork=True,
        reasons={
            "allow_deny": "it has no rules for single tools of its own; hostler holds those for tools of the app",
        },
        questions="native",
        sub_agent_header="x-openai-subagent",
    )
    codec: Codec = CodexCodec()

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        return _launch.find(options, which)

    def launch(self, ctx: LaunchContext) -> Launch:
        return _launch.launch(ctx)

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        return "prompt" if strict(schema) is not None else None

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return _history.history(files, native_id)


RUNTIME = Codex()
