"""Start of the keeper process: leaves its parent, guards, reads its configuration, says that it is ready."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from . import cgroups, guard, init
from .frames import PROTOCOL
from .keeper import Keeper
from .loop import READ, Loop
from .tree import started

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import NoReturn


def main(argv: list[str]) -> NoReturn:
    """``argv``: the mark, the guard to use ("" for the best), the descriptor of the model address or -1, the folder;
    mark and folder say to whoever lists processes whose keeper this is. The configuration, with the token, comes on
    stdin; the answer, one JSON line, goes to stdout."""
    mark, only, model_fd, folder = argv[0], argv[1] or None, int(argv[2]), argv[3]
    _close_all_but({0, 1, 2, model_fd})
    if os.fork():
        os._exit(0)  # the keeper is nobody's child, and leads no session that could get a terminal
    try:
        _keep(mark, only, model_fd, folder)
    except guard.StartFailed as failure:
        _answer({"error": failure.code, "step": failure.step})
    except OSError as error:
        _answer({"error": error.errno or 0, "step": "keeper", "text": str(error)})
    os._exit(1)


def _keep(mark: str, only: str | None, model_fd: int, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    init.become_subreaper()
    guarding = guard.start(mark, only)
    init.become_unreadable()
    config = json.load(sys.stdin)
    loop = Loop()
    model = socket.socket(fileno=model_fd) if model_fd >= 0 else None
    try:
        keeper = Keeper(loop, {**config, "mark": mark, "dir": folder}, guarding, model)
    except BaseException:
        guarding.destroy(mark)
        cgroups.remove([group["dir"] for group in config["groups"]])
        _remove(config["socket"])
        raise
    _on_terminate(loop, keeper)
    own = os.getpid()
    _answer({"pid": own, "start": started(own), "guard": guarding.kind, "protocol": PROTOCOL})
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    while True:
        loop.run_once()


def _on_terminate(loop: Loop, keeper: Keeper) -> None:
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)

    def on_wake(ready: int) -> None:
        if signal.SIGTERM in os.read(wake, 64):
            keeper.terminate()

    loop.watch(wake, READ, on_wake)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)


def _answer(message: dict[str, object]) -> None:
    try:
        os.write(1, json.dumps(message).encode() + b"\n")
    except OSError:
        pass


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _close_all_but(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass
