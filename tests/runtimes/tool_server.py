"""A tiny MCP server in streamable HTTP with one tool, behind a bearer token."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "a-tool-token"
_TOOL = {
    "name": "add",
    "description": "adds",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wait = 0.0

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._say(401, {})
        elif "id" not in message:
            self._say(202, None)
        else:
            self._say(200, {"jsonrpc": "2.0", "id": message["id"], "result": self._result(message)})

    def do_GET(self) -> None:
        self._say(405, None)

    do_DELETE = do_GET

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        params = message.get("params") or {}
        match message["method"]:
            case "initialize":
                info = {"name": "tools", "version": "1"}
                return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                return {"tools": [_TOOL]}
            case "tools/call":
                time.sleep(self.wait)
                given = params["arguments"]
                return {"content": [{"type": "text", "text": f"sum={given['a'] + given['b']}"}]}
        return {}

    def _say(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def tool_server(*, wait: float = 0.0) -> Iterator[str]:
    """Its URL. ``wait``: seconds that a call takes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"wait": wait}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
