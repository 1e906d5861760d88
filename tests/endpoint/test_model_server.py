"""The scripted model server itself: users build their tests on it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from endpoint_door import PATHS, WIRES, body, script

from hostler.testing.model_sample import sample
from hostler.testing.model_script import Said, next_step
from hostler.testing.model_server import ModelServer

TOOLS: dict[str, Any] = {
    "anthropic": [{"name": "Bash"}, {"name": "Read"}],
    "responses": [{"type": "function", "name": "exec_command"}, {"type": "custom", "name": "apply_patch"}],
    "chat": [{"type": "function", "function": {"name": "bash"}}, {"type": "function", "function": {"name": "read"}}],
}


def ask(server: ModelServer, wire: str, prompt: str = "hi", **more: Any) -> httpx.Response:
    return httpx.post(server.url + PATHS[wire], json=body(wire, prompt, **more), timeout=10)


@pytest.mark.parametrize("wire", WIRES)
def test_the_answer_shows_what_the_model_was_told(model_server: ModelServer, wire: str) -> None:
    said = [{"role": "user", "content": "one CODEWORD-b"}, {"role": "user", "content": "two CODEWORD-a"}]
    more = {("input" if wire == "responses" else "messages"): said}
    answer = ask(model_server, wire, stream=False, **more)
    assert "ANSWER users=2 memo=CODEWORD-a,CODEWORD-b" in answer.text
    [seen] = model_server.requests
    assert (seen.api, seen.path, seen.body["model"]) == (wire, PATHS[wire], "m")
    assert seen.headers["content-type"] == "application/json"
    assert abs(seen.at - time.time()) < 10


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
def test_tool_calls_one_and_many(model_server: ModelServer, wire: str, stream: bool) -> None:
    steps = [{"shell": "echo one"}, {"tools": [{"shell": "echo two"}, {"tool": "Read", "args": {"path": "three"}}]}]
    model_server.script(steps)
    one = ask(model_server, wire, tools=TOOLS[wire], stream=stream).text
    two = ask(model_server, wire, tools=TOOLS[wire], stream=stream).text
    assert "echo one" in one
    assert "echo two" in two
    assert "three" in two


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {}}, "required": ["a"]},
            {"a": 3},
        ),
        (
            {"$defs": {"A": {"enum": ["x", "y"]}}, "type": "array", "minItems": 2, "items": {"$ref": "#/$defs/A"}},
            ["x", "x"],
        ),
        ({"anyOf": [{"type": "string", "minLength": 6}, {"type": "null"}]}, "wordxx"),
        ({"type": ["boolean", "null"]}, True),
        ({"type": "string", "format": "date"}, "2024-02-29"),
        ({"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}, None),
        ({"const": 0}, 0),
    ],
)
def test_a_sample_fits_its_schema(schema: dict[str, Any], value: Any) -> None:
    assert sample(schema) == value


def test_the_script_in_the_prompt_goes_on_with_the_conversation() -> None:
    prompt = Said("user", 'x @@[{"shell": "a"}, {"text": "b"}]@@')
    tools = {"Bash"}
    assert next_step([prompt], tools, "")["tools"][0]["args"]["command"] == "a"
    done = [prompt, Said("assistant", "", 2), Said("tool", "")]
    assert next_step(done, tools, "") == {"text": "b"}
    assert next_step([*done, Said("assistant", "", 1), Said("tool", "")], tools, "")["text"].startswith("DONE after 2")
    reminder = Said("user", "<system-reminder>x</system-reminder>")
    assert next_step([*done, reminder], tools, "") == {"text": "b"}
    assert next_step([*done, Said("user", "a new prompt")], tools, "")["text"] == "ANSWER users=2 memo="
    # a side call of the program, without tools, sees the same prompt
    assert next_step([prompt], set(), "")["text"].startswith("ANSWER")


@pytest.mark.parametrize(
    ("directive", "words"),
    [
        ("{", "BAD DIRECTIVE"),
        ("[1]", "BAD DIRECTIVE: a step is a JSON object"),
        ('{"txt": "x"}', "UNKNOWN DIRECTIVE: txt; known are"),
        ('{"shell": "x"}', "NO SHELL TOOL among Other"),
    ],
)
def test_a_wrong_script_says_so(directive: str, words: str) -> None:
    assert next_step([Said("user", f"@@{directive}@@")], {"Other"}, "")["text"].startswith(words)


def test_queued_steps_win_and_wait_for_a_call_with_tools(model_server: ModelServer) -> None:
    model_server.script([{"text": "first"}, {"tool": "Read"}, {"text": "third"}])
    assert "first" in ask(model_server, "chat", script(text="of the prompt"), stream=False).text
    assert "ANSWER" in ask(model_server, "chat", stream=False).text
    assert "Read" in ask(model_server, "chat", stream=False, tools=TOOLS["chat"]).text
    model_server.clear()
    assert model_server.requests == []
    assert "ANSWER" in ask(model_server, "chat", stream=False).text


@pytest.mark.parametrize("wire", WIRES)
def test_faults(model_server: ModelServer, wire: str) -> None:
    refused = ask(model_server, wire, script(error=429, type="my_type", message="why", retry_after=3))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert (refused.json()["error"]["type"], refused.json()["error"]["message"]) == ("my_type", "why")
    for stream in (True, False):
        for drop in (True, "before"):
            with pytest.raises(httpx.RemoteProtocolError):
                ask(model_server, wire, script(text="x", drop=drop), stream=stream)
    assert "overloaded" in ask(model_server, wire, script(text="x", stream_error="overloaded")).text
    whole, half = ask(model_server, wire), ask(model_server, wire, script(truncate=True))
    assert 0 < len(half.content) < len(whole.content)
    start = time.monotonic()
    assert "x-mark" in ask(model_server, wire, script(text="x", delay=0.1, hang=0.1, headers={"x-mark": 1})).headers
    assert time.monotonic() - start > 0.2


@pytest.mark.parametrize("wire", WIRES)
def test_reasoning_and_pieces(model_server: ModelServer, wire: str) -> None:
    start = time.monotonic()
    answer = ask(model_server, wire, script(think="deeply", text="abcdef", chunks=3, chunk_delay=0.03)).text
    assert time.monotonic() - start > 0.09
    assert all(f'"{piece}"' in answer for piece in ("deeply", "ab", "cd", "ef"))


def test_the_same_script_gives_the_same_bytes() -> None:
    def answers() -> list[str]:
        with ModelServer() as server:
            return [ask(server, wire, script(tool="x"), tools=TOOLS[wire]).text for wire in WIRES]

    assert answers() == answers()


def test_other_requests_a_key_and_a_log(tmp_path: Path) -> None:
    with ModelServer(key="right", log=tmp_path / "log") as server:
        assert httpx.head(server.url + "/api/hello").status_code == 404
        assert httpx.get(server.url + "/v1/models").json()["data"][0]["id"] == "fake-model"
        for headers, status in (
            ({}, 401),
            ({"x-api-key": "wrong"}, 401),
            ({"x-api-key": "right"}, 200),
            ({"authorization": "Bearer right"}, 200),
        ):
            assert (
                httpx.post(server.url + "/v1/messages", json=body("anthropic"), headers=headers).status_code == status
            )
        assert httpx.post(server.url + "/v1/messages", content=b"{", headers={"x-api-key": "right"}).status_code == 400
        assert [r.api for r in server.requests] == ["other", "models", *["anthropic"] * 5]
        assert len(server.calls) == 5
        logged = sorted((tmp_path / "log").iterdir())
        assert len(logged) == 7
        assert json.loads(logged[2].read_text())["body"]["model"] == "m"


def test_waiting_for_requests(model_server: ModelServer) -> None:
    later = threading.Timer(0.1, ask, (model_server, "chat"))
    later.start()
    assert len(model_server.wait(1)) == 1
    later.join()
    with pytest.raises(TimeoutError, match="1 of 2"):
        model_server.wait(2, timeout=0.05)


def test_stopping_ends_answers_that_hang() -> None:
    def hang() -> None:
        with pytest.raises(httpx.HTTPError):
            ask(server, "chat", script(hang=60))

    with ModelServer() as server:
        hanging = threading.Thread(target=hang)
        hanging.start()
        server.wait(1)
        start = time.monotonic()
    assert time.monotonic() - start < 3
    hanging.join(5)
    assert not hanging.is_alive()


def test_as_a_program() -> None:
    command = [sys.executable, "-m", "hostler.testing.model_server", "--key", "k"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            word, url = process.stdout.readline().split()
            assert word == "listening"
            assert httpx.post(url + "/v1/messages", json=body("anthropic")).status_code == 401
        finally:
            process.terminate()
