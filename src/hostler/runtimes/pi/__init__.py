"""Pi, spoken to in its RPC mode on stdio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hostler.runtimes import programs
from hostler.runtimes.pi.codec import PiCodec
from hostler.runtimes.pi.history import history
from hostler.runtimes.pi.launch import SESSIONS, launch
from hostler.runtimes.pi.rules import NAMES
from hostler.types.runtime import Capabilities, Codec, Launch, LaunchContext, NativeFile


class Pi:
    """The Runtime of Pi."""

    name = "pi"
    wire: Literal["anthropic", "responses", "chat", "gemini"] = "chat"
    id_pattern = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    native_files = (NativeFile(f"{SESSIONS}/*_{{id}}.jsonl", "jsonl", moved="cwd"),)
    project_instructions: tuple[str, ...] = ()
    model_first: bool = True
    project_code: tuple[str, ...] = ()
    tool_names: frozenset[str] | None = frozenset((*NAMES, *NAMES.values()))
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
        skills="native",
        images=True,
        fresh=True,
        portable=True,
        questions="tool",
        reasons={"fork": "its RPC mode forks before a prompt of the user, not at the end of any turn"},
    )

    def __init__(self) -> None:
        self.codec: Codec = PiCodec()

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        if program := programs.given(options):
            return program
        if path := which("pi"):
            return programs.script(path, which)
        raise programs.missing("Pi", "`npm install -g @earendil-works/pi-coding-agent` (it needs Node 22.19 or newer)")

    def launch(self, ctx: LaunchContext) -> Launch:
        return launch(ctx)

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        return None

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return history(files, native_id)


RUNTIME = Pi()
