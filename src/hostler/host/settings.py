"""What an operator may set, from the environment. Durations in seconds."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """``HOSTLER_PARK_TTL``: how long a parked program is kept. ``HOSTLER_ORPHAN_TTL``: how long a turn goes on without
    a host. ``HOSTLER_MAX_RUNTIMES``: programs at once. ``HOSTLER_MAX_PARKED``: parked programs of one state dir; beyond
    that the oldest is ended. ``HOSTLER_SPOOL_LIMIT``: bytes that a program may write while no host takes them, then it
    waits. ``HOSTLER_APPROVAL_TTL``: how long a question waits for its answer, then it is denied.
    ``HOSTLER_START_TIMEOUT``: how long a sandbox may take to be made, and a program just started may say nothing.
    ``HOSTLER_TOOL_TIMEOUT``: how long a tool of the app may take. ``HOSTLER_NONDUMPABLE=1``: no other process of the
    same user may read this one's memory; no debugger and no core dump either. ``HOSTLER_EPHEMERAL_TTL``: how long a
    session stays that was made without a key. ``HOSTLER_RETENTION``: how long a closed one, and one under an app's key
    that nobody uses, stays (default: for ever).
    ``HOSTLER_ARTIFACT_LIMIT``: bytes of new artifacts that are kept after one turn. ``HOSTLER_SNAPSHOT_LIMIT``: bytes of
    contents in all snapshots of one session."""

    park_ttl: float = 900.0
    orphan_ttl: float = 600.0
    max_runtimes: int = field(default_factory=lambda: _by_memory())
    max_parked: int = field(default_factory=lambda: _by_memory())
    spool_limit: int = 1 << 30
    approval_ttl: float = 600.0
    start_timeout: float = 60.0
    tool_timeout: float = 600.0
    nondumpable: bool = False
    ephemeral_ttl: float = 86400.0
    retention: float = math.inf
    artifact_limit: int = 1 << 30
    snapshot_limit: int = 4 << 30

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        default = cls()
        return cls(
            park_ttl=_number(environ, "HOSTLER_PARK_TTL", default.park_ttl),
            orphan_ttl=_number(environ, "HOSTLER_ORPHAN_TTL", default.orphan_ttl),
            max_runtimes=int(_number(environ, "HOSTLER_MAX_RUNTIMES", default.max_runtimes)),
            max_parked=int(_number(environ, "HOSTLER_MAX_PARKED", default.max_parked)),
            spool_limit=int(_number(environ, "HOSTLER_SPOOL_LIMIT", default.spool_limit)),
            approval_ttl=_number(environ, "HOSTLER_APPROVAL_TTL", default.approval_ttl),
            start_timeout=_number(environ, "HOSTLER_START_TIMEOUT", default.start_timeout),
            tool_timeout=_number(environ, "HOSTLER_TOOL_TIMEOUT", default.tool_timeout),
            nondumpable=environ.get("HOSTLER_NONDUMPABLE") == "1",
            ephemeral_ttl=_number(environ, "HOSTLER_EPHEMERAL_TTL", default.ephemeral_ttl),
            retention=_number(environ, "HOSTLER_RETENTION", default.retention),
            snapshot_limit=int(_number(environ, "HOSTLER_SNAPSHOT_LIMIT", default.snapshot_limit)),
            artifact_limit=int(_number(environ, "HOSTLER_ARTIFACT_LIMIT", default.artifact_limit)),
        )


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    raw = environ.get(name)
    if raw is None or raw == "":
        return default
    try:
        value = float(raw)
        if value > 0:
            return value
    except ValueError:
        pass
    raise ValueError(f"{name} must be a positive number, not {raw!r}.")


def _by_memory() -> int:
    """One program a GB of memory, at least 2, at most 64."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 8
    return max(2, min(64, total // (1 << 30)))
