"""What can go wrong between a host and a keeper."""

from __future__ import annotations

from ..types.errors import HarnessError


class KeeperError(HarnessError):
    """The keeper cannot be started, reached or understood."""


class ProgramNotStarted(KeeperError):
    """The agent program could not be executed; ``errno`` says why."""

    def __init__(self, message: str, errno: int) -> None:
        super().__init__(message)
        self.errno = errno


class KeeperGone(KeeperError):
    """The keeper is dead, and with it the program. Its log is on disk (`read_spool`)."""


class KeeperReplaced(KeeperError):
    """A host with a newer epoch has taken the program over; this one may no longer speak to it."""


class KeeperRefused(KeeperError):
    """The keeper did not let this host in. ``reason``: stale, token, gap or protocol; ``first`` and ``next`` are the
    frame numbers that it has (for gap)."""

    def __init__(self, message: str, reason: str, *, first: int = 0, next: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.first = first
        self.next = next
