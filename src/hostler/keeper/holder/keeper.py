"""The keeper: joins program, log, door and model address, and decides when everything ends."""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable

from . import cgroups, door, frames
from .door import Client, Door, Refusal, Visitor
from .guard import Guard
from .loop import READ, Loop, Timer, log, log_exception
from .model import ModelAddress
from .program import Lines, Program
from .spool import Entry, Spool
from .tree import below, kill_all, reads

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

_OF_PROGRAM = ("argv", "env", "cwd", "feeds", "model_port", "enclosed", "far")
_RETRY_DISK = 0.5
_FIRST_HOST = 10.0  # a program, also one that has ended, is kept this long for the host that started it
_SWEEP = 1.5
_END_GRACE = 1.0
_FLUSH = 0.5
_USELESS = 2.0  # s between the end of its stdin or stdout and the program's own


class Keeper:
    def __init__(self, loop: Loop, config: dict[str, Any], guard: Guard, model: socket.socket | None) -> None:
        self._loop = loop
        self._config = config
        self._guard = guard
        self._spool = Spool(os.path.join(config["dir"], "spool"), config["spool_limit"])
        self._pending: deque[tuple[Entry, Callable[[], None] | None]] = deque()
        self._retry: Timer | None = None

        self._epoch = 0
        self._holder = ""
        self._client: Client | None = None
        self._expiry: Timer | None = None

        self._keys: set[str] = set()
        self._acked = 0
        self._turn_open = False
        self._spared: set[tuple[int, str]] = set()

        self._exited: int | None = None
        self._ending = self._finishing = False
        self._to_tell: list[Visitor] = []

        listener = _listen(config["socket"])
        self._groups = cgroups.make(config["groups"])
        pipes, bound = guard.spawn(
            {**{name: config[name] for name in _OF_PROGRAM}, "groups": [group["dir"] for group in config["groups"]]}
        )
        model = bound or model
        self._program = Program(
            loop, pipes, Lines(self._spool.folder), self._on_output, self._on_first_word, self._on_closed
        )
        self._model: ModelAddress | None = None
        if model:
            hold_limit = config["hold_limit"]
            self._model = ModelAddress(
                loop, model, hold_limit, self._note, self._program.drain, lambda: self._spool.next
            )
        Door(loop, listener, self._admit)
        loop.watch(guard.control, READ, self._on_init)
        self._program.gate(True)
        self._expiry = loop.call_later(config["park_ttl"], self._expire)
        self._unclaimed: Timer | None = loop.call_later(min(_FIRST_HOST, config["park_ttl"]), self._disown)

    # ---- the log ---------------------------------------------------------------------------------------------------

    def _record(self, entry: Entry, then: Callable[[], None] | None = None) -> None:
        """Into the log, then ``then``. While the disk is full it waits here, and the program is not read."""
        self._pending.append((entry, then))
        self._flush()

    def _on_output(self, entries: Iterable[Entry]) -> None:
        self._pending.extend((entry, None) for entry in entries)
        self._flush()

    def _flush(self) -> None:
        stalled = False
        if self._pending:
            done = self._spool.put([entry for entry, _ in self._pending])
            stalled = done < len(self._pending)
            for then in [self._pending.popleft()[1] for _ in range(done)]:
                if then is not None:
                    then()  # the program comes first: the host already knows what it has said
            if self._client is not None:
                self._client.pump()
        try:
            self._program.spill()
        except OSError:
            stalled = True
        if stalled and self._retry is None:
            log("the log cannot be written (disk full?): the program waits")
            self._retry = self._loop.call_later(_RETRY_DISK, self._try_again)
        self._program.gate(self._exited is None and not stalled and not self._spool.full)

    def _try_again(self) -> None:
        self._retry = None
        self._flush()

    def _note(self, note: str) -> None:
        if self._exited is None:
            self._record((frames.NOTE, note.encode()))

    # ---- hosts -----------------------------------------------------------------------------------------------------

    def _admit(self, visitor: Visitor, request: dict[str, Any]) -> None:
        if request.get("protocol") != frames.PROTOCOL:
            raise Refusal("protocol", protocol=frames.PROTOCOL)
        if not door.same(str(request["token"]), self._config["token"]):
            raise Refusal("token")
        epoch, holder, command = int(request["epoch"]), str(request["holder"]), request.get("command")
        if self._client is not None:
            self._client.read_all()  # what the attached host said before comes before
        if epoch < self._epoch or (epoch == self._epoch and holder != self._holder):
            raise Refusal("stale", epoch=self._epoch)
        if command == "probe":
            visitor.say(frames.DONE, {"attached": self._client is not None})
            return visitor.leave()
        if epoch > self._epoch:
            self._put_out()
        self._epoch, self._holder = epoch, holder
        if command is None:
            self._attach(visitor, int(request["after"]), request.get("upstream"))
        elif command == "sweep":
            self._sweep_turn()
            visitor.say(frames.DONE, {})
            visitor.leave()
        elif command == "end":
            visitor.release()
            self._to_tell.append(visitor)
            self._end(float(request["grace"]))
        else:
            raise ValueError(f"no such command: {command!r}")

    def _put_out(self) -> None:
        """A newer lease: the older host may no longer speak, nor answer a model call."""
        self._close_client()
        if self._model is not None:
            self._model.drop_calls()

    def _attach(self, visitor: Visitor, after: int, upstream: str | None) -> None:
        self._close_client()
        if not self._spool.first <= after + 1 <= self._spool.next:
            raise Refusal("gap", first=self._spool.first, next=self._spool.next)
        hello = {
            "epoch": self._epoch,
            "first": self._spool.first,
            "next": self._spool.next,
            "exited": self._exited,
            "pid": self._guard.program,
        }
        cursor = self._spool.cursor(after + 1)
        self._client = Client(self._loop, visitor, cursor, hello, self._on_frame, self._on_client_left)
        self._disarm()
        if self._model is not None and upstream is not None:
            self._model.host_came(upstream)
        self._client.pump()

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._be_alone()

    def _on_client_left(self) -> None:
        self._be_alone()
        self._leave_if_done()

    def _be_alone(self) -> None:
        self._client = None
        if self._model is not None:
            self._model.host_left()
        self._expiry = self._loop.call_later(self._config[self._ttl()], self._expire)

    def _on_frame(self, number: int, kind: bytes, payload: bytes) -> None:
        if kind == frames.SEND:
            self._on_input(payload)
        elif kind == frames.OPEN_TURN:
            self._open_turn()
        elif kind in (frames.ACK, frames.ACK_DONE):
            if kind == frames.ACK_DONE:
                self._turn_open = False
            self._acked = max(self._acked, min(number, self._spool.next - 1))
            self._spool.free(self._acked, self._client.cursor if self._client else None)
            self._program.gate(self._exited is None and not self._pending and not self._spool.full)
            self._leave_if_done()
        else:
            raise ValueError(f"frame of unknown kind {kind!r}")

    def _on_input(self, payload: bytes) -> None:
        key, data = frames.unpack_input(payload)
        if key not in self._keys and self._exited is None and not self._ending:
            self._keys.add(key)
            # Logged before it is given: what the program has seen is always in the log.
            self._record((frames.INPUT, payload), lambda: self._program.write(data))

    # ---- the turn --------------------------------------------------------------------------------------------------

    def _open_turn(self) -> None:
        self._turn_open = True
        self._guard.open_turn()
        self._spared = set(self._guard.processes().items())

    def _on_first_word(self) -> None:
        """The program is up. If the turn was opened before that, it is known by its stdin, and what encloses it by
        that."""
        if self._turn_open:
            stdin = self._program.stdin_inode
            processes = self._guard.processes()
            readers = {pid for pid in processes if reads(pid, stdin)}
            self._spared |= {one for one in processes.items() if one[0] in readers or readers & below(one[0]).keys()}

    def _sweep_turn(self) -> None:
        """End what the turn has started; the program and what ran beside it before stay."""

        def find() -> set[int]:
            return {pid for pid, _ in self._guard.processes().items() - self._spared if pid != self._guard.program}

        self._guard.sweep_turn(_SWEEP)
        kill_all(find, _SWEEP)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _ttl(self) -> str:
        return "orphan_ttl" if self._turn_open else "park_ttl"

    def _disarm(self) -> None:
        for timer in (self._expiry, self._unclaimed):
            if timer is not None:
                timer.cancel()
        self._expiry = self._unclaimed = None

    def _disown(self) -> None:
        self._unclaimed = None
        if self._exited is None:
            log("the host that started the program never came for it: it is ended")
            self._end(_END_GRACE)
        else:
            self._leave_if_done()

    def _expire(self) -> None:
        log(f"no host within {self._ttl()}: the program is ended")
        self._end(_END_GRACE)

    def terminate(self) -> None:
        """SIGTERM to the keeper."""
        self._end(_END_GRACE)

    def _end(self, grace: float) -> None:
        """Close stdin, wait, SIGTERM, wait, then the whole tree. A later, shorter grace wins."""
        self._ending = True
        if self._exited is not None or grace <= 0:
            self._finish()
        self._program.close_stdin()
        self._loop.call_later(grace, self._ask_to_end)
        self._loop.call_later(grace + min(grace, 1.0), self._finish)

    def _ask_to_end(self) -> None:
        if self._exited is None:
            self._guard.signal(signal.SIGTERM, self._program.stdin_inode if self._config["enclosed"] else None)

    def _on_closed(self, stream: str) -> None:
        """What lives on without its stdin or stdout can neither be asked anything nor answer."""
        self._loop.call_later(_USELESS, lambda: self._end_useless(stream))

    def _end_useless(self, stream: str) -> None:
        if self._exited is None and not self._ending:
            words = f"\nIt closed its {stream} and did not end: it was of no use any more, so it was ended.\n"
            self._record((frames.ERR, words.encode()))
            self._guard.signal(signal.SIGTERM)
            self._loop.call_later(_USELESS, self._kill_useless)

    def _kill_useless(self) -> None:
        if self._exited is None:
            self._guard.signal(signal.SIGKILL)

    def _on_init(self, ready: int) -> None:
        message = self._guard.message()
        if message is None:  # killed, and with it the program
            log("the init process is gone")
            self._finish()
        elif "exit" in message:
            self._loop.unwatch(self._guard.control)
            self._on_exit(message["exit"])

    def _on_exit(self, code: int) -> None:
        self._record_exit(code)
        self._leave_if_done()

    def _record_exit(self, code: int) -> None:
        if self._exited is None:
            if self._model is not None:
                self._model.settle()
            self._program.finish()
            self._exited = code
            self._record((frames.EXIT, b"%d" % code))

    def _leave_if_done(self) -> None:
        if self._exited is None or self._finishing:
            return
        if self._ending:
            self._finish()
        if self._turn_open or self._unclaimed is not None:
            return
        if self._client is None or (self._acked >= self._spool.next - 1 and not self._pending):
            self._finish()

    def _finish(self) -> NoReturn:
        """Nothing is left after this, the keeper included."""
        self._finishing = True
        try:
            self._guard.destroy(self._config["mark"])
            self._record_exit(-signal.SIGKILL)
            if self._client is not None:
                self._client.flush(_FLUSH)
        except Exception:
            log_exception()
        cgroups.remove(self._groups)
        try:
            os.unlink(self._config["socket"])
        except OSError:
            pass
        for visitor in self._to_tell:
            visitor.say(frames.DONE, {})
        os._exit(0)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
    listener.listen(1024)
    return listener
