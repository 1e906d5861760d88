"""Life of the bridge: starts the program in its container, carries what it says and hears, ends it with all it started."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from .engine import ERR, OUT, Engine, EngineError, Stream
from .loop import CHUNK, Loop, Out
from .tunnel import Tunnel

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

CONTROL = 4  # the keeper's descriptor: the configuration in one line, then its wishes
_START = 30.0
_FLUSH = 5.0
_FATE = 0.7
_HERE = Path(__file__).parent
# The program's first word on stderr is its number in there, which nobody else can know.
_BECOME = 'echo "$$" >&2 && exec "$@"'


def main() -> NoReturn:
    control = socket.socket(fileno=CONTROL)
    lines = control.makefile("rb")
    config = json.loads(lines.readline())
    loop = Loop()
    try:
        Bridge(loop, control, config).start()
        while True:
            loop.run_once()
    except EngineError as error:
        _fail(f"The program cannot be started in the container {config['name']!r}: {error}")


class Bridge:
    def __init__(self, loop: Loop, control: socket.socket, config: dict[str, Any]) -> None:
        self._loop = loop
        self._config = config
        self._engine = Engine(config["socket"])
        self._control = control
        self._wishes = bytearray()
        self._out, self._err = Out(loop, 1), Out(loop, 2)
        self._head: bytearray | None = bytearray()  # the first line of stderr, until it is there
        self._tunnel: Tunnel | None = None
        self._guard = Guard(self._engine, loop, config)

    def start(self) -> None:
        """Everything runs behind this. Raises EngineError."""
        self._guard.start()
        if port := self._config["forward"]:
            argv = [self._config["python"], "-c", (_HERE / "forward.py").read_text(), str(port)]
            _, stream = self._exec(argv, {})
            self._tunnel = Tunnel(self._loop, stream, port)
            self._until(lambda: self._tunnel is None or self._tunnel.ready or self._tunnel.gone)
            if not self._tunnel.ready:
                words = self._tunnel.words.decode(errors="replace").strip()
                raise EngineError(0, f"its model cannot be reached from inside: {words or 'no answer'}")
        argv = ["/bin/sh", "-c", _BECOME, "sh", *self._config["argv"]]
        self._id, self._stream = self._exec(argv, {**self._config["env"], "HOSTLER_RUN": self._config["mark"]})
        self._in = Out(self._loop, self._stream.socket.fileno(), self._stream.socket)
        self._in.on_room = self._out.on_room = self._err.on_room = self._gate
        self._on_output(self._stream.parsed())
        self._control.setblocking(False)
        os.set_blocking(0, False)
        self._loop.read(CONTROL, self._on_wish)
        self._on_signal(signal.SIGTERM, lambda: self._guard.say("term"))
        self._gate()

    def _exec(self, argv: list[str], env: dict[str, str]) -> tuple[str, Stream]:
        config = self._config
        return self._engine.start(config["container"], argv, env, config["user"], config["cwd"])

    def _until(self, condition: Any) -> None:
        end = time.monotonic() + _START
        while not condition() and time.monotonic() < end:
            self._loop.run_once(end - time.monotonic())

    # ---- what the program says and hears ---------------------------------------------------------------------------

    def _gate(self) -> None:
        """Nothing is read for which there is no room on the other side."""
        if not self._in.gone:
            self._loop.read(0, None if self._in.full else self._read_in)
        full = self._out.full or self._err.full
        self._loop.read(self._stream.socket.fileno(), None if full else self._read_out)

    def _read_in(self) -> None:
        data = os.read(0, CHUNK)
        if data:
            self._in.put(data)
            self._gate()
        else:
            self._loop.read(0, None)
            self._in.end()

    def _read_out(self) -> None:
        found = self._stream.read()
        if found is None:
            self._loop.forget(self._stream.socket.fileno())
            self._end()
        self._on_output(found)
        self._gate()

    def _on_output(self, found: list[tuple[int, bytes]]) -> None:
        for kind, data in found:
            if kind == OUT:
                self._out.put(data)
            elif kind == ERR:
                self._err.put(self._without_head(data))

    def _without_head(self, data: bytes) -> bytes:
        if self._head is None:
            return data
        self._head += data
        first, newline, rest = bytes(self._head).partition(b"\n")
        if not newline:
            return b""
        self._head = None
        if not first.isdigit():  # the shell's own words: the program cannot be started
            return first + newline + rest
        self._guard.say(f"program {first.decode()}")
        return rest

    # ---- what the keeper wants -------------------------------------------------------------------------------------

    def _on_wish(self) -> None:
        data = self._control.recv(CHUNK)
        if not data:  # the keeper is gone: what stands for the program goes, too, and the guard sees to the rest
            os._exit(1)
        self._wishes += data
        while b"\n" in self._wishes:
            wish, _, rest = bytes(self._wishes).partition(b"\n")
            self._wishes[:] = rest
            self._guard.say(wish.decode(), self._answer)

    def _answer(self, word: bytes) -> None:
        if word.startswith((b"swept ", b"ended ")):
            try:
                self._control.send(word + b"\n")
            except OSError:
                pass

    def _on_signal(self, number: int, callback: Any) -> None:
        wake, waker = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(number, lambda *_: None)

        def on_wake() -> None:
            os.read(wake, 64)
            callback()

        self._loop.read(wake, on_wake)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _end(self) -> NoReturn:
        """The program's stream has ended: with it, with its container, or with the engine."""
        code = 1
        if self._head:
            self._err.put(bytes(self._head))
        try:
            code = self._exit_code()
            if code > 128:
                self._err.put(self._fate().encode())
        except EngineError as error:
            self._err.put(f"\nThe container {self._config['name']!r} was lost: {error}\n".encode())
        end = time.monotonic() + _FLUSH
        while (self._out.waiting or self._err.waiting) and time.monotonic() < end:
            self._loop.run_once(end - time.monotonic())
        os._exit(code)

    def _exit_code(self) -> int:
        for _ in range(100):
            found = self._engine.call("GET", f"/exec/{self._id}/json")
            if not found["Running"] and found["ExitCode"] is not None:
                return int(found["ExitCode"])
            time.sleep(0.02)
        return 1

    def _fate(self) -> str:
        """What became of the container, if the program was killed with it."""
        name, words = self._config["name"], ""
        removed = f"\nThe container {name!r} was removed while the program ran in it.\n"
        end = time.monotonic() + _FATE
        while time.monotonic() < end:  # its program ends a little before it does, and it ends before it is removed
            try:
                state = self._engine.call("GET", f"/containers/{self._config['container']}/json")["State"]
            except EngineError as error:
                if error.status == 404:
                    return removed
                raise
            if state["Status"] in ("removing", "dead"):
                return removed
            if not state["Running"]:
                words = f"\nThe container {name!r} was stopped while the program ran in it (exit code {state['ExitCode']}).\n"
            elif state.get("OOMKilled"):
                words = f"\nA process in the container {name!r} wanted more memory than its limit, and was ended.\n"
            time.sleep(0.05)
        return words


class Guard:
    """The script in the container that ends what the program has started there. If the agent kills it, it is made anew."""

    def __init__(self, engine: Engine, loop: Loop, config: dict[str, Any]) -> None:
        self._engine = engine
        self._loop = loop
        self._config = config
        self._stream: Stream | None = None
        self._out: Out | None = None
        self._said = bytearray()
        self._ready = False
        self._before = ""  # what ran in the container before the program did
        self._program = ""
        self._answer: Any = lambda word: None

    def start(self) -> None:
        """Raises EngineError."""
        config = self._config
        argv = ["/bin/sh", "-c", (_HERE / "guard.sh").read_text(), "sh", config["mark"], self._before]
        # Without the mark: who ends what carries it leaves the guard to its work.
        _, self._stream = self._engine.start(config["container"], argv, {}, config["user"], "/")
        self._out = Out(self._loop, self._stream.socket.fileno(), self._stream.socket)
        self._said.clear()
        self._ready = False
        self._loop.read(self._stream.socket.fileno(), self._read)
        self._hear(self._stream.parsed())
        end = time.monotonic() + _START
        while not self._ready and self._stream is not None and time.monotonic() < end:
            self._loop.run_once(end - time.monotonic())
        if not self._ready:
            raise EngineError(0, self._said.decode(errors="replace").strip() or "its /bin/sh does not answer")

    def say(self, words: str, answer: Any = None) -> None:
        if words.startswith("program "):
            self._program = words
        if answer is not None:
            self._answer = answer
        if self._stream is None:
            try:
                self.start()
            except EngineError:
                return  # the container is gone, and with it all that could be ended
            self._put(self._program)
        self._put(words)

    def _put(self, words: str) -> None:
        assert self._out is not None
        self._out.put(f"{words}\n".encode())

    def _read(self) -> None:
        assert self._stream is not None
        found = self._stream.read()
        if found is None:
            self._loop.forget(self._stream.socket.fileno())
            self._stream.socket.close()
            self._stream = None
        else:
            self._hear(found)

    def _hear(self, found: list[tuple[int, bytes]]) -> None:
        for _, data in found:
            self._said += data
        while b"\n" in self._said:
            line, _, rest = bytes(self._said).partition(b"\n")
            if not self._ready and not line.startswith(b"ready "):
                return  # the shell's own words
            self._said[:] = rest
            if self._ready:
                self._answer(line)
            else:
                self._ready, self._before = True, line.decode().removeprefix("ready ")


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    os._exit(127)
