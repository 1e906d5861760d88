"""What became of a dir's changes, as the Result, the journal and the command line tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..types.errors import PersistenceConflict, PersistenceError
from .comparison import Row, Version
from .dirs import PersistentDir

Status = Literal["clean", "committed", "uncommitted", "failed", "conflict"]


@dataclass(frozen=True, slots=True)
class Report:
    """The changes of one dir (relative paths) and their fate. ``skipped`` are entries that cannot be kept (links, ...),
    with the reason."""

    path: str
    status: Status
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    key: str | None = None
    error: PersistenceError | None = None

    @property
    def code(self) -> str | None:
        if self.error is None:
            return None
        return "persistence_conflict" if isinstance(self.error, PersistenceConflict) else "persistence_error"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: an item of ``result.persistence.commits``."""
        return {
            "path": self.path,
            "status": self.status,
            "created": list(self.created),
            "updated": list(self.updated),
            "deleted": list(self.deleted),
            "conflicts": list(self.conflicts),
            "skipped": dict(self.skipped),
            "key": self.key,
            "error": None if self.error is None else {"code": self.code, "message": str(self.error)},
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`, for a commit that went well."""
        return cls(
            data["path"],
            data["status"],
            created=tuple(data["created"]),
            updated=tuple(data["updated"]),
            deleted=tuple(data["deleted"]),
            skipped=tuple(data["skipped"].items()),
            key=data["key"],
        )


def report_of(
    dir: PersistentDir,
    rows: Mapping[str, Row],
    changes: Mapping[str, Version | None],
    status: Status,
    odd: Mapping[str, str],
    *,
    key: str | None = None,
    error: PersistenceError | None = None,
) -> Report:
    """``changes`` sorted by what they are to the state that both sides had in common."""
    base = {path: rows.get(path, Row()).base for path in changes}
    return Report(
        dir.path,
        status,
        created=tuple(sorted(p for p, v in changes.items() if v is not None and base[p] is None)),
        updated=tuple(sorted(p for p, v in changes.items() if v is not None and base[p] is not None)),
        deleted=tuple(sorted(p for p, v in changes.items() if v is None)),
        skipped=tuple(sorted((_shown(path), reason) for path, reason in odd.items())),
        key=key,
        error=error,
    )


def _shown(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
