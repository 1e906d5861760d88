"""The app's functions, offered to any program as the tools of one MCP server."""

from .calls import OUTCOME_UNKNOWN, Desk, Now
from .functions import HostTool, host_tools
from .server import ToolServer

__all__ = ["OUTCOME_UNKNOWN", "Desk", "HostTool", "Now", "ToolServer", "host_tools"]
