"""The tool that runs shell commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence

_HEAD, _TAIL = 20_000, 20_000  # bytes of the output that are told
_QUIET = 0.3  # s in which what was started in the background may still write


class Output:
    """The beginning and the end of what a command wrote."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._bytes = 0

    def add(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        room = _HEAD - len(self._head)
        self._head += chunk[:room]
        self._tail = (self._tail + chunk[room:])[-_TAIL:] if len(chunk) > room else self._tail

    def text(self) -> str:
        left = self._bytes - len(self._head) - len(self._tail)
        middle = f"\n… ({left} bytes left out) …\n".encode() if left else b""
        return (self._head + middle + self._tail).decode(errors="replace")


class Shell:
    """Runs commands in one folder, each in a process group of its own. What a command leaves in the background goes on."""

    def __init__(self, folder: str, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._env = dict(env)
        self._drains: set[asyncio.Task[None]] = set()

    async def bash(self, command: str, timeout: float) -> tuple[str, bool]:
        """What the command writes, and whether it failed."""
        text, code = await self.command(command, timeout)
        if code is None:
            return f"{text}\n(ended after {timeout:g} s)".lstrip(), True
        if code:
            return f"{text}\n(exit code {code})".lstrip(), True
        return text or "(no output)", False

    async def command(self, command: str, timeout: float) -> tuple[str, int | None]:
        """What a shell command writes, and its exit code, as `run` gives them."""
        shell = shutil.which("bash", path=self._env.get("PATH")) or "/bin/sh"
        return await self.run([shell, "-c", command], timeout)

    async def run(self, argv: Sequence[str], timeout: float) -> tuple[str, int | None]:
        """What it writes, and its exit code; None when it took too long, and was ended with all in its group."""
        # A pipe of our own: asyncio's may keep one waiting for all that have it, not for the command alone.
        ours, theirs = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=self._folder,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        output = Output()
        drain = asyncio.create_task(_drained(ours, output))
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)
        try:
            code = await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            code = None
            await _end(process)
        except asyncio.CancelledError:
            await _end(process)
            raise
        await asyncio.wait({drain}, timeout=_QUIET)
        return output.text(), code


async def _drained(pipe: int, output: Output) -> None:
    """To its end, also behind the command's: whoever still writes must not be stopped by a full pipe."""
    stream = asyncio.StreamReader()
    with os.fdopen(pipe, "rb", buffering=0) as source:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), source)
        try:
            while chunk := await stream.read(1 << 16):
                output.add(chunk)
        finally:
            transport.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
