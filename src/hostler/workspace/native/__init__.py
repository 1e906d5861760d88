"""Keeps a copy of the program's own session files, so that its history can be put back."""

from __future__ import annotations

from .copies import Manifest
from .renewing import Renewed, renew, set_aside
from .restoring import Status, check, read, relocate, restorable, restore
from .saving import save

__all__ = [
    "Manifest",
    "Renewed",
    "Status",
    "check",
    "read",
    "relocate",
    "renew",
    "restorable",
    "restore",
    "save",
    "set_aside",
]
