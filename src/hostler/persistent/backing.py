"""The app's functions behind a persistent dir, called with deadlines: what the storage has, and storing into it."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ..types.errors import PathError, PersistenceError
from ..workspace.confined import split
from .calling import Calls
from .comparison import Row, Version, impossible
from .dirs import Changes, FileContent, Files, PersistContext, PersistentDir, Whole, json_text, takes


@dataclass(frozen=True, slots=True)
class Theirs:
    """What the storage has. ``known`` are the files whose content needs not be read, ``unread`` the others; ``versions``
    (JSON text) are the storage's names for the states, ``contents`` what came along."""

    known: Mapping[str, Version]
    unread: frozenset[str] = frozenset()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict)
    cursor: Any = None

    def paths(self) -> set[str]:
        return {*self.known, *self.unread}


class Backing:
    """One dir's storage, during one refresh or commit. Raises PersistenceError for whatever goes wrong in it, and
    PersistenceConflict when the app raises that. ``stopping`` shortens the deadlines."""

    def __init__(
        self,
        dir: PersistentDir,
        ctx: PersistContext,
        *,
        loop: asyncio.AbstractEventLoop | None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        self._dir = dir
        self._source = dir.source
        self._calls = Calls(ctx, dir.timeout, loop=loop, stopping=stopping)

    # ---- looking

    async def look(self, rows: Mapping[str, Row]) -> Theirs:
        """All that the storage has."""
        if isinstance(self._source, Whole):
            return await asyncio.to_thread(self._loaded, await self._calls.call("load", self._source.load), rows)
        return await asyncio.to_thread(self._listed, await self._calls.call("list", self._source.list), rows)

    async def look_at(self, rows: Mapping[str, Row], paths: Sequence[str]) -> Theirs:
        """What the storage has at these paths, and maybe at others."""
        if isinstance(self._source, Files) and self._source.versions is not None:
            found = await self._calls.call("list", self._source.versions, list(paths))
            return await asyncio.to_thread(self._listed, found, rows)
        return await self.look(rows)

    async def contents(self, theirs: Theirs, paths: Iterable[str]) -> AsyncGenerator[tuple[str, bytes], None]:
        """The contents of these paths, in any order. Close it when it is left early."""
        wanted = sorted(paths)
        for path in wanted:
            if path in theirs.contents:
                yield path, theirs.contents[path]
        if isinstance(self._source, Files):
            jobs = [(path,) for path in wanted if path not in theirs.contents]
            each = self._calls.each("read", self._source.read, jobs, len(jobs), self._source.parallel)
            async with aclosing(each) as answers:
                async for (path,), content in answers:
                    yield path, self._bytes(path, content)

    def _loaded(self, value: Any, rows: Mapping[str, Row]) -> Theirs:
        files, cursor = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        if not isinstance(files, Mapping):
            raise self._calls.wrong("load", f"gave {type(files).__name__}, not a dict of paths and contents")
        self._check(files, rows)
        contents = {path: self._bytes(path, content) for path, content in files.items()}
        self._json(cursor, "The cursor")
        known = {path: version_of(content, rows.get(path)) for path, content in contents.items()}
        return Theirs(known, contents=contents, cursor=cursor)

    def _listed(self, value: Any, rows: Mapping[str, Row]) -> Theirs:
        if not isinstance(value, Mapping):
            try:
                value = dict.fromkeys(value)
            except TypeError:
                raise self._calls.wrong("list", f"gave {type(value).__name__}, not a dict or list of paths") from None
        self._check(value, rows)
        versions = {
            path: None if version is None else self._json(version, f"The version of {path!r}")
            for path, version in value.items()
        }
        known: dict[str, Version] = {}
        for path, version in versions.items():
            row = rows.get(path)
            if version is not None and row is not None and row.version == version and row.theirs is not None:
                known[path] = row.theirs
        return Theirs(known, frozenset(versions.keys() - known.keys()), versions)

    # ---- storing

    async def lock(self) -> Callable[[], None] | None:
        """Keep others of the same kind from writing, where that can be; give it back with what this gives."""
        if isinstance(self._source, Files) and self._source.lock is not None:
            return await self._calls.call("lock", self._source.lock)  # type: ignore[no-any-return]
        return None

    @property
    def by_file(self) -> bool:
        return isinstance(self._source, Files)

    async def store(
        self,
        changes: Mapping[str, Version | None],
        rows: Mapping[str, Row],
        read: Callable[[str, Version], bytes],
        cursor: Any,
        done: dict[str, str | None],
    ) -> Any:
        """Store the changes; gives the new cursor (the old one where the app gives none). ``done`` is filled with the
        paths that are stored for certain, and their versions, also when this raises."""
        if isinstance(self._source, Whole):
            assert self._source.store is not None
            given = await asyncio.to_thread(_changes, changes, rows, read)
            new = await self._calls.call("store", self._source.store, given, cursor)
            self._json(new, "The cursor")
            done.update(dict.fromkeys(changes))
            return cursor if new is None else new
        source = self._source
        gone = [
            path for path, version in changes.items() if version is None and rows.get(path, Row()).theirs is not None
        ]
        done.update((path, None) for path, version in changes.items() if version is None and path not in gone)
        delete = _versioned(source.delete, 3)
        removals = [(path, _old(rows, path)) for path in sorted(gone)]
        each = self._calls.each("delete", delete, removals, len(removals), source.parallel)
        async with aclosing(each) as answers:
            async for (path, _), _value in answers:
                done[path] = None
        write = _versioned(source.write, 4)

        def jobs() -> Iterable[tuple[Any, ...]]:
            for path, version in sorted(changes.items()):
                if version is not None:
                    yield path, FileContent(read(path, version), version.executable), _old(rows, path)

        count = sum(version is not None for version in changes.values())
        async with aclosing(self._calls.each("write", write, jobs(), count, source.parallel)) as answers:
            async for (path, *_), value in answers:
                done[path] = None if value is None else self._json(value, f"The version of {path!r}")
        return cursor

    async def merged(self, path: str, *states: bytes | None) -> bytes | None:
        """What the app's ``merge`` makes of the base, ours and theirs."""
        merge: Any = self._dir.merge
        arguments = (*states, path) if takes(merge, 4) else states
        value = await self._calls.bare("merge", merge, *arguments)
        return None if value is None else self._bytes(path, value)

    # ---- checking

    def _json(self, value: Any, what: str) -> str:
        try:
            return json_text(value, what)
        except TypeError as error:
            raise PersistenceError(f"{self._dir.path}: {error}.") from None

    def _check(self, paths: Iterable[Any], rows: Mapping[str, Row]) -> None:
        """Raise PersistenceError for what is no path of a file; those that are in the rows were checked before."""
        new = [path for path in paths if path not in rows]
        for path in new:
            try:
                parts = split(path, self._dir.path)
                path.encode()
            except (PathError, UnicodeEncodeError) as error:
                raise PersistenceError(f"{self._dir.path} cannot be checked out: {error}") from None
            if not parts or "/".join(parts) != path:
                raise PersistenceError(
                    f"{self._dir.path} cannot be checked out: {path!r} is not the plain relative path of a file."
                )
        if new and (both := impossible(paths)) is not None:
            raise PersistenceError(f"{self._dir.path} cannot be checked out: {both!r} is both a file and a folder.")

    def _bytes(self, path: str, content: Any) -> bytes:
        if isinstance(content, bytes):
            return content
        if isinstance(content, (bytearray, memoryview)):
            return bytes(content)
        raise PersistenceError(f"{self._dir.path}: the content of {path!r} is {type(content).__name__}, not bytes.")


def version_of(content: bytes, row: Row | None) -> Version:
    """What a file of the storage is. Where the storage does not say whether it is executable, it is as it was."""
    known = row.theirs.executable if row is not None and row.theirs is not None else False
    return Version.of(content, getattr(content, "executable", known))


def _changes(
    changes: Mapping[str, Version | None], rows: Mapping[str, Row], read: Callable[[str, Version], bytes]
) -> Changes:
    made = Changes()
    for path, version in sorted(changes.items()):
        there = rows.get(path, Row()).theirs is not None
        if version is not None:
            (made.updated if there else made.created)[path] = FileContent(read(path, version), version.executable)
        elif there:
            made.deleted.append(path)
    return made


def _old(rows: Mapping[str, Row], path: str) -> Any:
    version = rows.get(path, Row()).version
    return None if version is None else json.loads(version)


def _versioned(function: Any, count: int) -> Callable[..., Any]:
    """It, called without the version where it takes none."""
    if takes(function, count):
        return function  # type: ignore[no-any-return]
    if inspect.iscoroutinefunction(function):

        async def without(*arguments: Any) -> Any:
            return await function(*arguments[:-1])

        return without
    return lambda *arguments: function(*arguments[:-1])
