"""File operations beneath a root that follow no link, even while somebody swaps directories for links."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from ..removal import remove_at
from ..types.errors import PathError
from ..types.result import FileEntry

_MAX_NAME = 255
_MAX_PATH = 4096
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
# O_PATH is enough to pass through a directory and needs no right to list it; other systems list it.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO without a writer must not block the open, a terminal must not become ours.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def split(path: str, virtual: str = "/session") -> tuple[str, ...]:
    """The names that ``path`` goes through below its root; ``()`` for the root itself.

    The one rule for paths: a path is relative to the root, or begins with the root's ``virtual`` name. ``.`` and double
    slashes mean nothing. Refused with PathError: other absolute paths, ``..`` anywhere, ``~`` and Windows drives or
    shares at the beginning, NUL, the empty path, names over 255 and paths over 4096 bytes, text that is no file name.
    """
    if not isinstance(path, str):
        raise PathError(f"A path must be a string, not {type(path).__name__}.")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise PathError(f"{path!r} is no file name: it cannot be encoded.") from None
    if not path or "\0" in path:
        raise PathError(f"{path!r} is no file name: it is empty or holds a NUL.")
    if size > _MAX_PATH:
        raise PathError(f"A path of {size} bytes is too long; at most {_MAX_PATH} are possible.")
    inner = path
    if path == virtual or path.startswith(virtual + "/"):
        inner = path[len(virtual) :]
    elif path.startswith("/") or _WINDOWS.match(path):
        raise PathError(f"{path!r} is outside: give a path that is relative or begins with {virtual}/.")
    parts = tuple(part for part in inner.split("/") if part not in ("", "."))
    if ".." in parts or parts[:1] == ("~",):
        raise PathError(f"{path!r} may leave its root: '..' and '~' are refused.")
    if size > _MAX_NAME and any(len(os.fsencode(part)) > _MAX_NAME for part in parts):
        raise PathError(f"{path[:80]!r}... holds a name of more than {_MAX_NAME} bytes.")
    return parts


def make_folder(path: str) -> None:
    """Make a folder of the session, for this user alone. What an agent put in its place, a link or a file, is removed."""
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
        os.unlink(path)
    os.makedirs(path, mode=0o700, exist_ok=True)


def clear_folder(path: str) -> None:
    """The same, with nothing in it. The folder itself stays: it may be mounted somewhere."""
    make_folder(path)
    root = Root(path)
    for entry in root.listdir():
        with contextlib.suppress(FileNotFoundError):
            root.remove(entry.path)


def kind_of(mode: int) -> str:
    """The FileEntry kind of a stat mode."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


class Root:
    """A directory of the host that paths are confined to.

    Each operation walks from the root with directory descriptors and opens no link on the way, so a link is never
    followed, wherever it leads and whenever it was made: PathError. What is missing raises FileNotFoundError.
    ``virtual`` is the root's name as the agent sees it.
    """

    def __init__(self, path: str | os.PathLike[str], virtual: str = "/session") -> None:
        self.path = os.path.realpath(path)
        self.virtual = virtual

    def __repr__(self) -> str:
        return f"Root({self.path!r}, {self.virtual!r})"

    # ---- reading

    def open_read(self, path: str) -> BinaryIO:
        """A regular file, opened for reading. PathError for links, FIFOs and devices, without touching them."""
        with self._parent(path) as (parent, name):
            with self._explained(path, parent, name):
                mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                self._regular(path, mode)  # a device must not even be opened
                fd = os.open(name, _READ, dir_fd=parent)
            try:
                self._regular(path, os.fstat(fd).st_mode)
                return os.fdopen(fd, "rb")
            except BaseException:
                os.close(fd)
                raise

    def read(self, path: str, limit: int | None = None) -> bytes:
        """The content of a regular file; only the first ``limit`` bytes when given."""
        with self.open_read(path) as file:
            return file.read() if limit is None else file.read(limit)

    def stat(self, path: str) -> FileEntry:
        """What is at ``path``; a link is itself."""
        info = self.lstat(path)
        return FileEntry("/".join(split(path, self.virtual)) or ".", kind_of(info.st_mode), info.st_size)

    def lstat(self, path: str) -> os.stat_result:
        """The system's own record of what is at ``path``; a link is itself."""
        if not split(path, self.virtual):
            with self._directory(path, (), _PASS) as fd:
                return os.fstat(fd)
        with self._parent(path) as (parent, name), self._explained(path, parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False)

    def listdir(self, path: str = ".") -> list[FileEntry]:
        """The entries of a directory by name. Their paths are relative to the root and can be given back."""
        parts = split(path, self.virtual)
        prefix = "".join(part + "/" for part in parts)
        entries = []
        with self._directory(path, parts, _LIST) as fd, os.scandir(fd) as found:
            for item in found:
                with contextlib.suppress(FileNotFoundError):
                    info = item.stat(follow_symlinks=False)
                    entries.append(FileEntry(prefix + item.name, kind_of(info.st_mode), info.st_size))
        return sorted(entries, key=lambda entry: entry.path)

    # ---- changing

    def create(self, path: str, mode: int | None = None) -> Writer:
        """Begin to write a file; see `Writer`. Missing parent directories are made."""
        return Writer(self, path, mode)

    def write(self, path: str, chunks: bytes | Iterable[bytes], mode: int | None = None) -> tuple[int, str]:
        """Write a file in one step that is seen whole or not at all; gives its size and SHA-256."""
        with self.create(path, mode) as writer:
            for chunk in (chunks,) if isinstance(chunks, (bytes, bytearray, memoryview)) else chunks:
                writer.write(chunk)
            return writer.commit()

    def remove(self, path: str) -> None:
        """Remove a file, a link (never what it points to) or a directory with all that is in it."""
        with self._parent(path) as (parent, name), self._explained(path, parent, name):
            remove_at(parent, name)

    def mkdirs(self, path: str) -> None:
        """Make a directory and its missing parents."""
        with self._directory(path, split(path, self.virtual), _PASS, make=True):
            pass

    def rmdir(self, path: str) -> None:
        """Remove a directory that is empty."""
        with self._parent(path) as (parent, name), self._explained(path, parent, name):
            os.rmdir(name, dir_fd=parent)

    def move(self, source: str, target: str, into: Root | None = None) -> None:
        """Rename a file, a link itself, or a directory; a file at ``target`` (of the root ``into``, when given) is
        replaced, its parents are made."""
        self.lstat(source)  # before parents are made for nothing
        with (
            self._parent(source) as (from_fd, from_name),
            (into or self)._parent(target, make=True) as (to_fd, to_name),
            self._explained(target, to_fd, to_name),
        ):
            os.rename(from_name, to_name, src_dir_fd=from_fd, dst_dir_fd=to_fd)

    # ---- the walk

    @contextlib.contextmanager
    def _parent(self, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
        parts = split(path, self.virtual)
        if not parts:
            raise PathError(f"{path!r} is the root itself; name something in it.")
        with self._directory(path, parts[:-1], _PASS, make) as fd:
            yield fd, parts[-1]

    @contextlib.contextmanager
    def _directory(self, path: str, parts: tuple[str, ...], flags: int, make: bool = False) -> Iterator[int]:
        fd = os.open(self.path, flags if not parts else _PASS)
        try:
            for depth, name in enumerate(parts):
                with self._explained(path, fd, name):
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, 0o777, dir_fd=fd)
                    child = os.open(name, flags if depth == len(parts) - 1 else _PASS, dir_fd=fd)
                os.close(fd)
                fd = child
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _explained(self, path: str, parent: int, name: str) -> Iterator[None]:
        """Turns the system's error into one that names the caller's path, and says when a link was the reason."""
        try:
            yield
        except PathError:
            raise
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_link(parent, name):
                raise PathError(f"{path!r} goes through the link {name!r}; links are not followed.") from None
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):  # swapped twice while we looked
                raise PathError(f"{path!r} is not a regular file.") from None
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from None

    def _regular(self, path: str, mode: int) -> None:
        if stat.S_ISLNK(mode):
            raise PathError(f"{path!r} is a link; links are not followed.")
        if not stat.S_ISREG(mode):
            raise PathError(f"{path!r} is not a regular file.")


class Writer:
    """A file being written beside its target, which takes the target's place at `commit` and else disappears.

    ``mode`` None keeps the permissions of the file that is replaced, 0644 for a new one.
    """

    def __init__(self, root: Root, path: str, mode: int | None) -> None:
        self._root, self._path, self._mode = root, path, mode
        self._open = contextlib.ExitStack()
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._done = False

    def __enter__(self) -> Writer:
        with contextlib.ExitStack() as stack:
            self._parent, self._name = stack.enter_context(self._root._parent(self._path, make=True))
            if self._mode is None:
                self._mode = self._replaced_mode()
            self._temp = f".hostler-{secrets.token_hex(8)}.tmp"
            with self._root._explained(self._path, self._parent, self._temp):
                self._fd = os.open(self._temp, _CREATE, 0o600, dir_fd=self._parent)
            stack.callback(self._drop)
            self._open = stack.pop_all()
        return self

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append a chunk."""
        self._hash.update(chunk)
        view = memoryview(chunk).cast("B")
        self._bytes += len(view)
        while view:
            view = view[os.write(self._fd, view) :]

    def commit(self, sync: bool = False, name: Callable[[str], str] | None = None) -> tuple[int, str]:
        """Put the file in its place; with ``sync`` it outlives a power cut. Gives its size and SHA-256, of which
        ``name`` may make another name for it."""
        if name is not None:
            self._name = name(self._hash.hexdigest())
        os.fchmod(self._fd, (self._mode or 0) & 0o777)
        if sync:
            os.fsync(self._fd)
        with self._root._explained(self._path, self._parent, self._name):
            self._replaced_mode()  # says why a link or FIFO is refused; a later swap is replaced, never followed
            os.replace(self._temp, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._done = True
        return self._bytes, self._hash.hexdigest()

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _replaced_mode(self) -> int:
        try:
            mode = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return 0o644
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._path)
        self._root._regular(self._path, mode)
        return mode

    def _drop(self) -> None:
        os.close(self._fd)
        if not self._done:
            with contextlib.suppress(OSError):
                os.unlink(self._temp, dir_fd=self._parent)


def _is_link(parent: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False
