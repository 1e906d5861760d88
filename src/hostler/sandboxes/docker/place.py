"""The folders of this machine that a container shows: those of its workspace, and those of the sessions that work in it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...types.errors import SandboxError
from ...types.places import state_dir

INSIDE = "/run/hostler"
READ_ONLY = "given"  # what the agent may read
RESULTS = "kept"  # what it may change, unless it may change nothing
PRIVATE = "own"  # what its program needs to change
_WAIT = 120.0
AREAS = (READ_ONLY, RESULTS, PRIVATE)


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one container. It outlives the container, and with it what agents have made there."""

    path: str

    @classmethod
    def of(cls, socket: str, name: str) -> Place:
        """That of the container with this name; an engine at another socket has containers of its own."""
        digest = hashlib.sha256(os.path.realpath(socket).encode()).hexdigest()[:8]
        return cls(os.path.join(os.path.realpath(state_dir()), "containers", f"{name}-{digest}"))

    @staticmethod
    def common(name: str, text: str) -> str:
        """A file for all containers of this user; its path."""
        folder = os.path.join(os.path.realpath(state_dir()), "containers")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(folder, name)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
        return path

    @property
    def workspace(self) -> str:
        return os.path.join(self.path, "workspace")

    @property
    def filled(self) -> str:
        """Is there when the container has been made before, and the workspace holds what the image has in it."""
        return os.path.join(self.path, "filled")

    def area(self, name: str) -> str:
        return os.path.join(self.path, name)

    @property
    def folders(self) -> dict[str, str]:
        """The folders of a session by name, and in which of the areas they must be to be seen in the container."""
        by_area = {READ_ONLY: ("skills", "launch"), RESULTS: ("artifacts", "persistent"), PRIVATE: ("home", "tmp")}
        return {name: self.area(area) for area, names in by_area.items() for name in names}

    def make(self) -> None:
        """Make what is missing; only this user may enter."""
        for folder in (self.path, self.workspace, *map(self.area, AREAS)):
            os.makedirs(folder, mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No two processes make the container at the same time. Raises SandboxError when another one does not get done."""
        end = time.monotonic() + _WAIT
        with open(os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT, 0o600)) as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise SandboxError(
                            f"Another process has been making the container of {self.path} for {_WAIT:g} s. See whether the "
                            "container engine answers (docker ps), and try again."
                        ) from None
                    time.sleep(0.02)
            yield

    def fill(self, archive: Iterable[bytes]) -> None:
        """Put what the image has in its working directory into the workspace. It becomes this user's."""
        with tarfile.open(fileobj=_Reader(iter(archive)), mode="r|") as tar:
            for member in tar:
                _, _, member.name = member.name.partition("/")  # the first is the directory itself
                if member.islnk():
                    _, _, member.linkname = member.linkname.partition("/")
                if member.name and (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                    member.uid, member.gid = os.geteuid(), os.getegid()
                    member.uname = member.gname = ""
                    # Not the filter for data: links to places in the image are what they should be.
                    tar.extract(member, self.workspace, filter="tar")


class _Reader(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while len(self._left) < size and (more := next(self._pieces, b"")):
            self._left += more
        data, self._left = self._left[:size], self._left[size:]
        return data
