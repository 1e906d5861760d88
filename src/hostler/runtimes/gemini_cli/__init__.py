"""Gemini CLI, spoken to in the Agent Client Protocol on stdio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hostler.runtimes import programs
from hostler.runtimes.acp.codec import AcpCodec, Dialect
from hostler.runtimes.gemini_cli.history import history
from hostler.runtimes.gemini_cli.launch import CHATS, HOST_PREFIX, NAMES, launch, on_permission, renamed
from hostler.runtimes.gemini_cli.words import before, cut, failure, loaded, mode, plain
from hostler.types.runtime import Capabilities, Codec, Folded, Launch, LaunchContext, NativeFile


class GeminiCodec(AcpCodec):
    """The protocol, with the names that Gemini CLI can have for MCP servers."""

    def start(self, ctx: LaunchContext) -> Folded:
        return super().start(renamed(ctx))


class GeminiCli:
    """The Runtime of Gemini CLI."""

    name = "gemini_cli"
    wire: Literal["anthropic", "responses", "chat", "gemini"] = "gemini"
    id_pattern = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    native_files = (NativeFile(f"{CHATS}/session-*-{{id:8}}.jsonl", "jsonl"),)
    project_instructions: tuple[str, ...] = ("GEMINI.md", "AGENTS.md")
    model_first: bool = True
    project_code: tuple[str, ...] = (".gemini",)
    tool_names: frozenset[str] | None = frozenset((*NAMES, *NAMES.values()))
    capabilities = Capabilities(
        permissions=("full", "read-only", "edit", "ask"),
        approvals=True,
        history=True,
        instructions=True,
        tools=True,
        mcp_servers=True,
        disable_tools=True,
        allow_deny=True,
        max_turns=True,
        images=True,
        portable=True,
        questions="tool",
        tells_inputs=False,
        wants_objects=True,
        reasons={
            "tells_inputs": "over ACP it tells a title of such a call",
            "steer": "over ACP a second prompt ends the first",
            "effort": "it has no switch for it: thinking is set by the model's name",
            "fork": "over ACP it cannot be told a place to fork at",
        },
    )

    def __init__(self) -> None:
        self.codec: Codec = GeminiCodec(
            Dialect(
                host_prefix=HOST_PREFIX,
                mode=mode,
                permission=on_permission,
                failure=failure,
                plain=plain,
                loaded=loaded,
                silent=True,
                cut=cut,
                before=before,
            )
        )

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        if program := programs.given(options):
            return program
        if path := which("gemini"):
            return programs.script(path, which)
        raise programs.missing("Gemini CLI", "`npm install -g @google/gemini-cli` (it needs Node 20 or newer)")

    def launch(self, ctx: LaunchContext) -> Launch:
        return launch(ctx)

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        return None

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return history(files, native_id)


RUNTIME = GeminiCli()
