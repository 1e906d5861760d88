"""A storage of the app as tests have it: files with a cursor, a record of the calls, and faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostler
from hostler import portal
from hostler.persistent import Changes, PersistContext
from hostler.persistent.backing import Backing
from hostler.persistent.dir_sync import DirSync
from hostler.persistent.report import Report
from hostler.persistent.taking import Taken
from hostler.workspace import SessionDirs


class Storage:
    """Files under one cursor, which `store` checks as an app with a version column would."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.cursor = 0
        self.calls: list[str] = []
        self.keys: list[str | None] = []
        self.changes: list[Changes] = []
        self.contexts: list[PersistContext] = []
        self.fault: Callable[[PersistContext], None] | None = None
        self._lock = threading.Lock()

    def load(self, ctx: PersistContext) -> tuple[dict[str, bytes], int]:
        with self._lock:
            self.calls.append("load")
            self.contexts.append(ctx)
            return dict(self.files), self.cursor

    def store(self, ctx: PersistContext, changes: Changes, cursor: int) -> int:
        self.calls.append("store")
        self.keys.append(ctx.idempotency_key)
        self.contexts.append(ctx)
        if self.fault is not None:
            self.fault(ctx)
        with self._lock:
            if cursor != self.cursor:
                raise hostler.PersistenceConflict("somebody was faster")
            self.changes.append(changes)
            self.files.update(changes.created)
            self.files.update(changes.updated)
            for path in changes.deleted:
                del self.files[path]
            self.cursor += 1
            return self.cursor

    def put(self, **files: bytes | None) -> None:
        """Somebody else changes files (``a_md`` is ``a.md``)."""
        with self._lock:
            for name, content in files.items():
                path = name.replace("_", ".")
                if content is None:
                    del self.files[path]
                else:
                    self.files[path] = content
            self.cursor += 1

    def dir(self, path: str = "/persistent/notes", **options: Any) -> Any:
        return hostler.persistent_dir(path, load=self.load, store=self.store, **options)


class Shelf:
    """The same file by file, with a version for each."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {path: (1, content) for path, content in (files or {}).items()}
        self.calls: list[tuple[str, ...]] = []
        self._next = 1

    def list(self, ctx: PersistContext) -> dict[str, int]:
        self.calls.append(("list",))
        return {path: version for path, (version, _) in self.files.items()}

    def read(self, ctx: PersistContext, path: str) -> bytes:
        self.calls.append(("read", path))
        return self.files[path][1]

    def write(self, ctx: PersistContext, path: str, content: bytes, version: int | None) -> int:
        self.calls.append(("write", path))
        found = self.files.get(path)
        if (None if found is None else found[0]) != version:
            raise hostler.PersistenceConflict(path)
        self._next += 1
        self.files[path] = (self._next, bytes(content))
        return self._next

    def delete(self, ctx: PersistContext, path: str, version: int | None) -> None:
        self.calls.append(("delete", path))
        if self.files[path][0] != version:
            raise hostler.PersistenceConflict(path)
        del self.files[path]

    def take(self) -> list[tuple[str, ...]]:
        """The calls since this was asked last."""
        calls, self.calls = self.calls, []
        return calls

    def dir(self, path: str = "/persistent/notes", **options: Any) -> Any:
        functions = {"list": self.list, "read": self.read, "write": self.write, "delete": self.delete}
        return hostler.persistent_dir(path, **{**functions, **options})


class Session:
    """The checkout of one dir in one session, without any program: what the host does with it, step by step."""

    def __init__(self, folder: Path, dir: Any, key: str = "s") -> None:
        self.dirs = SessionDirs.of(folder / "data", key)
        self.dir = dir
        self.key = key
        self.data_dir = str(folder / "data")
        self.sync = DirSync(dir, self.dirs)
        self.path = Path(self.dirs.persistent) / dir.name

    def backing(self, key: str | None = None, turn: str | None = None) -> Backing:
        ctx = PersistContext(self.key, self.dir.path, turn=turn, idempotency_key=key, data_dir=self.data_dir)
        return Backing(self.dir, ctx, loop=None)

    def refresh(self, turn: str = "t") -> Taken:
        return portal.run(self.sync.refresh(self.backing(turn=turn), turn))

    def commit(self, turn: str | None = "t", merge: Any = None) -> Report:
        return portal.run(self.sync.commit(lambda key: self.backing(key, turn), turn=turn, name=self.key, merge=merge))

    def uncommitted(self) -> Report:
        return portal.run(self.sync.uncommitted())

    def put_back(self) -> Report:
        return portal.run(self.sync.put_back(self.backing()))

    def write(self, path: str, content: bytes, executable: bool = False) -> None:
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o755 if executable else 0o644)

    def files(self) -> dict[str, bytes]:
        return {
            str(file.relative_to(self.path)): file.read_bytes()
            for file in sorted(self.path.rglob("*"))
            if file.is_file() and not file.is_symlink()
        }
