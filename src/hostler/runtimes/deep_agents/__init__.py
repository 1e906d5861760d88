"""Deep Agents, LangChain's agent on LangGraph, in a worker that speaks ACP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from hostler.runtimes import programs, workers
from hostler.runtimes.jsonrpc import objs
from hostler.types.errors import CapabilityUnsupported
from hostler.types.runtime import Capabilities, Codec, Launch, LaunchContext, NativeFile

FOLDER = ".hostler/deep_agents"


class DeepAgents:
    """The Runtime of Deep Agents."""

    name = "deep_agents"
    wire: Literal["anthropic", "responses", "chat", "gemini"] = "chat"
    id_pattern = workers.SESSION_ID
    native_files = (
        NativeFile(FOLDER + "/checkpoints.db", "sqlite"),
        NativeFile(FOLDER + "/{id}.json"),
        NativeFile(FOLDER + "/artifacts/**/*"),
    )
    project_instructions: tuple[str, ...] = ("AGENTS.md", "CLAUDE.md")
    model_first: bool = True
    project_code: tuple[str, ...] = ()
    tool_names: frozenset[str] | None = workers.TOOLS | {"task", "write_todos"}
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
        skills="native",
        portable=True,
        questions="tool",
        sub_agent_header="x-sub-agent",
        fork=True,
        fresh=True,
    )

    def __init__(self) -> None:
        self.codec: Codec = workers.WorkerCodec()

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        if program := programs.given(options):
            return program
        try:
            return workers.command("deep_agents", "deepagents")
        except ModuleNotFoundError:
            raise programs.missing("Deep Agents", '`pip install "hostler[deepagents]"`') from None

    def launch(self, ctx: LaunchContext) -> Launch:
        return workers.launch(ctx, FOLDER, LANGSMITH_TRACING="false", LANGGRAPH_STRICT_MSGPACK="true")

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        return None

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        content = next((data for path, data in files.items() if path.endswith(f"/{native_id}.json")), None)
        try:
            return objs(json.loads(content or b""))
        except ValueError:
            raise CapabilityUnsupported(f"There is no transcript of the session {native_id}.") from None


RUNTIME = DeepAgents()
