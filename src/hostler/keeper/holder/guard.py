"""The keeper's side of the init process: starts it in the strongest form that this machine has, and ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import time

from . import init, tree
from .far import Far
from .loop import log

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any

PIDNS, GUARDIAN = "pidns", "guardian"
_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")
_WAIT = 5.0
_FAR = 3.0


class StartFailed(Exception):
    """``step`` and ``code`` (errno) say what could not be done."""

    def __init__(self, step: str, code: int) -> None:
        super().__init__(step, code)
        self.step = step
        self.code = code


class Guard:
    """A running init process, at first without a program."""

    def __init__(self, kind: str, pid: int, control: socket.socket) -> None:
        self.kind = kind
        self.pid = pid
        self.control = control
        self.program = 0
        self._far: Far | None = None

    def spawn(self, spec: dict[str, Any]) -> tuple[tuple[int, int, int], socket.socket | None]:
        """Start the program; the keeper's ends of its stdin, stdout, stderr, and the listening socket that was bound in
        the program's own network, if it has one."""
        (in_r, in_w), (out_r, out_w), (err_r, err_w), (spec_r, spec_w) = (os.pipe() for _ in range(4))
        theirs = [spec_r, in_r, out_w, err_w]
        far, spec = spec["far"], {name: value for name, value in spec.items() if name != "far"}
        if far is not None:
            ours, other = socket.socketpair()
            self._far = Far(ours)
            theirs.append(other.detach())
            far = {**far, "argv": spec["argv"], "env": spec["env"]}
            spec |= {"argv": far.pop("bridge"), "env": {tree.MARK: spec["env"][tree.MARK]}, "cwd": "/"}
        socket.send_fds(self.control, [b"spawn"], theirs)
        for fd in theirs:
            os.close(fd)
        with open(spec_w, "w") as file:
            json.dump(spec, file)
        message: dict[str, Any] = {}
        listener: socket.socket | None = None
        while "started" not in message:
            message, sender, fds = self._receive()
            if not message:
                self.program = sender
            if "listener" in message:
                listener = socket.socket(fileno=fds[0])
            if "error" in message:
                raise StartFailed(message["step"], message["error"])
        if self._far is not None:
            self._far.begin(far)
        self.control.setblocking(False)
        return (in_w, out_r, err_r), listener

    def message(self) -> dict[str, Any] | None:
        """What init says; None when it is gone."""
        try:
            return self._receive()[0]
        except (OSError, EOFError):
            return None

    def signal(self, number: int, stdin: int | None = None) -> None:
        """To the program. The caller knows that it has not ended. Where the program that was started only encloses
        another one, that is meant: whatever below it reads the same ``stdin`` (an inode)."""
        enclosed = {pid for pid in tree.below(self.program) if stdin is not None and tree.reads(pid, stdin)}
        tree.send(enclosed or [self.program], number)

    def open_turn(self) -> None:
        if self._far is not None:
            self._far.open_turn()

    def sweep_turn(self, limit: float) -> None:
        """End what the turn has started where it is not seen from here."""
        if self._far is not None:
            self._far.sweep_turn(limit)

    def processes(self) -> dict[int, str]:
        """Everything that runs below init, and when each has started."""
        return tree.below(self.pid)

    def destroy(self, mark: str) -> None:
        """Nothing of the program's tree is left after this."""
        if self._far is not None:
            self._far.end(_FAR)
        if self.kind == GUARDIAN:
            tree.kill_all(lambda: (self.processes().keys() | tree.marked(mark)) - {self.pid}, 2.0)
        tree.send([self.pid], signal.SIGKILL)
        deadline = time.monotonic() + 3.0
        while self.pid not in [pid for pid, _ in tree.reap()] and tree.started(self.pid):
            if time.monotonic() > deadline:
                log("the init process does not end")
                break
            time.sleep(0.002)
        tree.kill_all(lambda: tree.below(os.getpid()).keys() | tree.marked(mark), 1.0, reaping=True)

    def _receive(self) -> tuple[dict[str, Any], int, list[int]]:
        """A message, the pid of its sender, and the descriptors that came with it."""
        room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_DESCRIPTOR.size)
        data, ancillary, _, _ = self.control.recvmsg(4096, room)
        if not data:
            raise EOFError("the init process ended")
        sender, fds = 0, []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                sender = _CREDENTIALS.unpack(content)[0]
            elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = [fd for (fd,) in _DESCRIPTOR.iter_unpack(content)]
        return json.loads(data), sender, fds


def start(mark: str, only: str | None) -> Guard:
    """A pid namespace where the system lets us have one, else a guardian; ``only`` forces one of them."""
    if only != GUARDIAN:
        try:
            return _start(PIDNS, mark)
        except (OSError, EOFError) as error:
            log(f"no pid namespace here ({error}): the guardian it is")
            tree.reap()
            if only == PIDNS:
                raise
    return _start(GUARDIAN, mark)


def _start(kind: str, mark: str) -> Guard:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.settimeout(_WAIT)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            if kind == GUARDIAN:
                init.serve(theirs, namespace=False, mark=mark)
            _enter(theirs, mark)
        finally:
            os._exit(1)
    theirs.close()
    guard = Guard(kind, pid, ours)
    try:
        if kind == PIDNS:
            # The process in between names its child and ends: the child comes to us, a subreaper.
            guard.pid = _expect(guard, "init")
            os.waitpid(pid, 0)
            ours.send(b"go")
        _expect(guard, "ready")
    except BaseException:
        tree.send([guard.pid], signal.SIGKILL)
        ours.close()
        raise
    return guard


def _expect(guard: Guard, key: str) -> int:
    message, _, _ = guard._receive()
    if key not in message:
        raise OSError(message.get("failed", "the init process does not start"))
    return int(message[key])


def _enter(control: socket.socket, mark: str) -> None:
    """In the process between keeper and init."""
    try:
        init.unshare()
        pid = os.fork()
        if pid == 0:
            init.serve(control, namespace=True, mark=mark)
        control.send(json.dumps({"init": pid}).encode())
    except OSError as error:
        control.send(json.dumps({"failed": str(error)}).encode())
