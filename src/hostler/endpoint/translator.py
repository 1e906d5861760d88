"""The process that translates between wires: started when the first call needs it, ended with the endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx

_PROCESS = "hostler.endpoint.translator_process"
_START = 60.0
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")  # not the app's environment: it holds secrets


class TranslationFailed(Exception):
    """Nothing could be translated; says why."""


class Translator:
    """LiteLLM behind a socket. It runs in a process of its own: it takes seconds and 200 MB to import, keeps settings
    and background work per process, of which an app that uses it has its own, and never needs to see a key.

    ``directory`` is private to this user; ``endpoint`` is the socket that the process may ask upstreams through.
    ``patience`` is how many seconds it may say nothing.
    """

    def __init__(self, directory: str, endpoint: str, *, patience: float) -> None:
        self._path = os.path.join(directory, "wires.sock")
        self._endpoint = endpoint
        self._patience = patience
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._client: httpx.AsyncClient | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    async def start(self) -> httpx.AsyncClient:
        """Have the process run. Raises TranslationFailed."""
        async with self._starting:
            if self._client is None or self.pid is None:
                await self.aclose()
                self._process = await self._launch()
                # connections are not kept: they would outlive the process
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
                self._client = httpx.AsyncClient(
                    transport=httpx.AsyncHTTPTransport(uds=self._path, verify=False, limits=limits),
                    base_url="http://translator",
                    timeout=httpx.Timeout(self._patience, connect=5.0, pool=None),
                    trust_env=False,
                )
            return self._client

    async def warm(self) -> None:
        """Start it ahead of the first call, which is told if that fails."""
        with contextlib.suppress(TranslationFailed):
            await self.start()

    @contextlib.asynccontextmanager
    async def ask(self, request: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """The answer in the program's wire, streamed. Raises TranslationFailed, and HTTPError when it breaks."""
        response = await self._send(await asyncio.to_thread(json.dumps, request))
        try:
            yield response
        finally:
            await response.aclose()

    async def _send(self, content: str) -> httpx.Response:
        client = await self.start()
        try:
            return await client.send(client.build_request("POST", "/", content=content), stream=True)
        except httpx.ConnectError:  # it has died, which is not always known at once
            async with self._starting:
                if client is self._client:
                    await self.aclose()
        client = await self.start()
        return await client.send(client.build_request("POST", "/", content=content), stream=True)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        process, self._process = self._process, None
        if client is not None:
            await client.aclose()
        if process is not None:
            await _end(process)

    async def _launch(self) -> subprocess.Popen[bytes]:
        spawning = asyncio.ensure_future(asyncio.to_thread(self._spawn))
        try:
            process = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            await _end(await spawning)
            raise
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(_START):
                if await asyncio.to_thread(process.stdout.readline) == b"ready\n":
                    return process
                said = (await asyncio.to_thread(process.stderr.read))[-500:].decode(errors="replace").strip()
            why = said.rpartition("\n")[2] or "it said nothing"
        except TimeoutError:
            why = f"it was not ready after {_START:g} s"
        except BaseException:
            await _end(process)
            raise
        await _end(process)
        raise TranslationFailed(f"the translator (LiteLLM) does not start: {why}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        """In a thread, without the help of the loop: uvloop takes the handler of SIGCHLD from the app."""
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        return subprocess.Popen(
            (sys.executable, "-P", "-W", "ignore", "-m", _PROCESS, self._path, self._endpoint),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd="/",
            start_new_session=True,
        )


async def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    await asyncio.to_thread(process.wait)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
