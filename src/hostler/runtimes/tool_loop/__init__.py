"""The tool loop: hostler's own small agent, a worker that needs nothing installed but hostler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hostler.runtimes import programs, workers
from hostler.runtimes.tool_loop.history import history
from hostler.types.runtime import Capabilities, Codec, Launch, LaunchContext, NativeFile

FOLDER = ".hostler/tool_loop"


class ToolLoop:
    """The Runtime of the tool loop."""

    name = "tool_loop"
    wire: Literal["anthropic", "responses", "chat", "gemini"] = "chat"
    id_pattern = workers.SESSION_ID
    native_files = (NativeFile(FOLDER + "/{id}.jsonl", "jsonl"),)
    project_instructions: tuple[str, ...] = ("AGENTS.md", "CLAUDE.md")
    model_first: bool = True
    project_code: tuple[str, ...] = ()
    tool_names: frozenset[str] | None = workers.TOOLS
    capabilities = Capabilities(
        permissions=("full", "read-only", "edit", "ask"),
        approvals=True,
        steer=True,
        history=True,
        instructions=True,
        tools=True,
        mcp_servers=True,
        disable_tools=True,
        allow_deny=True,
        max_turns=True,
        effort=True,
        images=True,
        portable=True,
        questions="tool",
        fork=True,
        fresh=True,
    )

    def __init__(self) -> None:
        self.codec: Codec = workers.WorkerCodec()

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        return programs.given(options) or workers.command("tool_loop", "httpx")

    def launch(self, ctx: LaunchContext) -> Launch:
        return workers.launch(ctx, FOLDER)

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        return None

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return history(files, native_id)


RUNTIME = ToolLoop()
