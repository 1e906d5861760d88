"""``mcp_servers=``: those that do not start are said before the model is called, on every program and every resume."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import Done, Notice
from hostler.testing.model_server import ModelServer
from tests.sessions.programs import CLAUDE, CODEX, GEMINI, IN_SOAK, OPENCODE, Program, ids

SILENT = "import time; time.sleep(600)"
GOOD = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    answers = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "g", "version": "1"}},
        "tools/list": {"tools": [{"name": "barn", "description": "Says what is in the barn.", "inputSchema": {"type": "object"}}]},
    }
    if "id" in asked:
        known = answers.get(asked["method"])
        answer = {"result": known} if known is not None else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def server(code: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", code]}


# Gemini CLI has no word for a server that does not start.
SAYING = [CLAUDE, CODEX, OPENCODE, *(each for each in IN_SOAK if each.values[0] is not GEMINI)]


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("program", SAYING, ids=ids)
def test_servers_that_do_not_start_are_said_before_the_model_is_called(
    program: Program, models: ModelServer, workspace: Path
) -> None:
    servers = {
        "exits": server("raise SystemExit('no database')"),
        "silent": server(SILENT),
        "missing": {"command": "/nonexistent/server"},
        "refused": {"url": "http://127.0.0.1:9/mcp"},
        "good": server(GOOD),
    }
    for spec in servers.values():
        spec["start_timeout"] = 4  # one program has but one limit for all: the largest

    def look(session: Any) -> list[str]:
        """The servers that were said not to have started, before the model was called."""
        before = len(models.calls)
        result = session.run("Hello.")
        found = []
        for record in session.follow(0):
            event = record.event
            if record.turn == result.turn_id and isinstance(event, Notice) and event.code == "mcp_server_failed":
                assert record.at <= models.calls[before].at
                found.append(next(name for name in servers if f"'{name}'" in event.message))
            if record.turn == result.turn_id and isinstance(event, Done):
                return sorted(found)
        raise AssertionError("the journal ended")

    # A confined sandbox refuses a command that is not there before anything starts.
    box = hostler.sandbox.local(workspace)
    options = {**program.options(models), "mcp_servers": servers}
    with hostler.agent_session(program.harness, sandbox=box, **options) as session:
        assert look(session) == ["exits", "missing", "refused", "silent"]
        assert "barn" in str(models.calls[-1].body["tools"])
        session.run("And now?")
        state = session.stop()
    if program is OPENCODE:
        return  # a program of this kind takes seconds to start, and each process tells of its servers in the same way
    with hostler.agent_resume(state, sandbox=box, **program.options(models)) as session:
        assert look(session) == ["exits", "missing", "refused", "silent"]
        assert session.resumed == "native"


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("program", [CLAUDE, CODEX, pytest.param(OPENCODE, marks=pytest.mark.soak)], ids=ids)
def test_without_a_required_server_the_model_is_not_called(
    program: Program, models: ModelServer, workspace: Path
) -> None:
    """Case H10: nor in the next turn, which tries again."""
    exits = {**server("raise SystemExit('no database')"), "start_timeout": 20, "required": True}
    options = {**program.options(models), "sandbox": hostler.sandbox.local(workspace)}
    servers = {"base": exits, "good": {**server(GOOD), "required": True}}
    with hostler.agent_session(program.harness, mcp_servers=servers, **options) as session:
        for _ in range(2):
            result = session.run("Hello.")
            assert result.stop_reason == "error"
            assert result.error is not None
            assert (result.error.code, result.error.retryable) == ("mcp_server_failed", True)
            assert "'base'" in result.error.message
            assert models.calls == []
        good = {"good": servers["good"]}
        assert session.run("Hello.", mcp_servers=good).stop_reason == "done"
        assert "barn" in str(models.calls[-1].body["tools"])


@pytest.mark.parametrize("limit", [0, -1, "3"])
def test_a_time_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(TypeError, match="start_timeout"):
        hostler.agent_session(CODEX.harness, model="m", mcp_servers={"a": {"command": "x", "start_timeout": limit}})
