"""A real LiteLLM proxy in front of the scripted model, started once for all tests of this folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from hostler.testing.model_server import ModelServer

KEY = "sk-planted-gateway-key-5b1c9e"  # the proxy's master key; nothing but hostler's own process may know it
_ROOT = Path(__file__).resolve().parents[2]
_PLACE = Path(os.environ.get("HOSTLER_TEST_LITELLM") or _ROOT / ".venv-litellm")
_READY = 120.0

# What the proxy makes of a call: the tags and the metadata that it would bill it to.
_RECORDER = """
import json, os
from litellm.integrations.custom_logger import CustomLogger

class Recorder(CustomLogger):
    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        call = kwargs["standard_logging_object"]
        told = {"group": call["model_group"], "tags": call["request_tags"], "cost": call["response_cost"],
                "metadata": call["metadata"].get("spend_logs_metadata")}
        with open(os.environ["RECORDED"], "a") as file:
            file.write(json.dumps(told) + "\\n")

recorder = Recorder()
"""


@dataclass(frozen=True)
class Gateway:
    """The proxy, the scripted model behind it, and what the proxy booked."""

    url: str
    models: ModelServer
    log: Path
    recorded: Path

    def booked(self, session: str, count: int) -> list[dict[str, Any]]:
        """The session's calls as the proxy booked them, once there are ``count``: a moment after it has answered."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            lines = self.recorded.read_text().splitlines() if self.recorded.exists() else []
            calls = [call for call in map(json.loads, lines) if call["metadata"]["session"] == session]
            if len(calls) >= count:
                return calls
            time.sleep(0.05)
        raise TimeoutError(f"The proxy booked {len(calls)} of {count} calls.")


@pytest.fixture(scope="session")
def _proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    program = _PLACE / "bin" / "litellm"
    if not program.exists():
        pytest.skip(f"no LiteLLM proxy at {_PLACE}: `make test` installs it, HOSTLER_TEST_LITELLM names another place")
    folder = tmp_path_factory.mktemp("gateway")
    with ModelServer() as models:
        groups = {
            "coder": ("anthropic/claude-sonnet-4-5", models.url),
            "coder-openai": ("openai/gpt-5", models.url + "/v1"),
        }
        config = {
            "model_list": [
                {"model_name": name, "litellm_params": {"model": model, "api_base": base, "api_key": "upstream-key-1"}}
                for name, (model, base) in groups.items()
            ],
            "general_settings": {"master_key": KEY},
            "litellm_settings": {"telemetry": False, "callbacks": "recorder.recorder"},
        }
        (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        (folder / "recorder.py").write_text(_RECORDER)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        gateway = Gateway(f"http://127.0.0.1:{port}", models, folder / "proxy.log", folder / "recorded.jsonl")
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RECORDED": str(gateway.recorded),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            "NO_PROXY": "127.0.0.1",
        }
        argv = [str(program), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
        with open(gateway.log, "wb") as log:
            process = subprocess.Popen(argv, cwd=folder, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            _wait_ready(gateway, process)
            yield gateway
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _wait_ready(gateway: Gateway, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _READY
    with httpx.Client(trust_env=False) as http:
        while time.monotonic() < end and process.poll() is None:
            try:
                if http.get(gateway.url + "/health/liveliness", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
    raise TimeoutError(f"The LiteLLM proxy is not ready:\n{gateway.log.read_text(errors='replace')[-3000:]}")


@pytest.fixture
def gateway(_proxy: Gateway, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """The proxy, named in the environment as its users do."""
    _proxy.models.clear()
    monkeypatch.setenv("LITELLM_PROXY_API_BASE", _proxy.url)
    monkeypatch.setenv("LITELLM_PROXY_API_KEY", KEY)
    return _proxy
