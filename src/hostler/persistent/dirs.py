"""What a persistent dir is: where the agent finds it, and the app's functions behind it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..types.errors import PathError
from ..workspace.confined import split

VIRTUAL = "/persistent"
Commit = Literal["after-turn", "manual", "read-only"]
Policy = Literal["fail", "ours", "theirs"]
Merge = Policy | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class PersistContext:
    """What a callback of a persistent dir is told. ``session`` is the session's key, ``path`` the dir's
    (``/persistent/notes``), ``turn`` the turn's id or None between turns. ``cancel`` is set when nobody waits for the
    answer any more. ``idempotency_key`` is that of the commit: the same commit, tried again after a crash, has the same
    one; None while loading. ``data_dir`` is the host's."""

    session: str
    path: str
    extra_body: Any = None
    turn: str | None = None
    idempotency_key: str | None = None
    data_dir: str = ""
    cancel: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)


class FileContent(bytes):
    """The bytes of a file, which also say whether it is ``executable``. Plain bytes do not say."""

    executable: bool

    def __new__(cls, content: bytes = b"", executable: bool = False) -> FileContent:
        made = super().__new__(cls, content)
        made.executable = executable
        return made


@dataclass(frozen=True, slots=True)
class Changes:
    """What a commit changes: relative path to content (`FileContent`), and the paths that are gone."""

    created: dict[str, bytes] = field(default_factory=dict)
    updated: dict[str, bytes] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Whole:
    """A dir that is loaded and stored as one."""

    load: Callable[..., Any]
    store: Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class Files:
    """A dir of which each file is read and written by itself. ``versions`` looks at some paths as ``list`` does at all;
    ``lock`` keeps others from writing until what it gives is called; ``parallel`` calls may run at once."""

    list: Callable[..., Any]
    read: Callable[..., Any]
    write: Callable[..., Any] | None
    delete: Callable[..., Any] | None
    versions: Callable[..., Any] | None = None
    lock: Callable[..., Callable[[], None]] | None = None
    parallel: int = 1

    @property
    def checks_versions(self) -> bool:
        """Whether ``write`` takes the version that its change is based on."""
        return takes(self.write, 4)


@dataclass(frozen=True, slots=True)
class PersistentDir:
    """A directory that outlives the session; made by `persistent_dir`, `local_dir`, `project_dir`, `fsspec_dir`.

    ``spec`` says how to make it again without the app's functions, where that is possible; ``index`` how many bytes of a
    memory's index later turns are told."""

    path: str
    source: Whole | Files
    commit: Commit = "after-turn"
    merge: Merge = "fail"
    timeout: float = 60.0
    spec: Mapping[str, Any] | None = None
    index: int | None = None

    def __post_init__(self) -> None:
        if self.commit not in get_args(Commit):
            raise ValueError(f"commit must be 'after-turn', 'manual' or 'read-only', not {self.commit!r}.")
        if not callable(self.merge) and self.merge not in get_args(Policy):
            raise ValueError(f"merge must be 'fail', 'ours', 'theirs' or a function, not {self.merge!r}.")
        if not isinstance(self.timeout, (int, float)) or not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be a number of seconds, not {self.timeout!r}.")

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.rsplit("/", 1)[1]

    @property
    def read_only(self) -> bool:
        return self.commit == "read-only"

    @property
    def needs(self) -> str | None:
        """What a resumed session must bring again; None when the stored rule is enough to make it."""
        return f"persistent dir {self.path}" if self.spec is None or callable(self.merge) else None

    def rule(self) -> dict[str, Any]:
        """What is stored with the session."""
        return {
            "path": self.path,
            "commit": self.commit,
            "merge": "callback" if callable(self.merge) else self.merge,
            "timeout": self.timeout,
            "spec": None if self.needs else self.spec,
            "index": self.index,
        }

    def at(self, path: str) -> PersistentDir:
        """The same under another name."""
        return dataclasses.replace(self, path=virtual_path(path))


def persistent_dir(
    path: str,
    *,
    load: Callable[..., Any] | None = None,
    store: Callable[..., Any] | None = None,
    list: Callable[..., Any] | None = None,
    read: Callable[..., Any] | None = None,
    write: Callable[..., Any] | None = None,
    delete: Callable[..., Any] | None = None,
    commit: Commit = "after-turn",
    merge: Merge = "fail",
    timeout: float = 60.0,
) -> PersistentDir:
    """A directory at ``path`` (``/persistent/<name>``) that is kept by functions of the app, sync or async.

    Either as one: ``load(ctx)`` gives ``{relative path: bytes}``, or that and a cursor (JSON); ``store(ctx, changes,
    cursor)`` stores ``changes.created``, ``.updated`` and ``.deleted`` and gives the new cursor or None, or raises
    `PersistenceConflict` when somebody else has stored since.

    Or by file: ``list(ctx)`` gives ``{relative path: version}`` (JSON); ``read(ctx, path)`` the bytes, asked for only
    when the version is new; ``write(ctx, path, content, version)`` stores a file that had this version (None: there was
    none) and gives its new version or None; ``delete(ctx, path, version)``. ``write`` and ``delete`` may leave out
    ``version``; where they take it, they may raise `PersistenceConflict` when it is not the file's any more.

    ``commit``: ``"after-turn"`` (a turn that ended well), ``"manual"`` (``session.commit()``) or ``"read-only"``.
    ``merge``: what becomes of a file that both sides changed: ``"fail"``, ``"ours"``, ``"theirs"`` or a function ``(base,
    ours, theirs) -> bytes or None`` (it may take the path as a fourth argument; None means no file). Each call may take
    ``timeout`` seconds.
    """
    path = virtual_path(path)
    if (load is None) == (list is None):
        raise TypeError(
            f"persistent_dir({path!r}) takes either load= (and store=) or list= and read= (write=, delete=)."
        )
    needed: dict[str, Any] = {"load": load} if load is not None else {"list": list, "read": read}
    if commit != "read-only":
        needed |= {"store": store} if load is not None else {"write": write, "delete": delete}
    for name, function in needed.items():
        if not callable(function):
            raise TypeError(f"persistent_dir({path!r}) needs {name}=, a function" + _unless(name) + ".")
    source = Whole(load, store) if load is not None else Files(needed["list"], needed["read"], write, delete)
    return PersistentDir(path, source, commit, merge, timeout)


def virtual_path(path: str) -> str:
    """``/persistent/<name>`` of a dir that is called by it or by its name alone. Raises PathError."""
    parts = split(path, VIRTUAL)
    if len(parts) != 1:
        raise PathError(f"A persistent dir is one folder below {VIRTUAL}, as in '{VIRTUAL}/notes', not {path!r}.")
    path.encode()
    return f"{VIRTUAL}/{parts[0]}"


def checked(dirs: Any) -> tuple[PersistentDir, ...]:
    """The dirs as they were given to a session. Raises TypeError or ValueError naming the wrong one."""
    out = tuple(dirs or ())
    if wrong := [d for d in out if not isinstance(d, PersistentDir)]:
        raise TypeError(f"persistent_dirs takes what persistent_dir(...), local_dir(...), ... give, not {wrong[0]!r}.")
    paths = [d.path for d in out]
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise ValueError(f"Two persistent dirs are at {sorted(twice)[0]}; give one of them another path.")
    if sum(d.index is not None for d in out) > 1:
        raise ValueError("A session has one memory(...); the agent could not tell two apart.")
    return out


def json_text(value: Any, what: str) -> str:
    """A version or a cursor as it is kept. Raises TypeError for what is no JSON."""
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{what} must be a JSON value: {error}") from None


def takes(function: Callable[..., Any] | None, count: int) -> bool:
    """Whether a function takes so many arguments by position."""
    try:
        inspect.signature(function).bind(*range(count))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _unless(name: str) -> str:
    return ", unless commit='read-only'" if name in ("store", "write", "delete") else ""
