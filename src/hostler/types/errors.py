"""Errors that hostler raises. Each message says what happened, to which session, and what to do next."""

from __future__ import annotations


class HarnessError(Exception):
    """Base of every hostler error."""


class CapabilityUnsupported(HarnessError):
    """The program, the sandbox or this machine cannot hold what was asked for; nothing was started."""


class OptionsMismatch(HarnessError):
    """A resumed session lacks something that it was created with (the message names it)."""


class HarnessInstallFailed(HarnessError):
    """The agent program is not installed or does not start; the message says how to install it."""


class SandboxError(HarnessError):
    """The sandbox cannot be made, found or used."""


class SessionBusy(HarnessError):
    """The session runs a turn already and ``on_busy="reject"`` was asked for. Safe to retry later."""


class SessionClosed(HarnessError):
    """The handle was closed, detached or stopped; resume the session to go on."""


class SessionLost(HarnessError):
    """The stored conversation is gone: unknown to this store, or the program's own files are missing."""


class StateIncompatible(HarnessError):
    """A state that cannot be read, was made for something else, or does not fit this sandbox."""


class OutputInvalid(HarnessError):
    """The agent's structured output does not fit the schema. ``text`` and ``result`` keep what it said."""

    def __init__(self, message: str, *, text: str = "", result: object = None) -> None:
        super().__init__(message)
        self.text = text
        self.result = result


class PathError(HarnessError, ValueError):
    """A path that is absolute where it may not be, leaves its root, or follows a link out of it."""


class PersistenceError(HarnessError):
    """A persistent dir could not be loaded or stored; its changes are still in the session. ``result`` is that of the
    turn behind which it happened, if there was one; ``persistence`` says what became of each dir."""

    def __init__(self, message: str, *, result: object = None, persistence: object = None) -> None:
        super().__init__(message)
        self.result = result
        self.persistence = persistence


class PersistenceConflict(PersistenceError):
    """A persistent dir was changed by somebody else at the same paths; nothing was stored. The ``store`` of a persistent
    dir raises it when its cursor is not the newest."""


class StoreError(HarnessError):
    """The store cannot be opened or written: damaged, made by a newer hostler, disk full, read-only."""


class LeaseLost(HarnessError):
    """Another host process has taken this session over; this one may no longer write or speak for it."""
