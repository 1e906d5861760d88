"""The keeper: a small process that owns one agent program, so that the app need not live as long as the program."""

from .address import Hello, KeeperAddress, KeeperSpec
from .client import Held, attach
from .errors import KeeperError, KeeperGone, KeeperRefused, KeeperReplaced, ProgramNotStarted
from .frames import read_spool
from .launch import alive, destroy, start, sweep

__all__ = [
    "Held",
    "Hello",
    "KeeperAddress",
    "KeeperError",
    "KeeperGone",
    "KeeperRefused",
    "KeeperReplaced",
    "KeeperSpec",
    "ProgramNotStarted",
    "alive",
    "attach",
    "destroy",
    "read_spool",
    "start",
    "sweep",
]
