"""The seam to the place where the program's processes run."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Protocol


class Sandbox(Protocol):
    """A place to run processes in. ``workdir`` is the working directory as the agent sees it, ``confined`` whether the
    operating system keeps the agent inside; ``environment`` the base environment of every process."""

    workdir: str
    confined: bool

    def environment(self, *, home: str, tmp: str) -> Mapping[str, str]: ...

    def command(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> list[str]:
        """The host argv that runs ``argv`` inside."""
        ...

    def listen(self) -> socket.socket:
        """A listening TCP socket that is reachable at its own address from inside."""
        ...

    def which(self, name: str) -> str | None:
        """The path of a program as seen inside, or None."""
        ...

    def close(self) -> None:
        """End it and remove what it made. Never raises for a sandbox that is gone already."""
        ...
