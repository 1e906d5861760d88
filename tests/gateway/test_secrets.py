"""The gateway's key and the app's other secrets: looked for wherever they could have gone, by an agent that tries."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import keepers_of, processes_of
from tests.gateway.conftest import KEY, Gateway

import hostler
from hostler import Harness, sandbox
from hostler.harness import Done
from hostler.types.events import event_to_dict

pytestmark = [
    pytest.mark.real,
    pytest.mark.xdist_group("gateway"),
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("nothing_left"),
]

CANARIES = {
    "OPENAI_API_KEY": "sk-canary-openai-11aa",
    "ANTHROPIC_API_KEY": "sk-ant-canary-22bb",
    "AWS_SECRET_ACCESS_KEY": "canary/aws+33cc",
    "GITHUB_TOKEN": "ghp_canary44dd",
    "DB_PASSWORD": "canary-db-55ee",
}
GROUPS = {Harness.CLAUDE_CODE: "coder", Harness.CODEX: "coder-openai"}

# What an agent's shell can get hold of: its environment, that of all processes of the session, their arguments, every
# file of the program's home and temporary directory and of all that lies beside them.
DUMP = """
import os, pathlib
mark = os.environ["HOSTLER_RUN"].encode()
out = [repr(sorted(os.environ.items())).encode(), pathlib.Path("/proc/self/environ").read_bytes()]
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        environ = (process / "environ").read_bytes()
        if mark in environ:
            out += [environ, (process / "cmdline").read_bytes()]
    except OSError:
        pass
home = pathlib.Path(os.environ["HOME"])
for path in {p for top in (home.parent, pathlib.Path(os.environ.get("TMPDIR", home))) for p in top.rglob("*")}:
    try:
        if path.is_file():
            out += [str(path).encode(), path.read_bytes()]
    except OSError:
        pass
pathlib.Path("dump.bin").write_bytes(b"\\n".join(out))
print(repr(out[0])[:20000])
print(len(out), "found")
"""

# A program's MCP servers get its environment, too.
SERVER = """
import os, pathlib, sys
pathlib.Path(sys.argv[1]).write_text(repr(sorted(os.environ.items())))
"""

COMMON = {"PATH", "HOME", "TMPDIR", "TERM", "LANG", "HOSTLER_RUN", "HOSTLER_ARTIFACTS"}
ENVIRONMENT = {
    Harness.CLAUDE_CODE: COMMON
    | {
        f"ANTHROPIC_{m}_MODEL"
        for m in ("SMALL_FAST", "DEFAULT_HAIKU", "DEFAULT_SONNET", "DEFAULT_OPUS", "DEFAULT_FABLE")
    }
    | {"ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_SUBAGENT_MODEL", "IS_SANDBOX"}
    | {
        f"CLAUDE_CODE_DISABLE_{what}"
        for what in ("AUTO_MEMORY", "BACKGROUND_TASKS", "BUNDLED_SKILLS", "CRON", "WORKFLOWS")
    }
    | {"CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"}
    | {"CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL", "CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD"}
    | {"CLAUDE_CODE_AUTO_CONNECT_IDE", "CLAUDE_CODE_MAX_RETRIES", "CLAUDE_CODE_MCP_AUTO_BACKGROUND_MS"}
    | {"CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT", "MCP_TOOL_TIMEOUT", "MCP_TIMEOUT", "ENABLE_TOOL_SEARCH"}
    | {"DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING"},
    Harness.CODEX: COMMON | {"CODEX_HOME", "CODEX_SQLITE_HOME", "HOSTLER_MODEL_KEY", "HOSTLER_TOOL_KEY"},
}
PROGRAM_ARGUMENT = {Harness.CLAUDE_CODE: "stream-json", Harness.CODEX: "app-server"}


def lookup(word: str) -> str:
    """Looks a word up."""
    return f"found {word}"


@pytest.fixture
def canaries(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The app's environment: what a program may have, the gateway's address and key, and secrets."""
    kept = {"PATH", "HOME", "HOSTLER_STATE_DIR", "HOSTLER_GUARD", "LITELLM_PROXY_API_BASE", "LITELLM_PROXY_API_KEY"}
    for name in set(os.environ) - kept:
        if not name.startswith("PYTEST"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LANG", "C.UTF-8")
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    return {"the gateway's key": KEY, **CANARIES}


def patient(harness: Harness, command: str) -> dict[str, Any]:
    """A call of the shell; Codex would go on without its end after ten seconds."""
    if harness is Harness.CODEX:
        return {"tool": "exec_command", "args": {"cmd": command, "yield_time_ms": 30000}}
    return {"shell": command}


def files_of(*roots: Path) -> Iterator[tuple[str, bytes]]:
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield str(path), path.read_bytes()


def program_of(harness: Harness, state_dir: Path) -> psutil.Process:
    (program,) = (p for p in processes_of(state_dir) if PROGRAM_ARGUMENT[harness] in p.cmdline())
    return program


@pytest.mark.parametrize("harness", list(GROUPS), ids=lambda h: h.value)
def test_secrets_are_found_nowhere(
    harness: Harness,
    gateway: Gateway,
    canaries: dict[str, str],
    workspace: Path,
    state_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Cases F01, F02, F05, F08."""
    caplog.set_level(logging.DEBUG)
    (workspace / "dump.py").write_text(DUMP)
    (workspace / "server.py").write_text(SERVER)
    seen_by_server = workspace / "server.txt"
    server = {"command": sys.executable, "args": [str(workspace / "server.py"), str(seen_by_server)]}
    places: dict[str, bytes] = {}
    with hostler.agent_session(
        harness,
        sandbox=sandbox.local(workspace),
        model=f"litellm_proxy/{GROUPS[harness]}",
        tools=[lookup],
        mcp_servers={"noisy": server},
    ) as session:
        steps = [patient(harness, f"{sys.executable} dump.py"), {"shell": "env; echo $OPENAI_API_KEY"}]
        result = session.run(f"@@{json.dumps(steps)}@@")
        assert result.stop_reason == "done"
        places["result"] = repr(result).encode() + repr(result.events).encode()
        places["state"] = session.state().dumps()
        records = []
        for record in session.follow(0):
            records.append(json.dumps(event_to_dict(record.event)))
            if isinstance(record.event, Done):
                break
        places["records"] = "\n".join(records).encode()
        places["history"] = json.dumps(session.history()).encode()
        keepers = keepers_of(state_dir)
        assert keepers
        for process in {*processes_of(state_dir), *keepers, *(c for k in keepers for c in k.children(recursive=True))}:
            about = {"cmdline": process.cmdline(), "environ": process.environ()}
            places[f"process {process.pid} {process.name()}"] = json.dumps(about).encode()
        places.update(files_of(state_dir, workspace))  # the store with its log, homes, spools, keepers' logs
    places.update((f"{path} (closed)", data) for path, data in files_of(state_dir, workspace))
    places["requests to the model"] = json.dumps([c.body for c in gateway.models.calls]).encode()
    places["logs"] = caplog.text.encode()

    assert b"found" in places["records"]
    assert len((workspace / "dump.bin").read_bytes()) > 5000  # it did find something
    assert seen_by_server.exists()
    assert {r.name.partition(".")[0] for r in caplog.records} >= {"mcp"}  # libraries tell all they do
    assert any(path.endswith("store.db") for path in places)
    leaks = [
        f"{what} in {place}"
        for place, data in places.items()
        for what, secret in canaries.items()
        if secret.encode() in data
    ]
    assert leaks == []


@pytest.mark.parametrize("harness", list(GROUPS), ids=lambda h: h.value)
def test_a_programs_environment_is_an_allow_list(
    harness: Harness, gateway: Gateway, canaries: dict[str, str], workspace: Path, state_dir: Path
) -> None:
    """Case F02. Every further name here is to be thought about: can its value ever be a secret of the app's?"""
    with hostler.agent_session(
        harness, sandbox=sandbox.local(workspace), model=f"litellm_proxy/{GROUPS[harness]}", tools=[lookup]
    ) as session:
        session.run("Hello.")
        environment = program_of(harness, state_dir).environ()
    assert set(environment) == ENVIRONMENT[harness]


@pytest.mark.parametrize("harness", list(GROUPS), ids=lambda h: h.value)
def test_the_key_is_masked_when_the_agent_has_it_all_the_same(
    harness: Harness, gateway: Gateway, canaries: dict[str, str], workspace: Path, state_dir: Path
) -> None:
    """Case F04: it lies in the workspace, and the model says it in pieces."""
    (workspace / ".env").write_text(f"LITELLM_PROXY_API_KEY={KEY}\n")
    steps: list[dict[str, Any]] = [
        {"shell": "cat .env; cp .env copied.txt"},
        {"text": f"It is {KEY}, I think.", "chunks": 12},
    ]
    gateway.models.script(steps)
    with hostler.agent_session(
        harness, sandbox=sandbox.local(workspace), model=f"litellm_proxy/{GROUPS[harness]}"
    ) as session:
        result = session.run("What is the key?")
        shown = repr(result) + repr(result.events)
        assert result.stop_reason == "done"
        assert "I think" in result.text
        assert "copied.txt" in shown
        assert KEY not in shown
        stores = [data for path, data in files_of(state_dir) if "/store.db" in path]
        assert stores
        assert not any(KEY.encode() in data for data in stores)
