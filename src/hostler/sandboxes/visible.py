"""What of this machine a program needs to run, and nothing more: its files, its interpreter, its libraries."""

from __future__ import annotations

import errno
import itertools
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Which = Callable[[str], str | None]

PLACE = "/run/hostler/host"  # where what lies below a folder of the agent's is shown
_SHEBANG = 256
_ELF = 52  # bytes of the smallest header
_HOPS = 40  # links on the way to one file
_LEVELS = 4  # an interpreter may have one itself


@dataclass(slots=True)
class Visible:
    """Collects read-only paths. ``system`` are folders that are there anyway; ``own`` the agent's folders, by their paths on
    this machine and inside: what lies in them is there already, and no link in them is followed, for the agent could
    have made it."""

    system: tuple[str, ...]
    own: Mapping[str, str]
    which: Which
    mounts: dict[str, str] = field(default_factory=dict)  # path on this machine to the path inside
    links: dict[str, str] = field(default_factory=dict)  # path inside to what it leads to

    def path(self, path: str) -> str:
        """Where a path of this machine is found inside."""
        for folder, inside in self.own.items():
            if below(path, folder):
                return inside + path[len(folder) :]
        return PLACE + path if below(path, *self.own.values()) else path

    def show(self, path: str) -> str:
        """Have a file or folder seen, by its own name; that name inside. Raises OSError when there is none."""
        hops = self._hops(path)
        for hop, target in itertools.pairwise(hops):
            # Also inside of a folder that is shown: its links may lead through places that are not.
            if not self._there(hop):
                self.links[self.path(hop)] = self.path(target)
        if not self._is_own(hops[-1]):
            os.stat(hops[-1])
            if not self._there(hops[-1]):
                self.mounts[hops[-1]] = self.path(hops[-1])
        return self.path(hops[0])

    def run(self, file: str) -> str:
        """Have an executable seen, with what it needs; its name inside. Raises OSError."""
        if not self._is_own(self._hops(file)[-1]):
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

    def _there(self, path: str) -> bool:
        return below(path, *self.system, *self.mounts)

    def _is_own(self, path: str) -> bool:
        return below(path, *self.own)

    def _hops(self, path: str) -> list[str]:
        """The path, and each one that it leads to by one link more; the last one has none, or lies in an own folder."""
        hops = [os.path.abspath(path)]
        while (target := self._next(hops[-1])) is not None:
            hops.append(target)
            if len(hops) > _HOPS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return hops

    def _next(self, path: str) -> str | None:
        folder, names = "/", path.split("/")[1:]
        for index, name in enumerate(names):
            here = os.path.join(folder, name)
            if self._is_own(here):
                return None
            if os.path.islink(here):
                return os.path.normpath(os.path.join(folder, os.readlink(here), *names[index + 1 :]))
            folder = here
        return None


def _needs(file: str, which: Which, levels: int) -> Iterator[str]:
    real = Path(os.path.realpath(file))
    parts = real.parts
    if "node_modules" in parts:
        yield str(Path(*parts[: parts.index("node_modules") + 1]))
    for packages in ("site-packages", "dist-packages"):
        if packages in parts and (index := parts.index(packages)) + 2 < len(parts):
            yield str(Path(*parts[: index + 2]))
    if real.suffix == ".py" and (package := _package(real)) is not None:
        yield str(package)
    if real.name.startswith("python") and (library := real.parent.parent / "lib").is_dir():
        yield str(library)
        environment = Path(file).parent.parent
        if (environment / "pyvenv.cfg").is_file():
            yield str(environment)
            yield from _joined(environment)
    interpreter = _interpreter(real, which)
    if interpreter and levels:
        yield from _needs(interpreter, which, levels - 1)
        yield interpreter


def _package(file: Path) -> Path | None:
    """The outermost Python package around a file, wherever it is imported from."""
    folders = list(itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), file.parents))
    return folders[-1] if folders else None


def _joined(environment: Path) -> Iterator[str]:
    """The packages of other environments that this one has put to its own. What else its path files name may be whole
    projects, with all that lies in them: of these only what is run is shown."""
    for listing in environment.glob("lib*/python*/site-packages/*.pth"):
        for line in listing.read_text(errors="replace").splitlines():
            if os.path.basename(line.rstrip("/")) in ("site-packages", "dist-packages") and os.path.isdir(line):
                yield line


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


def below(path: str, *folders: str) -> bool:
    """Whether an absolute path is one of the folders, or in one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
