"""Drives a real program through its Runtime, as the host does: bytes to frames, sends to stdin, in one process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hostler.types.events import ModelCall
from hostler.types.runtime import CodecEvent, Command, Ended, Folded, Frame, LaunchContext, Prompt, Runtime, Unfit

TIMEOUT = 40.0


class Driver:
    """One program. Every state goes through JSON, as through the store."""

    def __init__(self, runtime: Runtime, ctx: LaunchContext) -> None:
        self.runtime, self.codec = runtime, runtime.codec
        launch = runtime.launch(ctx)
        for path, text in launch.files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
        base = {"PATH": os.environ["PATH"], "HOME": ctx.home, "TMPDIR": ctx.tmp, "TERM": "dumb", "LANG": "C.UTF-8"}
        self.process = subprocess.Popen(
            launch.argv,
            env={**base, **launch.env},
            cwd=ctx.workdir,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.events: list[CodecEvent] = []
        self.items: list[Frame | ModelCall | Command] = []
        self.sent: list[tuple[str, bytes]] = []
        self.stderr: list[bytes] = []
        self._no = 0
        self._queue: queue.Queue[bytes | Frame | ModelCall | None] = queue.Queue()
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._drain)]
        for thread in self._threads:
            thread.start()
        self.state: dict[str, Any] = {}
        self._take(self.codec.start(ctx))

    # -- what the host does

    def say(self, command: Command) -> None:
        self.items.append(command)
        self._take(self.codec.encode(self.state, command))

    def feed(self, item: Frame | ModelCall) -> None:
        """Something that the keeper or the endpoint saw; safe to call from another thread."""
        self._queue.put(item)

    def note(self, what: str, call: int = 1) -> None:
        self.feed(Frame(0, "note", json.dumps({"call": call, "what": what, "bytes": 1}).encode()))

    def run(
        self,
        command: Prompt,
        *,
        on: Callable[[CodecEvent], Command | None] | None = None,
        timeout: float = TIMEOUT,
    ) -> list[CodecEvent]:
        """A whole turn: its events, the last one Ended or Unfit."""
        return self.until(command, lambda e: isinstance(e, (Ended, Unfit)), on=on, timeout=timeout)

    def until(
        self,
        command: Command | None,
        stop: Callable[[CodecEvent], bool],
        *,
        on: Callable[[CodecEvent], Command | None] | None = None,
        timeout: float = TIMEOUT,
    ) -> list[CodecEvent]:
        seen = at = len(self.events)
        if command is not None:
            self.say(command)
        end = time.monotonic() + timeout
        while True:
            while at < len(self.events):
                event = self.events[at]
                at += 1
                if on and (answer := on(event)):
                    self.say(answer)
                if stop(event):
                    return self.events[seen:at]
            try:
                self._next(max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"nothing for {timeout} s; so far {self.events[seen:]}") from None

    def wait(self, seconds: float) -> None:
        """Fold what comes in this time."""
        end = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            while (left := end - time.monotonic()) > 0:
                self._next(left)

    def close(self) -> int:
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
        for thread in self._threads:
            thread.join(5)
        return self.process.returncode

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(5)
        for thread in self._threads:
            thread.join(5)

    # -- inside

    def _next(self, timeout: float) -> None:
        got = self._queue.get(timeout=timeout)
        if got is None:
            raise AssertionError(f"the program ended: {b''.join(self.stderr)[-2000:]!r}")
        self._no += 1
        if isinstance(got, bytes):
            got = Frame(self._no, "out", got)
        elif isinstance(got, Frame):
            got = Frame(self._no, got.kind, got.data, got.key)
        self.items.append(got)
        self._take(self.codec.fold(self.state, got))

    def _take(self, folded: Folded) -> None:
        self.state = json.loads(json.dumps(folded.state))
        self.events += folded.events
        for send in folded.sends:
            assert b"\n" not in send.data
            if send.key not in {key for key, _ in self.sent}:
                self.sent.append((send.key, send.data))
                self.process.stdin.write(send.data + b"\n")  # type: ignore[union-attr]
                self.process.stdin.flush()  # type: ignore[union-attr]

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._queue.put(line.removesuffix(b"\n"))
        self._queue.put(None)
        if self.process.stdout:
            self.process.stdout.close()

    def _drain(self) -> None:
        for line in self.process.stderr or ():
            self.stderr.append(line)
        if self.process.stderr:
            self.process.stderr.close()


@contextlib.contextmanager
def driver(runtime: Runtime, ctx: LaunchContext) -> Iterator[Driver]:
    it = Driver(runtime, ctx)
    try:
        yield it
    finally:
        it.close()


def text_of(events: list[CodecEvent]) -> str:
    """What a reader of the stream holds in the end: retracted pieces are gone."""
    pieces: dict[str, str] = {}
    for event in events:
        match type(event).__name__:
            case "Text":
                pieces[event.item] = pieces.get(event.item, "") + event.delta  # type: ignore[union-attr]
            case "Retract":
                pieces.pop(event.item, None)  # type: ignore[union-attr]
    return "".join(pieces.values())
