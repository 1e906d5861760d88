"""Persistent dirs that are directories of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..types.errors import PathError, PersistenceConflict, PersistenceError
from ..workspace import check_apart
from ..workspace.confined import Root, split
from ..workspace.scan import Entry, Snapshot, entry_of, scan, settle
from .dirs import Commit, FileContent, Files, Merge, PersistContext, PersistentDir, virtual_path
from .folder import is_text, is_unfinished, prune, sweep

_LOOK = 0.02  # s between looks whether the lock is free
_OURS = ("sessions", "hosts", "store.db")  # what a data dir holds besides
_NOTHING: frozenset[str] = frozenset()


def local_dir(
    source_dir: str | os.PathLike[str] | Callable[[PersistContext], str],
    *,
    at: str | None = None,
    commit: Commit = "after-turn",
    merge: Merge = "fail",
    timeout: float = 60.0,
) -> PersistentDir:
    """A persistent dir that is a directory of this machine: a relative one is below the host's data dir, an absolute one
    anywhere. It is made when it is missing.

    ``at`` is where the agent finds it (``/persistent/<name>``; without it, by the directory's own name). A function
    ``(ctx) -> source_dir`` may choose by ``ctx.extra_body``, a directory for each user, say; it needs ``at``, and has to
    be given again when a session is resumed. The other options are those of `persistent_dir`.
    """
    if callable(source_dir):
        if at is None:
            raise TypeError("local_dir(function) needs at='/persistent/<name>'.")
        return PersistentDir(virtual_path(at), _files(_Source(source_dir)), commit, merge, timeout)
    source = os.fspath(source_dir)
    if os.path.isabs(os.path.expanduser(source)):
        source = os.path.abspath(os.path.expanduser(source))
    else:
        _inside(source)
    spec = {"kind": "local", "source_dir": source}
    path = virtual_path(at if at is not None else os.path.basename(source.rstrip("/")))
    return PersistentDir(path, _files(_Source(lambda ctx: source)), commit, merge, timeout, spec)


def project_dir(
    path: str | os.PathLike[str],
    *,
    project_root: str | os.PathLike[str] | None = None,
    at: str | None = None,
    commit: Commit = "after-turn",
    merge: Merge = "fail",
    timeout: float = 60.0,
) -> PersistentDir:
    """A persistent dir that is a directory of the app's own project, inside ``project_root`` (the current directory when
    this is called, without it). Raises PathError for one that is outside, or is the whole project."""
    root = os.path.realpath(project_root if project_root is not None else os.getcwd())
    source = os.path.realpath(os.path.join(root, os.path.expanduser(os.fspath(path))))
    if not source.startswith(root.rstrip("/") + "/"):
        raise PathError(f"project_dir({os.fspath(path)!r}) is not inside the project {root}.")
    return local_dir(source, at=at, commit=commit, merge=merge, timeout=timeout)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the directory is; made when it is asked for."""

    name: Callable[[PersistContext], str]

    def root(self, ctx: PersistContext) -> Root:
        name = os.fspath(self.name(ctx))
        path = os.path.join(ctx.data_dir, name)
        if not os.path.isabs(name):
            _inside(name)
            Root(ctx.data_dir, "/").mkdirs(name)  # goes through no link
        else:
            check_apart(ctx.data_dir, path)
            os.makedirs(path, exist_ok=True)
            if os.path.commonpath((os.path.realpath(path), os.path.join(ctx.data_dir, "sessions"))) == os.path.join(
                ctx.data_dir, "sessions"
            ):
                raise PathError(f"{path} belongs to a session.")
        return Root(path, ctx.path)


def _inside(name: str) -> None:
    """Raise PathError for a relative name that leaves the data dir, or is hostler's own there."""
    parts = split(name, "/persistent")
    if not parts or parts[0] in _OURS or parts[0].startswith("store.db"):
        raise PathError(f"{name!r} cannot be a persistent dir: it is hostler's own in the data dir.")


def _files(source: _Source) -> Files:
    def list(ctx: PersistContext) -> dict[str, str]:
        root = source.root(ctx)
        seen = scan(root.path, _NOTHING, marks=_NOTHING)
        for path in filter(is_unfinished, seen.entries):
            sweep(root, path, seen.entries[path])
        return _versions(seen)

    def versions(ctx: PersistContext, paths: Iterable[str]) -> dict[str, str]:
        root = source.root(ctx)
        found = {path: entry for path in paths if (entry := _entry(root, path)) is not None}
        return _versions(Snapshot(found))

    def read(ctx: PersistContext, path: str) -> FileContent:
        with source.root(ctx).open_read(path) as file:
            return FileContent(file.read(), bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR))

    def write(ctx: PersistContext, path: str, content: bytes, version: str | None) -> str:
        root = source.root(ctx)
        entry = _entry(root, path)
        _check(path, entry, version)
        mode = stat.S_IMODE(entry[0]) if entry is not None else 0o644
        executable = getattr(content, "executable", bool(mode & stat.S_IXUSR))
        mode = mode | 0o111 if executable else mode & ~0o111
        with root.create(path, mode) as writer:
            writer.write(content)
            writer.commit(sync=True)
        written = _entry(root, path)
        assert written is not None
        return _version(written)

    def delete(ctx: PersistContext, path: str, version: str | None) -> None:
        root = source.root(ctx)
        entry = _entry(root, path)
        if entry is not None:
            _check(path, entry, version)
            root.remove(path)
            prune(root, path)

    def lock(ctx: PersistContext) -> Callable[[], None]:
        """Of all hostlers of this machine that write there; the kernel frees it when one dies."""
        fd = os.open(source.root(ctx).path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        while not ctx.cancel.is_set():
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lambda: os.close(fd)
            time.sleep(_LOOK)
        os.close(fd)
        raise PersistenceError(f"{ctx.path}: another session writes it all the time.")

    return Files(list, read, write, delete, versions, lock)


def _versions(seen: Snapshot) -> dict[str, str]:
    if not seen.complete:
        raise PersistenceError("The directory holds too many files, or cannot be read.")
    settle(seen)
    return {
        path: _version(entry)
        for path, entry in seen.entries.items()
        if stat.S_ISREG(entry[0]) and not is_unfinished(path) and is_text(path)
    }


def _version(entry: Entry) -> str:
    return " ".join(map(str, entry))


def _entry(root: Root, path: str) -> Entry | None:
    try:
        return entry_of(root.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check(path: str, entry: Entry | None, version: str | None) -> None:
    if (None if entry is None else _version(entry)) != version:
        raise PersistenceConflict(f"{path!r} was changed by somebody else.")
