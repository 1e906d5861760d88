"""An agent of which only its command is known, and what those of which more is known have in common with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from hostler.runtimes import programs
from hostler.runtimes.acp.codec import AcpCodec, Dialect
from hostler.types.errors import CapabilityUnsupported
from hostler.types.runtime import Capabilities, Codec, Launch, LaunchContext, NativeFile

STEER = "what is said during a turn waits for its end"
FORK = "over ACP a fork takes no place in the conversation; a new one is told the transcript"
_UNTOLD = "the protocol has no word for it"
UNKNOWN = {
    "edit": "the agent's own modes are not known",
    "read-only": "the agent's own modes are not known",
    "ask": "the agent's own modes are not known",
    "steer": STEER,
    "history": "it is not known where the agent keeps its transcript",
    "portable": "it is not known where the agent keeps its transcript",
    "fork": FORK,
    "images": "it is not known whether the agent takes pictures",
    "max_turns": "what the agent does in a turn is not known well enough to count its model calls",
    **dict.fromkeys(("instructions", "disable_tools", "allow_deny", "effort"), _UNTOLD),
}


class AcpRuntime:
    """The Runtime of an agent of which only its command is known.

    It finds its model by the variables that such programs commonly read. What it keeps on disk, and where, is unknown:
    its sessions live as long as its private home.
    """

    name = "acp"
    wire: Literal["anthropic", "responses", "chat", "gemini"] = "chat"
    id_pattern = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}"
    project_instructions: tuple[str, ...] = ()
    model_first: bool = False
    project_code: tuple[str, ...] = ()
    tool_names: frozenset[str] | None = None
    native_files: tuple[NativeFile, ...] = ()
    capabilities = Capabilities(approvals=True, tools=True, mcp_servers=True, questions="native", reasons=UNKNOWN)
    dialect: ClassVar[Dialect] = Dialect()
    install: ClassVar[str] = "its own instructions"

    def __init__(self, command: Sequence[str]) -> None:
        self.command = tuple(command)
        self.codec: Codec = AcpCodec(self.dialect)

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        program, *arguments = programs.given(options) or self.command
        if not os.path.dirname(program) and which(program) is None:
            raise programs.missing(program, self.install)
        return (program, *arguments)

    def launch(self, ctx: LaunchContext) -> Launch:
        env = {
            "OPENAI_BASE_URL": f"{ctx.model_url}/v1",
            "OPENAI_API_KEY": ctx.token,
            "OPENAI_MODEL": ctx.model,
            "ANTHROPIC_BASE_URL": ctx.model_url,
            "ANTHROPIC_API_KEY": ctx.token,
            "ANTHROPIC_MODEL": ctx.model,
        }
        return Launch(ctx.program, env)

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        return None

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        raise CapabilityUnsupported("hostler does not know where this ACP agent keeps its transcript.")
