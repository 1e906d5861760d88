"""Directories that are backed by the app's own storage: checked out into a session, committed at a boundary."""

from .dirs import Changes, FileContent, PersistContext, PersistentDir, persistent_dir
from .local import local_dir, project_dir
from .memory import memory
from .remote import fsspec_dir

__all__ = [
    "Changes",
    "FileContent",
    "PersistContext",
    "PersistentDir",
    "fsspec_dir",
    "local_dir",
    "memory",
    "persistent_dir",
    "project_dir",
]
