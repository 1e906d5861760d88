"""What the agent sees of the file system, and how the host looks at it without being led outside."""

from __future__ import annotations

from . import native
from .confined import Root, Writer
from .layout import SessionDirs, Workspace, check_apart, check_there, holds_sessions, prepare, which
from .watch import Watch

__all__ = [
    "Root",
    "SessionDirs",
    "Watch",
    "Workspace",
    "Writer",
    "check_apart",
    "check_there",
    "holds_sessions",
    "native",
    "prepare",
    "which",
]
