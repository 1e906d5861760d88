"""What of this machine a program needs to run, and nothing more: its files, its interpreter, its libraries."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Which = Callable[[str], str | None]

PLACE = "/run/hostler/host"  # where what lies below a folder of the agent's is shown
_SHEBANG = 256
_ELF = 52  # bytes of the smallest header
_LEVELS = 4  # an interpreter may have one itself


@dataclass(slots=True)
class Visible:
    """Collects read-only paths. ``system`` are folders that are there anyway, ``taken`` names that belong to the agent."""

    system: tuple[str, ...]
    taken: tuple[str, ...]
    which: Which
    mounts: dict[str, str] = field(default_factory=dict)  # path on this machine to the path inside
    links: dict[str, str] = field(default_factory=dict)  # path inside to what it leads to

    def path(self, path: str) -> str:
        """Where a path of this machine is found inside."""
        return PLACE + path if below(path, *self.taken) else path

    def show(self, path: str) -> str:
        """Have a file or folder seen, by its own name; that name inside. Raises OSError when there is none."""
        self._mount(os.path.realpath(path, strict=True))
        hop = os.path.abspath(path)
        while (target := _next(hop)) is not None:
            # Also inside of a folder that is shown: its links may lead through places that are not.
            if not self._there(hop):
                self.links[self.path(hop)] = self.path(target)
            hop = target
        return self.path(os.path.abspath(path))

    def run(self, file: str) -> str:
        """Have an executable seen, with what it needs; its name inside. Raises OSError."""
        for path in _needs(file, self.which, _LEVELS):
            self.show(path)
        return self.show(file)

    def command(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """A command, and the files that it names, as they are inside. Raises OSError for one that cannot be executed."""
        if not argv:
            return ()
        found = argv[0] if os.path.isabs(argv[0]) else self.which(argv[0])
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        if not os.path.isfile(found) or not os.access(found, os.X_OK):
            os.stat(found)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), found)
        if not _runs(found):
            raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC), found)
        rest = (self.run(word) if os.path.isabs(word) and os.path.isfile(word) else word for word in argv[1:])
        return (self.run(found), *rest)

    def _mount(self, real: str) -> None:
        if not self._there(real):
            self.mounts[real] = self.path(real)

    def _there(self, path: str) -> bool:
        return below(path, *self.system, *self.mounts)


def _needs(file: str, which: Which, levels: int) -> Iterator[str]:
    real = Path(os.path.realpath(file))
    parts = real.parts
    if "node_modules" in parts:
        yield str(Path(*parts[: parts.index("node_modules") + 1]))
    for packages in ("site-packages", "dist-packages"):
        if packages in parts and (index := parts.index(packages)) + 2 < len(parts):
            yield str(Path(*parts[: index + 2]))
    if real.name.startswith("python") and (library := real.parent.parent / "lib").is_dir():
        yield str(library)
        environment = Path(file).parent.parent
        if (environment / "pyvenv.cfg").is_file():
            yield str(environment)
    interpreter = _interpreter(real, which)
    if interpreter and levels:
        yield from _needs(interpreter, which, levels - 1)
        yield interpreter


def _runs(file: str) -> bool:
    """Whether the kernel would take it: inside, nobody could say why it does not."""
    with open(file, "rb") as program:
        head = program.read(_ELF)
    return head[:2] == b"#!" or (len(head) == _ELF and head[:4] == b"\x7fELF" and head[4] in (1, 2))


def _interpreter(real: Path, which: Which) -> str | None:
    try:
        with open(real, "rb") as file:
            line = file.read(_SHEBANG)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    try:
        words = shlex.split(os.fsdecode(line[2:].split(b"\n")[0]))
    except ValueError:
        return None
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return which(words[0]) if words else None


def _next(path: str) -> str | None:
    """Where a path leads by one link; None when nothing on it is one."""
    folder, name = os.path.split(path)
    if (real := os.path.realpath(folder)) != folder:
        return os.path.join(real, name)
    return os.path.normpath(os.path.join(folder, os.readlink(path))) if os.path.islink(path) else None


def below(path: str, *folders: str) -> bool:
    """Whether an absolute path is one of the folders, or in one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
