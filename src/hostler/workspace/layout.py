"""Where the folders of a session are."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..removal import remove_path
from ..types.errors import SandboxError
from ..types.sandbox import Folders
from .confined import make_folder

_FOLDERS = ("session", "artifacts", "persistent", "skills", "native", "home", "tmp", "launch", "private")
FORKING = "forking"  # says that the folders are those of a fork that is not in the store yet; see `unfinished`
_ELSEWHERE = "elsewhere"  # the file that says where the folders are that a shared sandbox shows


@dataclass(frozen=True, slots=True)
class Workspace:
    """What a session's agent gets to see; a sandbox factory is called with one.

    ``root`` is the working directory, ``mounts`` the real folder of each virtual one (``/session`` is ``root``).
    """

    root: str
    mounts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SessionDirs:
    """The folders that hostler keeps for one session below ``root``.

    ``session`` is its owned workspace (unused with a caller's own directory), ``native`` holds the saved history of the
    program, ``home`` and ``tmp`` are the program's own, ``launch`` holds the files that its command line names,
    ``private`` is hostler's: the agent has no business there.
    """

    root: str
    session: str
    artifacts: str
    persistent: str
    skills: str
    native: str
    home: str
    tmp: str
    launch: str
    private: str

    @classmethod
    def of(cls, data_dir: str | os.PathLike[str], key: str) -> SessionDirs:
        """The folders of the session with this key. Any two keys have different ones; nothing is made."""
        # The readable part is for people only. Keys that differ in case, form or length differ in the hash.
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", key)[:40].strip("-.") or "session"
        root = os.path.join(os.path.realpath(data_dir), "sessions", f"{slug}-{digest}")
        return cls._at(root)

    @classmethod
    def _at(cls, root: str) -> SessionDirs:
        return cls(root, **{name: os.path.join(root, name) for name in _FOLDERS} | _elsewhere(root))

    def move(self, places: Mapping[str, str]) -> SessionDirs:
        """Have folders, by their names here, in ``places`` (folders of others) from now on: a sandbox that was there
        before the session shows nothing else. Those of a session that has them there already stay as they are."""
        there = {name: os.path.dirname(os.path.dirname(path)) for name, path in _elsewhere(self.root).items()}
        if there != places:
            make_folder(self.root)
            own = secrets.token_hex(8)
            moved = {name: os.path.join(place, own, name) for name, place in places.items()}
            with open(os.path.join(self.root, _ELSEWHERE), "w", encoding="utf-8") as file:
                json.dump(moved, file)
        return self._at(self.root)

    @property
    def snapshots(self) -> str:
        """Holds the snapshots of the workspace."""
        return os.path.join(self.private, "snapshots")

    @property
    def keepers(self) -> str:
        """Holds a folder for the log of each keeper that the session has had."""
        return os.path.join(self.private, "keeper")

    @property
    def blobs(self) -> str:
        """Holds contents by hash: what is large in the journal, and the files of skills."""
        return os.path.join(self.private, "blobs")

    def make(self) -> None:
        """Make what is missing; only this user may enter."""
        for folder in (self.root, *(getattr(self, name) for name in _FOLDERS)):
            make_folder(folder)

    def make_workspace(self, *, had: bool) -> None:
        """Make the owned workspace when it is gone. That of a session that ``had`` turns is lost, which stays known until
        it is told."""
        if which(self.session) is None:
            if had:
                make_folder(self.private)
                Path(self._lost).touch(mode=0o600)
            make_folder(self.session)

    @property
    def workspace_lost(self) -> bool:
        return os.path.exists(self._lost)

    def forget_loss(self) -> None:
        """It was told, or what was in the workspace was put back."""
        with contextlib.suppress(OSError):
            os.unlink(self._lost)

    @property
    def _lost(self) -> str:
        return os.path.join(self.private, "workspace-lost")

    @property
    def used(self) -> bool:
        """Whether a program of the session has been here."""
        return any(_has_entries(folder) for folder in (self.home, self.native, self.private))

    @property
    def forking(self) -> str:
        """A file that is there until a fork is in the store; see `unfinished`."""
        return os.path.join(self.root, FORKING)

    def settle(self) -> None:
        """The session is in the store: whatever becomes of that, its folders are no unfinished fork's any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.forking)

    def staged(self) -> SessionDirs:
        """Folders beside these, which can take their place."""
        return self._at(self._beside())

    def _beside(self) -> str:
        above, name = os.path.split(self.root)
        return os.path.join(above, f".{secrets.token_hex(4)}-{name}")

    def set_aside(self) -> str | None:
        """Give the folders of a session that is to be erased another name, so that its key has none; that name."""
        aside = self._beside()
        try:
            os.rename(self.root, aside)
        except FileNotFoundError:
            return None
        return aside

    def folders(self, workdir: str) -> Folders:
        """What a program in ``workdir`` works with, by paths of this machine."""
        return Folders(workdir, self.artifacts, self.persistent, self.skills, self.home, self.tmp, self.launch)

    def workspace(self, workdir: str | None = None) -> Workspace:
        """What the agent sees, with ``workdir`` (a caller's own directory) or the owned workspace."""
        root = workdir or self.session
        shared = {"/artifacts": self.artifacts, "/persistent": self.persistent, "/skills": self.skills}
        return Workspace(root, {"/session": root, **shared})


def erase(root: str) -> None:
    """Remove the folders of a session that were set aside, wherever they are. What cannot be removed does not keep the
    rest and can be found by ``root`` again; then the first OSError is raised."""
    failed: OSError | None = None
    for path in _elsewhere(root).values():
        try:
            remove_path(os.path.dirname(path))
        except OSError as error:
            failed = failed or error
    if failed is None:
        remove_path(root)
        return
    for name in os.listdir(root):
        if name != _ELSEWHERE:
            with contextlib.suppress(OSError):
                remove_path(os.path.join(root, name))
    raise failed


def _elsewhere(root: str) -> dict[str, str]:
    try:
        with open(os.path.join(root, _ELSEWHERE), encoding="utf-8") as file:
            found: dict[str, str] = json.load(file)
    except FileNotFoundError:
        return {}
    return found


def holds_sessions(data_dir: str) -> bool:
    """Whether there are folders of sessions, other than erased ones."""
    try:
        return any(not name.startswith(".") for name in os.listdir(os.path.join(data_dir, "sessions")))
    except FileNotFoundError:
        return False


def _has_entries(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False


def prepare(data_dir: str | os.PathLike[str]) -> str:
    """Make the data dir, closed to others and to version control; gives its real path."""
    path = Path(os.path.realpath(data_dir))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(path.iterdir()):  # a folder that holds something of the user's is not hidden from his git
            with contextlib.suppress(FileExistsError), open(path / ".gitignore", "x", encoding="ascii") as file:
                file.write("*\n")
    except OSError as error:
        raise SandboxError(f"The data dir {str(path)!r} cannot be made or written: {error.strerror}.") from None
    return str(path)


def which(folder: str) -> tuple[int, int] | None:
    """Which directory it is, whatever is in it: another one under the same name differs. None where there is none; a link
    to one is none."""
    try:
        info = os.lstat(folder)
    except OSError:
        return None
    return (info.st_dev, info.st_ino) if stat.S_ISDIR(info.st_mode) else None


def check_there(workdir: str, key: str) -> None:
    """Raise SandboxError when the working directory of the session with this key is gone, or something else by now."""
    if which(workdir) is None:
        now = (
            "gone" if not os.path.lexists(workdir) else "a link now" if os.path.islink(workdir) else "no directory now"
        )
        raise SandboxError(
            f"The working directory of session {key!r} is {now}: {workdir}. Put it back, or begin a new session."
        )


def check_apart(data_dir: str | os.PathLike[str], workdir: str | os.PathLike[str]) -> None:
    """Raise SandboxError when the data dir is in the workspace, where the agent would see every session's files."""
    data, work = Path(os.path.realpath(data_dir)), Path(os.path.realpath(workdir))
    for folder in (data, *data.parents):
        # By identity, not by name: file systems without letter case and bind mounts have many names for one folder.
        with contextlib.suppress(OSError):
            if os.path.samefile(folder, work):
                raise SandboxError(
                    f"The data dir {str(data)!r} is inside the workspace {str(work)!r}. Keep it elsewhere: set "
                    "state_dir= (data_dir= of the host) or HOSTLER_STATE_DIR, or give the agent a folder of its own."
                )
