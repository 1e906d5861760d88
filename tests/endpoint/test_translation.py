"""Calls in a wire that the upstream does not speak: translated, counted and failed like all others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from endpoint_door import KEY, PATHS, TOKEN, Door, body, door, script

from hostler import portal
from hostler.endpoint.routes import can_translate
from hostler.endpoint.translation import Untranslatable, translatable
from hostler.endpoint.translator import TranslationFailed, Translator
from hostler.endpoint.wires import PATHS as WIRE_OF
from hostler.testing.model_server import ModelServer
from hostler.types.result import Usage

pytestmark = [
    pytest.mark.xdist_group("translator"),
    pytest.mark.skipif(not can_translate(), reason="the litellm extra is not installed"),
]
SILENCE = 2.0
# the program's wire, the upstream's, and a model of its provider
PAIRS = [
    pytest.param("anthropic", "chat", "gpt-4o", id="anthropic-chat"),
    pytest.param("responses", "anthropic", "claude-sonnet-4-5", id="responses-anthropic"),
    pytest.param("chat", "anthropic", "claude-sonnet-4-5", id="chat-anthropic"),
]
_COMMAND = {"type": "object", "properties": {"command": {"type": "string"}, "cmd": {"type": "string"}}}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "anthropic": [{"name": "Bash", "input_schema": _COMMAND}],
    "responses": [{"type": "function", "name": "exec_command", "parameters": _COMMAND}],
    "chat": [{"type": "function", "function": {"name": "bash", "parameters": _COMMAND}}],
}
Translating = Callable[[Callable[[Door], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def translating() -> Iterator[Translating]:
    """Runs a test's coroutine function with one `Door` for the whole module: a translator takes seconds to start."""
    with ModelServer(key=KEY) as server, asyncio.Runner() as runner:
        opened = door(server, silence=SILENCE)
        shared = runner.run(opened.__aenter__())
        shared.http.timeout = 60
        runner.run(ask(shared, "anthropic", "chat", "gpt-4o", "hi"))

        def go(test: Callable[[Door], Awaitable[None]]) -> None:
            async def main() -> None:
                server.clear()
                shared.calls.clear()
                async with asyncio.timeout(60):
                    await test(shared)

            runner.run(main())

        try:
            yield go
        finally:
            runner.run(opened.__aexit__(None, None, None))


async def ask(door: Door, program: str, upstream: str, model: str, prompt: str, **more: Any) -> httpx.Response:
    door.open(upstream, program=program, model=model)
    needed = {"max_tokens": 1000} if program == "anthropic" else {}
    return await door.ask(program, prompt, **{"model": model, "tools": TOOLS[program], **needed, **more})


def text_of(wire: str, answer: httpx.Response) -> list[str]:
    """The pieces of text in a streamed answer."""
    assert answer.headers["content-type"] == "text/event-stream"
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    if wire == "anthropic":
        return [e["delta"]["text"] for e in events if e.get("delta", {}).get("type") == "text_delta"]
    if wire == "responses":
        return [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    return [c["delta"]["content"] for e in events for c in e["choices"] if c["delta"].get("content")]


LAST = {"anthropic": "message_stop", "responses": "response.completed", "chat": "[DONE]"}


@pytest.mark.parametrize(("program", "upstream", "model"), PAIRS)
def test_text(translating: Translating, program: str, upstream: str, model: str) -> None:
    async def test(door: Door) -> None:
        answer = await ask(door, program, upstream, model, script(text="one two three four", chunks=6))
        assert answer.status_code == 200
        pieces = text_of(program, answer)
        assert "".join(pieces) == "one two three four"
        assert len(pieces) >= 3
        assert LAST[program] in answer.text
        whole = await ask(door, program, upstream, model, script(text="one two three four"), stream=False)
        assert "one two three four" in whole.text
        for call in door.calls:
            assert (call.model, call.usage, call.status) == (model, Usage(150, 40, 30, 1), "ok")
            assert call.cost is not None
            assert call.cost > 0
        assert len(door.calls) == len(door.server.calls) == 2
        assert {(c.api, c.body["model"]) for c in door.server.calls} == {(upstream, model)}

    translating(test)


@pytest.mark.parametrize(("program", "upstream", "model"), PAIRS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_call_and_its_result(
    translating: Translating, program: str, upstream: str, model: str, stream: bool
) -> None:
    async def test(door: Door) -> None:
        answer = await ask(door, program, upstream, model, script(shell="echo there"), stream=stream)
        assert "echo there" in answer.text.replace("\\", "")
        call = "call_x1"
        said: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
        if program == "anthropic":
            used = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "echo there"}}
            result = {"type": "tool_result", "tool_use_id": call, "content": "CODEWORD-result"}
            said += [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
        elif program == "responses":
            arguments = json.dumps({"cmd": "echo there"})
            said += [
                {"type": "function_call", "call_id": call, "name": "exec_command", "arguments": arguments},
                {"type": "function_call_output", "call_id": call, "output": "CODEWORD-result"},
            ]
        else:
            function = {"name": "bash", "arguments": json.dumps({"command": "echo there"})}
            used = {"id": call, "type": "function", "function": function}
            said += [
                {"role": "assistant", "content": None, "tool_calls": [used]},
                {"role": "tool", "tool_call_id": call, "content": "CODEWORD-result"},
            ]
        name = "input" if program == "responses" else "messages"
        answer = await ask(door, program, upstream, model, "", stream=stream, **{name: said})
        assert answer.status_code == 200
        sent = json.dumps(door.server.calls[-1].body)
        assert sent.count("CODEWORD-result") == 1
        assert sent.count(call) >= 2
        assert [c.status for c in door.calls] == ["ok", "ok"]

    translating(test)


@pytest.mark.parametrize(("program", "upstream", "model"), PAIRS)
@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "model_auth"), (429, "model_rate_limited"), (500, "model_unavailable"), (400, "model_refused")],
)
def test_refusals(translating: Translating, program: str, upstream: str, model: str, status: int, code: str) -> None:
    async def test(door: Door) -> None:
        for stream in (True, False):
            answer = await ask(
                door, program, upstream, model, script(error=status, message=f"because {KEY}"), stream=stream
            )
            assert answer.status_code == (status if program == "anthropic" else 400)
            assert answer.headers["x-should-retry"] == "false"
            call = door.calls[-1]
            assert call.error is not None
            assert "because [removed]" in call.error.message
            assert KEY not in answer.text
            assert (call.error.code, call.http_status, call.status, call.cost) == (code, status, "refused", 0.0)
        assert len(door.calls) == len(door.server.calls) == 2  # nobody but us tries again

    translating(test)


@pytest.mark.parametrize(("program", "upstream", "model"), PAIRS)
@pytest.mark.parametrize(
    "step",
    [
        {"text": "begun and", "drop": True},
        {"text": "begun and", "truncate": True},
        {"text": "begun and", "stream_error": "overloaded"},
    ],
)
def test_a_broken_stream_is_cut_and_the_third_refused(
    translating: Translating, program: str, upstream: str, model: str, step: dict[str, Any]
) -> None:
    async def test(door: Door) -> None:
        door.open(upstream, program=program, model=model)
        more = {"model": model, "tools": TOOLS[program], "max_tokens": 1000}
        for _ in range(3):
            with pytest.raises(httpx.RemoteProtocolError):
                await door.ask(program, script(**step), **more)
        answer = await door.ask(program, script(**step), **more)
        assert answer.status_code >= 400
        assert answer.headers["x-should-retry"] == "false"
        assert [c.error.code for c in door.calls if c.error] == ["model_cut"] * 4
        assert all(c.cost is None for c in door.calls[:3])
        assert len(door.server.calls) == 3

    translating(test)


@pytest.mark.parametrize(("program", "upstream", "model"), PAIRS)
def test_a_silent_model(translating: Translating, program: str, upstream: str, model: str) -> None:
    async def test(door: Door) -> None:
        door.open(upstream, program=program, model=model)
        more = {"model": model, "tools": TOOLS[program], "max_tokens": 1000}
        start = time.monotonic()
        with pytest.raises(httpx.RemoteProtocolError):
            await door.ask(program, script(text="x", hang=20), **more)
        assert SILENCE <= time.monotonic() - start < SILENCE + 3
        answer = await door.ask(program, script(text="x", hang=20), **more)
        assert answer.status_code >= 400
        assert [c.error.code for c in door.calls if c.error] == ["model_silent"] * 2

    translating(test)


@pytest.mark.parametrize(("program", "upstream", "model"), PAIRS)
def test_an_error_told_in_the_stream(translating: Translating, program: str, upstream: str, model: str) -> None:
    async def test(door: Door) -> None:
        step = {"text": "word " * 40, "chunks": 40, "chunk_delay": 0.02, "stream_error": "invalid_prompt"}
        answer = await ask(door, program, upstream, model, script(**step, message=f"no, {KEY}"))
        assert program == "chat" or "no, [removed]" in answer.text
        assert KEY not in answer.text
        assert "error" in answer.text
        assert LAST[program] not in answer.text
        assert [c.error.code for c in door.calls if c.error] == ["model_refused"]

    translating(test)


@pytest.mark.parametrize(("program", "upstream", "model"), PAIRS)
def test_the_key_never_reaches_the_program(translating: Translating, program: str, upstream: str, model: str) -> None:
    """Not even where a translation joins pieces that were told apart."""

    async def test(door: Door) -> None:
        for stream in (True, False):
            answer = await ask(door, program, upstream, model, script(text=f"it is {KEY}.", chunks=20), stream=stream)
            assert answer.status_code == 200
            assert KEY not in answer.text
            sent = door.server.calls[-1]
            assert KEY in (sent.headers.get("x-api-key", "") + sent.headers.get("authorization", ""))
            assert TOKEN not in json.dumps([dict(sent.headers), sent.body])

    translating(test)


def test_a_program_that_goes_away_ends_the_call_upstream(translating: Translating) -> None:
    async def test(door: Door) -> None:
        door.open("chat", program="anthropic", model="gpt-4o")
        prompt = script(text="word " * 50, chunks=50, chunk_delay=0.1)
        request = body("anthropic", prompt, model="gpt-4o", max_tokens=10)
        async with door.http.stream("POST", PATHS["anthropic"], json=request, headers={"x-api-key": TOKEN}) as answer:
            async for _ in answer.aiter_bytes():
                break
        async with asyncio.timeout(3):
            while not door.calls:
                await asyncio.sleep(0.02)
        assert [(c.status, c.cost) for c in door.calls] == [("cut", None)]
        async with asyncio.timeout(3):
            while len(door.endpoint._clients) > 1:  # the token of the call is void
                await asyncio.sleep(0.02)

    translating(test)


def test_a_session_that_closes_ends_its_calls(translating: Translating) -> None:
    async def test(door: Door) -> None:
        asking = asyncio.create_task(ask(door, "chat", "anthropic", "claude-sonnet-4-5", script(text="x", hang=1.5)))
        await asyncio.to_thread(door.server.wait, 1)
        door.endpoint.close_token(TOKEN)
        start = time.monotonic()
        with pytest.raises(httpx.RemoteProtocolError):
            await asking
        assert time.monotonic() - start < 1
        assert [c.status for c in door.calls] == ["cut"]

    translating(test)


def test_models_that_are_asked_in_the_other_wire_of_openai(translating: Translating) -> None:
    async def test(door: Door) -> None:
        answer = await ask(door, "anthropic", "chat", "gpt-5-codex", script(think="hm", text="thought of"))
        assert "".join(text_of("anthropic", answer)) == "thought of"
        [sent] = door.server.calls
        assert (sent.api, sent.body["store"]) == ("responses", False)
        assert [(c.status, c.usage) for c in door.calls] == [("ok", Usage(150, 40, 30, 1))]

    translating(test)


def test_tools_of_codex_that_no_other_wire_has(translating: Translating) -> None:
    spawn = {"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {}}}
    tools = [
        {"type": "namespace", "name": "agents", "description": "x", "tools": [spawn]},
        {"type": "custom", "name": "apply_patch", "description": "x", "format": {"type": "text"}},
    ]

    async def test(door: Door) -> None:
        called = {}
        for name, args in (("agents__spawn", {"a": 1}), ("apply_patch", {"content": "*** Begin"})):
            step = script(tool=name, args=args)
            answer = await ask(door, "responses", "anthropic", "claude-sonnet-4-5", step, tools=tools)
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            items = [e["item"] for e in events if e["type"] == "response.output_item.done"]
            called.update({item["type"]: item for item in items})
        assert called["function_call"]["namespace"] == "agents"
        assert called["function_call"]["name"] == "spawn"
        assert called["custom_tool_call"]["input"] == "*** Begin"

    translating(test)


def test_reminders_between_messages_stay_reminders(translating: Translating) -> None:
    async def test(door: Door) -> None:
        said = [{"role": "user", "content": "hi"}, {"role": "system", "content": [{"type": "text", "text": "be kind"}]}]
        await ask(door, "anthropic", "chat", "gpt-4o", "", messages=said, system="You are terse.")
        system, first, second = door.server.calls[-1].body["messages"]
        assert "terse" in json.dumps(system)
        assert (system["role"], first["role"], second["role"]) == ("system", "user", "user")
        assert "<system-reminder>\\nbe kind\\n</system-reminder>" in json.dumps(second)

    translating(test)


def test_conversations_with_anthropic_are_cached_there(translating: Translating) -> None:
    async def test(door: Door) -> None:
        said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
        said.append({"role": "user", "content": "three"})
        await ask(door, "responses", "anthropic", "claude-sonnet-4-5", "", input=said, instructions="You are terse.")
        sent = door.server.calls[-1].body
        assert "cache_control" in json.dumps(sent["system"])
        assert "cache_control" in json.dumps(sent["messages"][-1])
        assert sent["max_tokens"] > 16_000

    translating(test)


def test_nothing_is_fetched_and_no_other_way_taken(translating: Translating) -> None:
    """A sandboxed program could else have the host ask any address of its network."""

    async def test(door: Door) -> None:
        picture = {"type": "image_url", "image_url": {"url": door.server.url + "/picture.png"}}
        said = [{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}]
        bad = {"api_base": door.server.url + "/elsewhere", "api_key": "k", "fallbacks": ["x"], "mock_response": "mock"}
        answer = await ask(door, "chat", "anthropic", "claude-sonnet-4-5", "", messages=said, **bad)
        assert answer.status_code == 400
        assert door.server.requests == []
        [call] = door.calls
        assert call.error is not None
        assert "could not be translated" in call.error.message
        assert (call.status, call.cost, call.error.code) == ("refused", 0.0, "model_refused")

        answer = await ask(door, "chat", "anthropic", "claude-sonnet-4-5", "hi CODEWORD-a", **bad)
        assert "CODEWORD-a" in answer.text
        assert [r.path for r in door.server.requests] == ["/v1/messages"]

    translating(test)


def test_requests_that_make_no_sense(translating: Translating) -> None:
    async def test(door: Door) -> None:
        for more in ({"messages": "x"}, {"messages": None}, {"messages": [7]}, {"messages": [], "tools": "x"}):
            answer = await ask(door, "anthropic", "chat", "gpt-4o", "", **more)
            assert answer.status_code == 400, more
            assert answer.json()["error"]["message"]
        door.open("chat", program="anthropic", model="gpt-4o")
        asked = await door.http.post(
            "/v1/messages/count_tokens", json=body("anthropic", model="gpt-4o"), headers={"x-api-key": TOKEN}
        )
        assert asked.status_code == 404  # programs guess then
        for wire in ("chat", "responses"):
            assert (await door.ask(wire, model="gpt-4o")).status_code == 404
        assert door.server.requests == []

    translating(test)


def test_many_calls_at_once(translating: Translating) -> None:
    async def test(door: Door) -> None:
        door.open("anthropic", program="chat", model="claude-sonnet-4-5")

        async def one(n: int) -> None:
            prompt = script(text=f"text of {n}", chunks=5, chunk_delay=0.01)
            answer = await door.ask("chat", prompt, model="claude-sonnet-4-5")
            assert "".join(text_of("chat", answer)) == f"text of {n}"

        await asyncio.gather(*(one(n) for n in range(12)))
        assert sum((c.usage for c in door.calls), Usage()) == Usage(1800, 480, 360, 12)

    translating(test)


def test_a_translator_that_dies_is_started_again(translating: Translating) -> None:
    async def test(door: Door) -> None:
        door.open("chat", program="anthropic", model="gpt-4o")
        assert (await ask(door, "anthropic", "chat", "gpt-4o", "hi")).status_code == 200
        assert door.endpoint._translator is not None
        translator = psutil.Process(door.endpoint._translator.pid)
        assert not {n for n in translator.environ() if n.endswith(("_KEY", "_TOKEN"))}
        asking = asyncio.create_task(ask(door, "anthropic", "chat", "gpt-4o", script(text="x", hang=1.5)))
        await asyncio.to_thread(door.server.wait, 2)
        translator.kill()
        with pytest.raises(httpx.RemoteProtocolError):
            await asking
        assert [c.status for c in door.calls] == ["ok", "cut"]
        door.calls.clear()
        try:
            answer = await ask(door, "anthropic", "chat", "gpt-4o", "hi again")
        except httpx.RemoteProtocolError:  # it was still dying: programs repeat the call
            assert [(c.status, c.cost) for c in door.calls] == [("cut", 0.0)]
            answer = await ask(door, "anthropic", "chat", "gpt-4o", "hi again")
        assert answer.status_code == 200, answer.text
        assert door.endpoint._translator.pid not in (None, translator.pid)

    translating(test)


def test_the_translator_ends_with_the_endpoint_and_is_told_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_API_KEY", KEY)
    before = _translators()

    async def main() -> None:
        with ModelServer(key=KEY) as server:
            async with door(server) as opened:
                opened.open("chat", program="anthropic", model="gpt-4o")
                async with asyncio.timeout(30):
                    while not (found := _translators() - before):
                        await asyncio.sleep(0.05)
                [translator] = found
                assert KEY not in json.dumps([translator.environ(), translator.cmdline()])
            assert not translator.is_running()

    asyncio.run(main())


def test_the_translator_ends_with_an_app_that_is_killed(tmp_path: Path) -> None:
    app = """
import asyncio, os, psutil, sys
from hostler.endpoint.translator import Translator
async def main():
    asyncio.create_task(Translator(sys.argv[1], sys.argv[1] + "/x.sock", patience=1).start())
    while not (found := psutil.Process().children()):
        await asyncio.sleep(0.02)
    await asyncio.sleep(1)
    print(found[0].pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    said = subprocess.run([sys.executable, "-c", app, str(tmp_path)], stdout=subprocess.PIPE, text=True, timeout=30)
    pid = int(said.stdout)
    end = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


def test_the_app_keeps_its_own_handler_of_ended_children(tmp_path: Path) -> None:
    """Although a child was started from the engine's loop."""
    seen: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda number, _: seen.append(number))
    try:
        translator = Translator(str(tmp_path / "missing"), "", patience=1)
        with pytest.raises(TranslationFailed):
            portal.run(translator.start())
        seen.clear()
        subprocess.run(["true"], check=True)
        assert seen
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_start_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    async def main(after: float) -> None:
        translator = Translator(str(tmp_path), str(tmp_path / "x.sock"), patience=1)
        starting = asyncio.create_task(translator.start())
        await asyncio.sleep(after)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert translator.pid is None
        assert _translators() == before

    before = _translators()
    for after in (0, 0.001, 0.1):
        asyncio.run(main(after))


def _translators() -> set[psutil.Process]:
    return {p for p in psutil.Process(os.getpid()).children() if "translator_process" in " ".join(p.cmdline())}


# ---- what is asked -------------------------------------------------------------------------------------------------


def test_only_what_means_something_elsewhere_is_asked() -> None:
    tools = [
        {"name": "Bash", "input_schema": {}},
        {"type": "custom", "name": "Read", "input_schema": {}},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "mcp", "server_url": "http://inside"},
        "x",
    ]
    asked = {
        "messages": [],
        "model": "m",
        "tools": tools,
        "metadata": {"user_id": "u"},
        "mcp_servers": [{}],
        "top_p": None,
    }
    assert translatable("anthropic", asked) == {"messages": [], "tools": tools[:2], "max_tokens": 4096}
    hosted = {"input": "hi", "tools": tools[2:], "tool_choice": "required", "previous_response_id": "r", "store": True}
    assert translatable("responses", hosted) == {"input": "hi"}
    chat = {"messages": [], "stream": True, "stream_options": {"include_usage": False}, "extra_headers": {"a": "b"}}
    assert translatable("chat", chat) == {"messages": [], "stream": True, "stream_options": {"include_usage": True}}
    for wire in set(WIRE_OF.values()):
        with pytest.raises(Untranslatable):
            translatable(wire, {"messages": {}, "input": 7})
