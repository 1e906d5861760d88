"""The files of a session as its app reaches them, on the engine's side; `faces` gives it to sync and async callers."""

from __future__ import annotations

import asyncio
import errno
import json
import mimetypes
from collections.abc import Callable
from dataclasses import replace
from time import time
from typing import Any, BinaryIO

from . import content as contents
from .content import Content
from .host.live import LiveSession
from .store import files as queries
from .telemetry.keys import Keys
from .types.errors import PathError
from .types.events import FileMoved, FileRemoved, FileStaged
from .types.result import FileEntry, FileRef
from .workspace.diffs import printable


class FilesCore:
    """Paths are relative to ``/session`` (the working directory) or begin with ``/session``, ``/artifacts``,
    ``/persistent`` or ``/skills``; any other raises PathError, and so does one that goes through a link."""

    def __init__(self, live: LiveSession, check_open: Callable[[], None]) -> None:
        self._live = live
        self._check_open = check_open

    async def write(
        self,
        path: str,
        content: Content,
        *,
        media_type: str | None = None,
        source: str | None = None,
        metadata: Any = None,
        artifact: bool = False,
        notice: bool = False,
        loop: asyncio.AbstractEventLoop | None,
    ) -> FileRef:
        """Write a file, between turns or in the middle of one: it is there whole or not at all, and is journalled.

        ``content`` is bytes, a binary file, or an iterable (sync or async) of bytes, which is streamed in constant
        memory. ``source`` and ``metadata`` (JSON) go into the journal. ``artifact``: its versions are kept as the
        session's results, one after each turn. ``notice``: the next turn that is accepted tells the agent of the file.
        """
        self._check_open()
        for name, value in (("media_type", media_type), ("source", source)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a string or None, not {type(value).__name__}.")
        try:
            json.dumps(metadata)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"metadata must be a JSON value: {error}.") from None
        live = self._live
        virtual = live.roots.virtual(path)
        _check_name(virtual)
        live.persistent.check_write(virtual)
        root, path = live.roots.resolve(path)
        size, sha256 = await contents.write(root, path, content, loop)
        kind = media_type or mimetypes.guess_type(virtual)[0]
        file = FileRef(virtual, size, kind, sha256, artifact or virtual.startswith("/artifacts/"))
        staged = FileStaged(file, source, Keys(live.rules.get("redact")).mask(metadata))
        mark = artifact or (file.artifact and media_type is not None)  # what is under /artifacts is found by itself
        records = await live.host.store.write(
            lambda conn: queries.stage(conn, live.id, staged, mark=mark, notice=notice, now=time()),
            durable=True,
        )
        live.host.journal.publish(live.id, records)
        return file

    async def read(self, path: str) -> bytes:
        """The content of a file. Raises FileNotFoundError when there is none."""
        root, path = self._live.roots.resolve(path)
        return await asyncio.to_thread(root.read, path)

    async def open(self, path: str) -> BinaryIO:
        """A file, opened for reading."""
        root, path = self._live.roots.resolve(path)
        return await asyncio.to_thread(root.open_read, path)

    async def list(self, path: str = "/session") -> tuple[FileEntry, ...]:
        """What is in a directory, by name. Links are listed as such and never followed."""
        root, path = self._live.roots.resolve(path)
        entries = await asyncio.to_thread(root.listdir, path)
        return tuple(replace(entry, path=f"{root.virtual}/{entry.path}") for entry in entries)

    async def stat(self, path: str) -> FileEntry:
        """What is at ``path``; a link is itself. Raises FileNotFoundError when there is nothing."""
        root, inner = self._live.roots.resolve(path)
        entry = await asyncio.to_thread(root.stat, inner)
        return replace(entry, path=self._live.roots.virtual(path))

    async def remove(self, path: str) -> None:
        """Remove a file, a link (never what it leads to), or a directory with all that is in it."""
        self._check_open()
        virtual = self._live.roots.virtual(path)
        self._live.persistent.check_write(virtual)
        removed = FileRemoved(printable(virtual))
        root, path = self._live.roots.resolve(path)
        await asyncio.to_thread(root.remove, path)
        await self._unstage(removed)

    async def move(self, source: str, target: str) -> None:
        """Rename a file, a link itself or a directory; a file at ``target`` is replaced, its parents are made."""
        self._check_open()
        virtual = self._live.roots.virtual
        for path in (source, target):
            self._live.persistent.check_write(virtual(path))
        moved = FileMoved(printable(virtual(source)), printable(virtual(target)))
        from_root, source = self._live.roots.resolve(source)
        to_root, target = self._live.roots.resolve(target)
        try:
            await asyncio.to_thread(from_root.move, source, target, to_root)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with await asyncio.to_thread(from_root.open_read, source) as file:  # the folders lie on different disks
                await contents.write(to_root, target, file, None)
            await asyncio.to_thread(from_root.remove, source)
        await self._unstage(moved)

    async def _unstage(self, event: FileRemoved | FileMoved) -> None:
        live = self._live
        records = await live.host.store.write(lambda conn: queries.unstage(conn, live.id, event, time()), durable=True)
        live.host.journal.publish(live.id, records)


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise PathError(f"{path!r} is not UTF-8, so that it could not be journalled.") from None
