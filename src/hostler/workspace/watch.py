"""What a turn changed in its workspace."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from ..types.events import FileChange
from .baseline import MAX_FILE, Baseline, Changed, read_as
from .confined import Root
from .diffs import diff
from .scan import DEFAULT_SKIP, Entry, Snapshot, dump, load, scan, settle


class Watch:
    """The changes of one session's turns, in worker threads: ``begin()``, the turn, ``changes()``, ``save()``.

    What was there before a turn is on disk from ``begin()`` on, so after a crash a Watch in another process gives the
    same changes, whether it begins the same turn again or not. Nothing here waits for the background reading of old contents; a file whose old
    content is not known has no diff.
    """

    def __init__(self, root: str, store_dir: str, *, skip: frozenset[str] = DEFAULT_SKIP) -> None:
        self._root = Root(root)
        self._skip = skip
        os.makedirs(store_dir, mode=0o700, exist_ok=True)
        self._before_file = os.path.join(store_dir, "before")
        self._baseline = Baseline(os.path.join(store_dir, "baseline.db"))
        self._before: Snapshot | None = None
        self._after: Snapshot | None = None

    @property
    def complete(self) -> bool:
        """Whether changes can be told; False in a workspace of more than 300,000 entries."""
        return all(look is None or look.complete for look in (self._before, self._after))

    def begin(self, turn: str = "") -> None:
        """Look at the workspace before a turn. A turn (by its id) that had begun already keeps its first look."""
        if turn and (before := _read(self._before_file, turn)):
            self._before, self._after = before, None
            return
        self._before, self._after = scan(self._root.path, self._skip), None
        settle(self._before)
        _write(self._before_file, turn, self._before)
        self._baseline.refresh(self._root, self._before)

    def changes(self) -> tuple[FileChange, ...]:
        """What is different since `begin`; the same again when asked again. Empty when there was no `begin`."""
        if self._before is None:
            self._before = _read(self._before_file)
        if self._before is None:
            return ()
        self._after = scan(self._root.path, self._skip)
        return tuple(diff(self._before, self._after, self)) if self.complete else ()

    def save(self) -> None:
        """The turn is over and its changes are recorded: what is there now is the old content of the next one."""
        Path(self._before_file).unlink(missing_ok=True)
        if self._after is not None:
            self._baseline.refresh(self._root, self._after)
        self._before = self._after = None

    def close(self) -> None:
        """Stop reading in the background; a turn that is not saved can still be asked for its changes later."""
        self._baseline.close()

    # ---- contents for `diff`

    def old(self, path: str, entry: Entry) -> bytes | None:
        return self._baseline.old(path, entry)

    def new(self, path: str, entry: Entry) -> bytes | None:
        if entry[1] > MAX_FILE:
            return None
        try:
            return read_as(self._root, path, entry)
        except Changed:
            return None


def _write(path: str, turn: str, snapshot: Snapshot) -> None:
    """Without disk space the turn goes on; only after a crash its changes could not be told."""
    temp = path + ".new"
    try:
        with open(temp, "wb", opener=_private) as file:
            file.write(json.dumps(turn).encode() + b"\n" + dump(snapshot))
        os.replace(temp, path)
    except OSError:
        for name in (temp, path):
            with contextlib.suppress(OSError):
                os.unlink(name)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _read(path: str, turn: str | None = None) -> Snapshot | None:
    """What was written; for one turn only when it is given."""
    try:
        with open(path, "rb") as file:
            name = json.loads(file.readline())
            return load(file.read()) if turn in (None, name) else None
    except (OSError, ValueError, RecursionError):
        return None
