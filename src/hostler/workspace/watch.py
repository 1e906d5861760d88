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
from .scan import DEFAULT_SKIP, Entry, Snapshot, dump, entry_of, load, scan, settle


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
        self._turn_file = os.path.join(store_dir, "turn")  # there while a turn runs whose first look is in the other
        self._before_file = os.path.join(store_dir, "before")
        self._baseline = Baseline(os.path.join(store_dir, "baseline.db"))
        self._before: Snapshot | None = None
        self._after: Snapshot | None = None
        self._last: Snapshot | None = None  # the newest look; the next one is the same object if nothing has changed
        self._written: tuple[Snapshot | None, Entry | None] = (None, None)  # what is in the file, while it is this file

    @property
    def complete(self) -> bool:
        """Whether changes can be told; False in a workspace of more than 300,000 entries."""
        return all(look is None or look.complete for look in (self._before, self._after))

    def begin(self, turn: str = "") -> None:
        """Look at the workspace before a turn. A turn (by its id) that had begun already keeps its first look."""
        if turn and (before := self._begun(turn)):
            self._before, self._after = before, None
            return
        self._before, self._after = self._look(), None
        settle(self._before)
        self._write(turn, self._before)
        self._baseline.refresh(self._root, self._before)

    def changes(self) -> tuple[FileChange, ...]:
        """What is different since `begin`; the same again when asked again. Empty when there was no `begin`."""
        if self._before is None:
            self._before = self._begun()
        if self._before is None:
            return ()
        self._after = self._look()
        if self._after is self._before or not self.complete:
            return ()
        return tuple(diff(self._before, self._after, self))

    def save(self) -> None:
        """The turn is over and its changes are recorded: what is there now is the old content of the next one."""
        Path(self._turn_file).unlink(missing_ok=True)
        if self._after is not None:
            self._baseline.refresh(self._root, self._after)
        self._before = self._after = None
        if self._written[0] is not self._last:
            self._written = (None, None)  # a session at rest should cost little

    def _look(self) -> Snapshot:
        self._last = scan(self._root.path, self._skip, last=self._last)
        return self._last

    def close(self) -> None:
        """Stop reading in the background; a turn that is not saved can still be asked for its changes later."""
        self._baseline.close()

    # ---- on disk

    def _write(self, turn: str, before: Snapshot) -> None:
        """Without disk space the turn goes on; only after a crash its changes could not be told."""
        try:
            if self._written != (before, _seen(self._before_file)):
                _replace(self._before_file, dump(before))
                self._written = (before, _seen(self._before_file))
            _replace(self._turn_file, json.dumps(turn).encode())
        except OSError:
            for name in (self._turn_file, self._turn_file + ".new", self._before_file + ".new"):
                with contextlib.suppress(OSError):
                    os.unlink(name)

    def _begun(self, turn: str | None = None) -> Snapshot | None:
        """The first look of the turn that has begun and was not saved; of one turn only when it is given."""
        try:
            name = json.loads(Path(self._turn_file).read_bytes())
            return load(Path(self._before_file).read_bytes()) if turn in (None, name) else None
        except (OSError, ValueError, RecursionError):
            return None

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


def _replace(path: str, content: bytes) -> None:
    with open(path + ".new", "wb", opener=_private) as file:
        file.write(content)
    os.replace(path + ".new", path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _seen(path: str) -> Entry | None:
    try:
        return entry_of(os.lstat(path))
    except OSError:
        return None
