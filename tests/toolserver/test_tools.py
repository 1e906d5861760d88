"""``tools=[f]`` from end to end: real programs call functions of the app, also after the app was killed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.programs import (
    ALL,
    CLAUDE,
    CODEX,
    DEEP_AGENTS,
    FAKE_PROGRAM,
    GEMINI,
    OPENCODE,
    PI,
    REAL,
    TOOL_LOOP,
    Program,
    ids,
)
from tests.toolserver.app import pay, who

import hostler
from hostler.harness import Approval, CapabilityUnsupported, OptionsMismatch, Result, State, ToolCall, ToolResult
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer
from hostler.types.events import CallbackFailed, Done

APP = Path(__file__).with_name("app.py")
pytestmark = pytest.mark.usefixtures("nothing_left")


def lookup(word: str, times: int = 1) -> dict[str, str]:
    """Looks a word up."""
    if word == "bad":
        raise KeyError("no such word")
    return {"found": word * times}


async def alookup(word: str) -> str:
    """Looks a word up, too."""
    return f"found {word}"


PREFIXES = {"opencode": "host_", "gemini_cli": "mcp_host_"}


def calling(program: Program, *calls: tuple[str, dict[str, Any]], shell: str | None = None) -> str:
    """A prompt that has the agent run a shell command, if there is one, then call tools of the app one by one."""
    if program.fake:
        steps: list[dict[str, Any]] = [{"mcp": name, "arguments": given} for name, given in calls]
        return json.dumps([*([{"shell": shell}] if shell else []), *steps, {"text": "done"}])
    if program is not CODEX:
        prefix = PREFIXES.get(program.name, "mcp__host__")
        steps = [{"tool": f"{prefix}{name}", "args": given} for name, given in calls]
    else:
        steps = [{"tool": name, "namespace": "mcp__host", "args": given} for name, given in calls]
    return f"@@{json.dumps([*([{'shell': shell}] if shell else []), *steps])}@@"


def told(result: Result) -> list[tuple[str, bool]]:
    return [(e.output, e.is_error) for e in result.events if isinstance(e, ToolResult)]


@pytest.mark.parametrize("permissions", ["full", "read-only", "ask"])
@pytest.mark.parametrize("program", ALL, ids=ids)
def test_the_agent_calls_functions_of_the_app(program: Program, permissions: Any, models: ModelServer) -> None:
    options = {**program.options(models), "permissions": permissions}
    asked: list[tuple[str, Any]] = []

    def answer(approval: Approval) -> bool:
        asked.append((approval.tool, approval.input))
        return True

    if permissions == "ask":
        options["on_approval"] = answer
    with hostler.agent_session(program.harness, tools=[lookup, alookup], **options) as session:
        result = session.run(
            calling(
                program,
                ("lookup", {"word": "ab", "times": 2}),
                ("alookup", {"word": "x"}),
                ("lookup", {"word": "bad"}),
                ("lookup", {"times": 1}),
            )
        )
        assert result.stop_reason == "done"
        outputs = told(result)
        assert outputs[:2] == [('{"found":"abab"}', False), ("found x", False)]
        assert [bad for _, bad in outputs[2:]] == [True, True]
        assert "KeyError: 'no such word'" in outputs[2][0]
        # Some programs look at that themselves.
        said = ("word: Field required", "word: missing", "must have required property 'word'")
        assert any(words in outputs[3][0] for words in said)
        words = [("lookup", {"word": "ab", "times": 2}), ("alookup", {"word": "x"}), ("lookup", {"word": "bad"})]
        assert asked == (words if permissions == "ask" else [])  # once each, and not for what cannot be called
        calls = [e for e in result.events if isinstance(e, ToolCall)]
        if not program.fake:
            prefix = PREFIXES.get(program.name, "mcp__host__")
            assert [(c.name, c.native_name, c.builtin) for c in calls] == [
                (name, f"{prefix}{name}", False) for name in ("lookup", "alookup", "lookup", "lookup")
            ]
            if program is not GEMINI:  # it tells only a title
                assert calls[0].input == {"word": "ab", "times": 2}
            assert "abab" in json.dumps(models.calls[-1].body)  # it came to the model
        failures = []
        for record in session.follow(0):
            if isinstance(record.event, CallbackFailed):
                failures.append((record.event.callback, record.event.message, record.turn))
            if isinstance(record.event, Done):
                break
        assert failures == [("tool lookup", "KeyError: 'no such word'", result.turn_id)]


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_after_the_app_was_killed_in_mid_turn_another_answers_the_tool_calls(
    program: Program, models: ModelServer
) -> None:
    slow = f"{sys.executable} -c 'import time; time.sleep(2)'"
    prompt = calling(program, ("who", {"word": "late"}), shell=slow)
    job = {"harness": program.name, "options": program.options(models), "prompt": prompt}
    done = subprocess.run(
        [sys.executable, str(APP), json.dumps(job)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -9, done.stderr
    state = State.loads(done.stdout.strip())
    with hostler.agent_resume(state, tools=[who, pay], **program.options(models)) as session:
        results = []
        result = session.run(calling(program, ("who", {"word": "next"})))
        assert session.resumed == "attached"
        assert told(result) == [(f"next from {os.getpid()}", False)]
        for record in session.follow(0):
            if isinstance(record.event, ToolResult):
                results.append(record.event.output)
            if isinstance(record.event, Done) and record.turn == result.turn_id:
                break
        assert results[1:] == [f"late from {os.getpid()}", f"next from {os.getpid()}"]


def test_the_tools_have_to_be_given_again() -> None:
    options = {"model": "m", "api_base": "http://127.0.0.1:9", "api_key": "k-1"}
    with hostler.agent_session(FAKE, tools=[lookup, alookup], **options) as session:
        state = session.stop()
    for given in ([], [lookup]):
        with pytest.raises(OptionsMismatch, match="tool alookup"):
            hostler.agent_resume(state, tools=given, **options)
    hostler.agent_resume(state, tools=[alookup, lookup], **options).close()


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_resumed_session_offers_the_tools_it_is_given_now(program: Program, models: ModelServer) -> None:
    with hostler.agent_session(program.harness, tools=[lookup], **program.options(models)) as session:
        assert told(session.run(calling(program, ("lookup", {"word": "a"})))) == [('{"found":"a"}', False)]
        state = session.detach()
    with hostler.agent_resume(state, tools=[lookup, alookup], **program.options(models)) as session:
        result = session.run(calling(program, ("alookup", {"word": "b"})))
        assert told(result) == [("found b", False)]
        assert session.resumed == "native"  # the program had been told of fewer


def test_a_second_handle_of_the_same_process_brings_its_own_functions(models: ModelServer) -> None:
    said: list[str] = []

    def make(name: str) -> Any:
        def note(text: str) -> None:
            said.append(f"{name}: {text}")

        return note

    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE, tools=[make("first")], **options) as first:
        first.run(calling(FAKE_PROGRAM, ("note", {"text": "a"})))
        with hostler.agent_resume(first.state(), tools=[make("second")], **options) as second:
            second.run(calling(FAKE_PROGRAM, ("note", {"text": "b"})))
    assert said == ["first: a", "second: b"]


def test_tools_that_cannot_be_offered_are_refused_when_the_session_is_opened(state_dir: Path) -> None:
    def many(*words: str) -> None: ...

    for tools, error in (([many], TypeError), ([lookup, lookup], TypeError)):
        with pytest.raises(error, match="many" if tools[0] is many else "lookup"):
            hostler.agent_session(FAKE, tools=tools, model="m", api_base="http://127.0.0.1:9", api_key="k-1")
    assert not (state_dir / "sessions").exists() or not list((state_dir / "sessions").iterdir())


def test_a_program_without_tools_refuses_them() -> None:
    class Toolless(type(FAKE)):  # type: ignore[misc]
        capabilities = dataclasses.replace(FAKE.capabilities, tools=False)

    with pytest.raises(CapabilityUnsupported, match="tools"):
        hostler.agent_session(Toolless(), tools=[lookup], model="m", api_base="http://127.0.0.1:9", api_key="k-1")


def test_tools_belong_to_the_session_and_not_to_one_call(models: ModelServer) -> None:
    with (
        hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session,
        pytest.raises(CapabilityUnsupported, match="tools"),
    ):
        session.run("[]", tools=[lookup])


ASK = """
import json, os, sys, urllib.request, urllib.error
base, model_token = sys.argv[1:]
for token in ("wrong", model_token, ""):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "lookup", "arguments": {"word": "a"}}})
    headers = {"authorization": "Bearer " + token, "content-type": "application/json", "accept": "application/json, text/event-stream"}
    try:
        opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            urllib.request.Request(base + "/hostler/tools", body.encode(), headers), timeout=10)
        print(opened.status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_the_agents_shell_gets_nothing_from_the_tool_server_with_other_tokens(
    program: Program, models: ModelServer, workspace: Path
) -> None:
    (workspace / "ask.py").write_text(ASK)
    called = []

    def lookup(word: str) -> None:
        called.append(word)

    box = hostler.sandbox.local(workspace)
    with hostler.agent_session(program.harness, tools=[lookup], sandbox=box, **program.options(models)) as session:
        base, token = '"$ANTHROPIC_BASE_URL"', '"$ANTHROPIC_AUTH_TOKEN"'
        if program is PI:
            config = '"$PI_CODING_AGENT_DIR/models.json"'
            base, token = f"$(grep -o 'http://[0-9.:]*' {config})", f'$(grep -oP \'(?<="apiKey": ")[^"]*\' {config})'
        elif program is GEMINI:
            base, token = '"$GOOGLE_GEMINI_BASE_URL"', '"$GEMINI_API_KEY"'
        elif program in (
            TOOL_LOOP,
            DEEP_AGENTS,
        ):  # it keeps its key from its shell; of the same user, nothing keeps the shell from it
            own = "tr '\\0' '\\n' < /proc/$PPID/environ | sed -n s/^OPENAI_API_KEY=//p"
            base, token = '"${OPENAI_BASE_URL%/v1}"', f"$({own})"
        elif program is OPENCODE:
            config = '"$XDG_CONFIG_HOME/opencode/opencode.json"'
            base = f"$(grep -o 'http://[0-9.:]*' {config} | head -1)"
            token = f'$(grep -o \'"apiKey": "[^"]*\' {config} | cut -d \'"\' -f 4)'
        elif program is not CLAUDE:
            config = "$CODEX_HOME/config.toml"
            base, token = f"$(grep -o 'http://[0-9.:]*' \"{config}\" | head -1)", '"$HOSTLER_MODEL_KEY"'
        result = session.run(program.shell(f"{sys.executable} ask.py {base} {token}"))
    assert told(result) == [("401\n401\n401", False)] or told(result) == [("401\n401\n401\n", False)]
    assert called == []
