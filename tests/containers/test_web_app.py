"""The README's web app as it is written: two workers, a real Redis, a container a chat, the real Claude Code."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis
from tests.containers.daemons import Engine
from tests.containers.images import AGENTS
from tests.docs.test_examples import KEY, PRICES, ROOT, blocks

import hostler
from hostler.harness import Result, State, ToolResult
from hostler.testing.model_server import ModelServer

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nothing_left")]
IMAGE = "my-agents:latest"
# Says which worker has answered, and has a twin of the handler that fails when its turn is over.
MORE = """
@app.middleware("http")
async def name_the_worker(request, call_next):
    response = await call_next(request)
    response.headers["worker"] = str(os.getpid())
    return response
"""
SECONDS = 100.0


@dataclass(frozen=True)
class App:
    url: str
    engine: Engine
    log: Path

    def post(self, path: str, msg: str) -> httpx.Response:
        """On a connection of its own, so that any worker may take it."""
        with httpx.Client(base_url=self.url, timeout=SECONDS, trust_env=False) as http:
            return http.post(path, params={"msg": msg})

    def say(self, chat: str, msg: str) -> tuple[set[str], str]:
        """The words that the chat's agent has been told, and the worker that has answered."""
        answer = self.post(f"/chat/{chat}", msg)
        assert answer.status_code == 200, self.log.read_text()[-3000:]
        said = answer.json()
        assert said["text"].startswith("ANSWER"), said
        assert said["cost"] > 0
        return set(re.findall(r"CODEWORD-(\w+)", said["text"])), answer.headers["worker"]

    def at_once(self, *messages: tuple[str, str]) -> list[tuple[set[str], str]]:
        with ThreadPoolExecutor(len(messages)) as pool:
            return list(pool.map(lambda message: self.say(*message), messages))

    def container(self, chat: str) -> tuple[str, list[str]]:
        """The id of the chat's one container, and the numbers on this machine of the agents in it."""
        with self.engine.client() as client:
            (found,) = client.containers.list(all=True, filters={"name": f"chat-{chat}$"})
            assert found.status == "running"
            titles, lines = (found.top()[name] for name in ("Titles", "Processes"))
            pid, command = titles.index("PID"), titles.index("CMD")
            return found.id, [line[pid] for line in lines if line[command].split()[0].endswith("claude")]


@pytest.fixture
def app(
    docker_engine: Engine, redis_url: str, container_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[App]:
    ((_, code),) = blocks(ROOT / "README.md", "app")
    handler = code[code.index("@app.post") :].replace('"/chat/', '"/broken/').replace("def chat(", "def broken(")
    broken = handler.replace("        await redis.set(", '        raise RuntimeError("hay")\n        await redis.set(')
    assert broken != handler
    (tmp_path / "app.py").write_text(code + MORE + broken)
    name_the_image(docker_engine)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "uvicorn", "app:app", "--workers", "2", "--port", str(port), "--log-level", "warning"]
    log = tmp_path / "app.log"
    with ModelServer(key=KEY, prices=PRICES) as models:
        monkeypatch.setenv("LITELLM_PROXY_API_BASE", models.url)
        monkeypatch.setenv("LITELLM_PROXY_API_KEY", KEY)
        monkeypatch.setenv("REDIS_URL", redis_url)
        with open(log, "wb") as out, subprocess.Popen(argv, cwd=tmp_path, stdout=out, stderr=out) as process:
            try:
                wait_for(f"http://127.0.0.1:{port}/openapi.json", process)
                yield App(f"http://127.0.0.1:{port}", docker_engine, log)
                assert process.poll() is None
            finally:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
        end_all(redis_url)


def name_the_image(engine: Engine) -> None:
    with engine.client() as client:
        client.images.get(AGENTS).tag(*IMAGE.split(":"))


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + SECONDS
    with httpx.Client(trust_env=False) as http:
        while time.monotonic() < end and process.poll() is None:
            try:
                if http.get(url, timeout=SECONDS).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
    raise TimeoutError("The app does not answer.")


def end_all(redis_url: str) -> None:
    """End the agents that wait for a next turn."""
    with redis.Redis.from_url(redis_url) as client:
        for key in client.scan_iter("harness:*"):
            hostler.agent_resume(State.loads(client.get(key))).close()
            client.delete(key)


def test_two_chats_two_workers_one_container_each(app: App, container_name: str) -> None:
    first, second = (f"{container_name}-{name}" for name in ("a", "b"))
    told = app.at_once((first, "Remember CODEWORD-oats."), (second, "Remember CODEWORD-rye."))
    assert [words for words, _ in told] == [{"oats"}, {"rye"}]
    begun = {chat: app.container(chat) for chat in (first, second)}
    assert begun[first][0] != begun[second][0]
    assert all(len(agents) == 1 for _, agents in begun.values())

    told = app.at_once(
        (first, "Remember CODEWORD-hay."),
        (second, "What was it?"),
        (first, "Remember CODEWORD-straw."),  # at once with the other one of this chat
    )
    assert told[1][0] == {"rye"}
    assert sorted(map(len, (told[0][0], told[2][0]))) == [2, 3]  # one after the other, each with all before it
    assert told[0][0] | told[2][0] == {"oats", "hay", "straw"}

    workers: set[str] = set()
    for _ in range(40):
        words, worker = app.say(first, "What was it?")
        assert words == {"oats", "hay", "straw"}
        workers.add(worker)
        if len(workers) == 2:
            break
    assert len(workers) == 2
    # The same containers, and in each the same agent: whoever came later has attached to it.
    assert {chat: app.container(chat) for chat in (first, second)} == begun


def test_a_handler_that_raises_does_not_brick_the_chat(app: App, container_name: str) -> None:
    chat = f"{container_name}-c"
    assert app.post(f"/broken/{chat}", "Remember CODEWORD-chaff.").status_code == 500
    # No State was kept of that one: the chat begins anew, in the container that is there.
    id, _ = app.container(chat)
    assert app.say(chat, "Remember CODEWORD-oats.")[0] == {"oats"}
    assert app.post(f"/broken/{chat}", "Remember CODEWORD-hay.").status_code == 500
    # The turn was over when the handler failed: what it said is part of the chat.
    assert app.say(chat, "What was it?")[0] == {"oats", "hay"}
    assert app.container(chat)[0] == id


def test_sessions_of_a_host_have_a_container_each(
    docker_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's other example, with the real Codex."""
    name_the_image(docker_engine)
    monkeypatch.chdir(tmp_path)
    ((_, code),) = blocks(ROOT / "README.md", "containers")
    with ModelServer(key=KEY, prices=PRICES) as models, docker_engine.client() as client:
        monkeypatch.setenv("LITELLM_PROXY_API_BASE", models.url)
        monkeypatch.setenv("LITELLM_PROXY_API_KEY", KEY)
        given = {"hostler": hostler, "Harness": hostler.Harness, "sandbox": hostler.sandbox}
        exec(compile(code, "README.md", "exec"), given)
        harness = given["reviewers"]

        def ask(key: str, prompt: str) -> Result:
            result: Result = hostler.generate_harness(harness=harness, prompt=prompt, session=key)
            assert result.error is None, result.error
            return result

        def containers() -> set[str]:
            found = client.api.containers(all=True, filters={"label": f"hostler.image={IMAGE}"})
            places = {each["Id"]: json.dumps(client.api.inspect_container(each["Id"])["Mounts"]) for each in found}
            return {id for id, mounts in places.items() if str(tmp_path) in mounts}

        ask("one", "Remember CODEWORD-oats.")
        (first,) = containers()
        ask("two", "Remember CODEWORD-rye.")
        assert len(containers()) == 2
        assert "memo=CODEWORD-oats" in ask("one", "What was it?").text
        folders = "/session /artifacts /persistent /skills"
        result = ask(
            "one", "@@" + json.dumps([{"shell": f"pwd; ls -d {folders}; test -e /workspace || echo none"}]) + "@@"
        )
        (said,) = [event.output for event in result.events if isinstance(event, ToolResult)]
        assert said.split() == ["/session", *sorted(folders.split()), "none"]
        harness.sessions.delete("one")
        assert first not in containers()
        harness.sessions.delete("two")
        assert containers() == set()
