"""The app's functions, offered to any program as the tools of one MCP server."""

from .asking import asked, question_tool, told
from .calls import OUTCOME_UNKNOWN, Desk, Now
from .functions import HostTool, digest, host_tools
from .server import ToolServer

__all__ = [
    "OUTCOME_UNKNOWN",
    "Desk",
    "HostTool",
    "Now",
    "ToolServer",
    "asked",
    "digest",
    "host_tools",
    "question_tool",
    "told",
]
