"""Real agent programs behind the endpoint: what it answers ends their turn in time, and their calls are counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from endpoint_door import TOKEN, Door, Run, script

pytestmark = pytest.mark.real


def claude(home: Path, url: str) -> tuple[list[str], dict[str, str]]:
    sdk = pytest.importorskip("claude_agent_sdk")
    program = Path(sdk.__file__).parent / "_bundled" / "claude"
    if not program.exists():
        pytest.skip("this claude-agent-sdk brings no program")
    argv = [
        str(program),
        "-p",
        "--output-format",
        "json",
        "--model",
        "m",
        "--setting-sources",
        "",
        "--strict-mcp-config",
    ]
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    return argv, {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": TOKEN, "CLAUDE_CONFIG_DIR": str(home / "c"), **quiet}


def codex(home: Path, url: str) -> tuple[list[str], dict[str, str]]:
    program = pytest.importorskip("codex_cli_bin").bundled_codex_path()
    (home / "c").mkdir()
    (home / "t").mkdir()
    provider = f'{{name="p",base_url="{url}/v1",wire_api="responses",env_key="TOKEN"}}'
    settings = [f"model_providers.p={provider}", 'model_provider="p"', "analytics.enabled=false"]
    settings.append("check_for_update_on_startup=false")
    options = [word for setting in settings for word in ("-c", setting)]
    argv = [str(program), "exec", "--json", "--skip-git-repo-check", "-m", "m", "--disable", "plugins", *options, "-"]
    return argv, {"CODEX_HOME": str(home / "c"), "TMPDIR": str(home / "t"), "TOKEN": TOKEN}


PROGRAMS = {"anthropic": claude, "responses": codex}


@contextlib.asynccontextmanager
async def address(path: str) -> AsyncIterator[str]:
    """A TCP address in front of the endpoint's socket, as the keeper gives to programs."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_unix_connection(path)
        await asyncio.gather(copy(reader, outer), copy(inner, writer))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def turn(door: Door, wire: str, prompt: str) -> tuple[str, float]:
    """What the program says about one turn, and how long it took."""
    door.open(wire)
    with tempfile.TemporaryDirectory(prefix="hostler-", ignore_cleanup_errors=True) as directory:
        async with address(door.endpoint.socket_path) as url:
            argv, env = PROGRAMS[wire](Path(directory), url)
            start = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *argv,
                env={"PATH": os.environ["PATH"], "HOME": directory, "LANG": "C.UTF-8", **env},
                cwd=directory,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(18):
                    out, _ = await process.communicate(prompt.encode())
            except TimeoutError:
                process.kill()
                await process.wait()
                raise
            return out.decode(), time.monotonic() - start


@pytest.mark.parametrize("wire", PROGRAMS)
def test_a_turn(run: Run, wire: str) -> None:
    async def test(door: Door) -> None:
        out, _ = await turn(door, wire, "hi CODEWORD-real")
        assert "ANSWER users=" in out
        assert "CODEWORD-real" in out
        assert [c.status for c in door.calls] == ["ok"]
        assert json.dumps(dict(door.server.calls[0].headers)).count(TOKEN) == 0

    run(test)


@pytest.mark.parametrize("wire", PROGRAMS)
@pytest.mark.parametrize(
    ("step", "calls", "code"),
    [
        ({"error": 401}, 1, "model_auth"),
        ({"error": 503}, 1, "model_unavailable"),
        ({"error": 429, "retry_after": 60}, 1, "model_rate_limited"),
        ({"text": "x", "drop": True}, 4, "model_cut"),
        ({"text": "x", "hang": 30}, 2, "model_silent"),
    ],
)
def test_a_failing_model_ends_the_turn(run: Run, wire: str, step: dict[str, Any], calls: int, code: str) -> None:
    async def test(door: Door) -> None:
        out, took = await turn(door, wire, f"x {script(**step)}")
        assert took < 15
        assert len(door.calls) == calls
        error = door.calls[-1].error
        assert error is not None
        assert error.code == code
        assert code in out or error.message[:40] in out

    run(test, patience=1.0, silence=2.0)
