"""OpenCode, spoken to in the Agent Client Protocol on stdio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hostler.runtimes import programs
from hostler.runtimes.acp.codec import AcpCodec, Dialect
from hostler.runtimes.opencode.history import history
from hostler.runtimes.opencode.launch import DATABASE, HOST_PREFIX, failed_server, failure, launch, on_permission
from hostler.types.runtime import Capabilities, Codec, Launch, LaunchContext, NativeFile


class OpenCode:
    """The Runtime of OpenCode."""

    name = "opencode"
    wire: Literal["anthropic", "responses", "chat", "gemini"] = "chat"
    id_pattern = r"ses_[A-Za-z0-9]{1,64}"
    native_files = (NativeFile(DATABASE, "sqlite", moved="update session set directory = :workdir"),)
    project_instructions: tuple[str, ...] = ()
    model_first: bool = True
    project_code: tuple[str, ...] = (".opencode/plugin", ".opencode/plugins")
    tool_names: frozenset[str] | None = None
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
        portable=True,
        fresh=True,
        reasons={
            "fork": "over ACP a fork takes no place in the conversation; a new one is told the transcript",
        },
        questions="tool",
        sub_agent_header="x-parent-session-id",
    )

    def __init__(self) -> None:
        self.codec: Codec = AcpCodec(
            Dialect(
                names_tools=True,
                host_prefix=HOST_PREFIX,
                steers=True,
                keeps_cwd=True,
                servers=False,
                fresh=True,
                commands=True,
                permission=on_permission,
                failure=failure,
                failed_server=failed_server,
            )
        )

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        if program := programs.given(options):
            return program
        if path := which("opencode"):
            return (path,)
        raise programs.missing("OpenCode", "`npm install -g opencode-ai`")

    def launch(self, ctx: LaunchContext) -> Launch:
        return launch(ctx)

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        return None

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        return history(files, native_id)


RUNTIME = OpenCode()
