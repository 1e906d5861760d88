"""The permission probes: what an agent can change under each mode in `local`, tried by every way it has.

One turn a mode: the scripted agent writes a file with its own tool in the workspace, then outside of it, and then runs one
shell script that tries the same by shell and by python, and `/tmp`, and the network. The table is printed at the end of
the run; a cell that holds less than the README says is a failure here.
"""

from __future__ import annotations

import json
import shlex
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import Approval
from hostler.testing.model_server import ModelServer
from tests.sessions.programs import (
    CLAUDE,
    CODEX,
    DEEP_AGENTS,
    GEMINI,
    IN_SOAK,
    OPENCODE,
    PI,
    TOOL_LOOP,
    Program,
    ids,
)

MODES = ("full", "edit", "read-only", "ask")
WAYS = (
    "write by its tool",
    "write by shell",
    "write by python",
    "outside by its tool",
    "outside by shell",
    "outside by python",
    "/tmp",
    "network",
)
NOTHING = dict.fromkeys(WAYS, "no")
EXPECTED: dict[str, dict[str, dict[str, str]]] = {
    program: {
        "full": dict.fromkeys(WAYS, "done"),
        "edit": NOTHING | {"write by its tool": "done"},
        "read-only": NOTHING,
        # Allowed once: the first write. All else is asked for, and denied.
        "ask": dict.fromkeys(WAYS, "asked") | {"write by its tool": "asked, done"},
    }
    for program in ("claude_code", "codex", "opencode", "tool_loop", "deep_agents", "pi", "gemini_cli")
}
# Its own tool writes nowhere else, whatever is allowed.
for mode in ("full", "ask"):
    EXPECTED["gemini_cli"][mode] |= {"outside by its tool": "no"}
# It alone has a sandbox of its own for its shell.
EXPECTED["codex"]["edit"] |= {"write by shell": "done", "write by python": "done"}


class Place:
    """A workspace, a folder outside of it, a name in /tmp, a port."""

    def __init__(self, root: Path, port: int) -> None:
        self.workspace, self.outside, self.port = root / "workspace", root / "outside", port
        self.tmp = Path("/tmp") / f"probe-{uuid.uuid4().hex}"
        self.outside.mkdir()

    def script(self) -> str:
        """All attempts of the shell; none keeps the next from being made."""
        writes = [f"echo x > {shlex.quote(str(path))}" for path in ("by-shell", self.outside / "by-shell", self.tmp)]
        python = shlex.quote(sys.executable)
        codes = [f"open({str(path)!r}, 'w').write('x')" for path in ("by-python", self.outside / "by-python")]
        codes.append(f"import socket; socket.create_connection(('127.0.0.1', {self.port}), 2).sendall(b'x')")
        return "\n".join([*writes, *(f"{python} -c {shlex.quote(code)}" for code in codes), "true"])

    def found(self, connected: bool) -> dict[str, bool]:
        """Which attempts have come to something."""
        return {
            "write by its tool": (self.workspace / "by-tool").exists(),
            "write by shell": (self.workspace / "by-shell").exists(),
            "write by python": (self.workspace / "by-python").exists(),
            "outside by its tool": (self.outside / "by-tool").exists(),
            "outside by shell": (self.outside / "by-shell").exists(),
            "outside by python": (self.outside / "by-python").exists(),
            "/tmp": self.tmp.exists(),
            "network": connected,
        }

    def clean(self) -> None:
        for path in (*self.workspace.iterdir(), *self.outside.iterdir(), self.tmp):
            path.unlink(missing_ok=True)


def write(program: Program, path: Path) -> dict[str, Any]:
    """A model's answer that writes a file with the program's own tool."""
    if program is CLAUDE:
        return {"tool": "Write", "args": {"file_path": str(path), "content": "x"}}
    if program is OPENCODE:
        return {"tool": "write", "args": {"filePath": str(path), "content": "x"}}
    if program in (DEEP_AGENTS, GEMINI):
        return {"tool": "write_file", "args": {"file_path": str(path), "content": "x"}}
    if program in (TOOL_LOOP, PI):
        return {"tool": "write", "args": {"path": str(path), "content": "x"}}
    return {"shell": f"apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch\nEOF\n"}


@pytest.fixture
def listener() -> Iterator[tuple[int, Callable[[], bool]]]:
    """A port, and whether somebody has connected to it since the last look."""
    heard = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                heard.set()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()

    def connected() -> bool:
        was = heard.wait(0.2)
        heard.clear()
        return was

    yield server.getsockname()[1], connected
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(5)


@pytest.mark.real
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("program", [CLAUDE, CODEX, pytest.param(OPENCODE, marks=pytest.mark.soak), *IN_SOAK], ids=ids)
def test_what_an_agent_can_change(
    program: Program,
    models: ModelServer,
    workspace: Path,
    tmp_path: Path,
    listener: tuple[int, Callable[[], bool]],
    record_property: Callable[[str, object], None],
) -> None:
    place = Place(tmp_path, listener[0])
    asked: list[str] = []

    def answer(approval: Approval) -> bool:
        said = json.dumps(approval.input)
        asked.append(said)
        return str(workspace / "by-tool") in said and str(place.outside) not in said

    def cell(way: str, done: bool) -> str:
        word = {"write by its tool": f"{workspace}/by-tool", "outside by its tool": f"{place.outside}/by-tool"}
        questions = sum(word.get(way, "by-python") in said for said in asked)
        assert questions <= 1, asked
        return ", ".join([*(["asked"] if questions else []), *(["done"] if done else [])]) or "no"

    found: dict[str, dict[str, str]] = {}
    box = hostler.sandbox.local(workspace)
    options = program.options(models)
    if program is OPENCODE:
        options["model"] = "coder"  # to models of some names it gives other tools
    with hostler.agent_session(program.harness, sandbox=box, on_approval=answer, **options) as session:
        for mode in MODES:
            asked.clear()
            models.script(
                [
                    write(program, workspace / "by-tool"),
                    write(program, place.outside / "by-tool"),
                    {"shell": place.script()},
                    {"text": "done"},
                ]
            )
            override: Any = {"permissions": mode}
            result = session.run("Try.", **override)
            assert (result.stop_reason, result.error) == ("done", None)
            done = place.found(listener[1]())
            found[mode] = {way: cell(way, done[way]) for way in WAYS}
            for way, outcome in found[mode].items():
                record_property("probe", (WAYS.index(way), way, program.name, mode, outcome))
            models.clear()
            place.clean()
    assert found == EXPECTED[program.name]
