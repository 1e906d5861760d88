"""The app's functions, offered to any program as the tools of one MCP server."""

from .functions import HostTool, host_tools
from .server import ToolServer

__all__ = ["HostTool", "ToolServer", "host_tools"]
