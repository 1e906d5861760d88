"""The keeper: a small process that owns one agent program, so that the app need not live as long as the program."""

from .address import Hello, KeeperAddress, KeeperSpec
from .census import Found, age, dismiss, remains, running, size
from .client import Held, attach, attached, end
from .errors import KeeperError, KeeperGone, KeeperRefused, KeeperReplaced, ProgramNotStarted
from .frames import read_spool
from .holder.frames import PROTOCOL
from .launch import alive, destroy, forget, runtime_dir, stale_sockets, start, sweep

__all__ = [
    "PROTOCOL",
    "Found",
    "Held",
    "Hello",
    "KeeperAddress",
    "KeeperError",
    "KeeperGone",
    "KeeperRefused",
    "KeeperReplaced",
    "KeeperSpec",
    "ProgramNotStarted",
    "age",
    "alive",
    "attach",
    "attached",
    "destroy",
    "dismiss",
    "end",
    "forget",
    "read_spool",
    "remains",
    "running",
    "runtime_dir",
    "size",
    "stale_sockets",
    "start",
    "sweep",
]
