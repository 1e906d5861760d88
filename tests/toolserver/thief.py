"""What an agent's shell can do: finds its session's tool token and calls tools by hand.

``thief.py JSON``: a list of ``{"name", "arguments", "token" (instead), "url" (instead), "id", "meta"}``; prints a JSON list
of what each gave: ``[status, text, is_error]``. Without an argument it prints ``[url, token]``.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path


def found() -> tuple[str, str]:
    """The address and the token, from what the processes above us were started with."""
    pid = os.getppid()
    while pid > 1:
        line = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        env = dict(part.split("=", 1) for part in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in part)
        if "--mcp-config" in line:
            server = json.loads(Path(line[line.index("--mcp-config") + 1]).read_text())["mcpServers"]["host"]
            return server["url"], server["headers"]["Authorization"].removeprefix("Bearer ")
        if "HOSTLER_TOOL_KEY" in env:
            config = Path(env["CODEX_HOME"], "config.toml").read_text()
            return re.findall(r"http://[^\"]*/hostler/tools", config)[0], env["HOSTLER_TOOL_KEY"]
        if "--tool-url" in line:
            return line[line.index("--tool-url") + 1], env["FAKE_TOOL_TOKEN"]
        if "PI_CODING_AGENT_DIR" in env:
            text = Path(env["HOME"]).parent.joinpath("launch", "pi", "hostler.js").read_text()
            server = json.loads(text.partition("= ")[2].partition(";\n")[0])["servers"]["host"]["config"]
            return server["url"], server["headers"]["Authorization"].removeprefix("Bearer ")
        if "OPENCODE_CONFIG_CONTENT" in env:
            server = json.loads(Path(env["XDG_CONFIG_HOME"], "opencode", "opencode.json").read_text())["mcp"]["host"]
            return server["url"], server["headers"]["Authorization"].removeprefix("Bearer ")
        if line[-2:-1] and line[-2].endswith("/settings.json"):  # of a worker
            server = json.loads(Path(line[-2]).read_text())["servers"]["host"]
            return server["url"], server["headers"]["Authorization"].removeprefix("Bearer ")
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise SystemExit("no token found")


def call(url: str, token: str, number: int, job: dict) -> list:
    params = {"name": job["name"], "arguments": job.get("arguments", {}), "_meta": job.get("meta", {})}
    body = json.dumps(
        {"jsonrpc": "2.0", "id": job.get("id", f"by-hand-{number}"), "method": "tools/call", "params": params}
    )
    headers = {
        "authorization": f"Bearer {job.get('token', token)}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2025-06-18",
    }
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(job.get("url", url), body.encode(), headers)
        answer = json.load(opener.open(request, timeout=30))["result"]
        return [200, answer["content"][0]["text"], bool(answer.get("isError"))]
    except urllib.error.HTTPError as error:
        return [error.code, "", True]


url, token = found()
if len(sys.argv) > 1:
    print(json.dumps([call(url, token, number, job) for number, job in enumerate(json.loads(sys.argv[1]))]))
else:
    print(json.dumps([url, token]))
