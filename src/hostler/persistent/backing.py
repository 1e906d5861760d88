"""The app's functions behind a persistent dir, called with deadlines: what the storage has, and storing into it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .. import portal
from ..types.errors import PathError, PersistenceConflict, PersistenceError
from ..workspace.confined import split
from .comparison import Row, Version, impossible
from .dirs import Changes, FileContent, Files, PersistContext, PersistentDir, Whole, json_text, takes

T = TypeVar("T")
_Answer = tuple[Any, Any, BaseException | None]  # of a call in a thread: for which job, its value, what it raised
_GRACE = 3.0  # s that a call under way has when somebody wants the turn to end
_AT_ONCE = 8  # async calls for single files
_AHEAD = 1  # batches that are waiting to be taken
_BATCH, _BATCH_BYTES, _BATCH_TIME = 64, 1 << 20, 0.05  # answers, bytes and s of one batch


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
        self._ctx = ctx
        self._loop = loop
        self._stopping = stopping

    # ---- looking

    async def look(self, rows: Mapping[str, Row]) -> Theirs:
        """All that the storage has."""
        if isinstance(self._source, Whole):
            return await asyncio.to_thread(self._loaded, await self._call("load", self._source.load), rows)
        return await asyncio.to_thread(self._listed, await self._call("list", self._source.list), rows)

    async def look_at(self, rows: Mapping[str, Row], paths: Sequence[str]) -> Theirs:
        """What the storage has at these paths, and maybe at others."""
        if isinstance(self._source, Files) and self._source.versions is not None:
            found = await self._call("list", self._source.versions, list(paths))
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
            async with aclosing(self._each("read", self._source.read, jobs)) as answers:
                async for (path,), content in answers:
                    yield path, self._bytes(path, content)

    def _loaded(self, value: Any, rows: Mapping[str, Row]) -> Theirs:
        files, cursor = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        if not isinstance(files, Mapping):
            raise self._wrong("load", f"gave {type(files).__name__}, not a dict of paths and contents")
        contents = {self._path(path): self._bytes(path, content) for path, content in files.items()}
        self._json(cursor, "The cursor")
        known = {path: version_of(content, rows.get(path)) for path, content in contents.items()}
        self._possible(known)
        return Theirs(known, contents=contents, cursor=cursor)

    def _listed(self, value: Any, rows: Mapping[str, Row]) -> Theirs:
        if not isinstance(value, Mapping):
            value = dict.fromkeys(value)
        versions = {
            self._path(path): None if version is None else self._json(version, f"The version of {path!r}")
            for path, version in value.items()
        }
        known: dict[str, Version] = {}
        for path, version in versions.items():
            row = rows.get(path)
            if version is not None and row is not None and row.version == version and row.theirs is not None:
                known[path] = row.theirs
        self._possible(versions)
        return Theirs(known, frozenset(versions.keys() - known.keys()), versions)

    # ---- storing

    async def lock(self) -> Callable[[], None] | None:
        """Keep others of the same kind from writing, where that can be; give it back with what this gives."""
        if isinstance(self._source, Files) and self._source.lock is not None:
            return await self._call("lock", self._source.lock)  # type: ignore[no-any-return]
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
            new = await self._call("store", self._source.store, given, cursor)
            self._json(new, "The cursor")
            done.update(dict.fromkeys(changes))
            return cursor if new is None else new
        source = self._source
        gone = [
            path for path, version in changes.items() if version is None and rows.get(path, Row()).theirs is not None
        ]
        done.update((path, None) for path, version in changes.items() if version is None and path not in gone)
        delete = _versioned(source.delete, 3)
        async with aclosing(
            self._each("delete", delete, [(path, _old(rows, path)) for path in sorted(gone)])
        ) as answers:
            async for (path, _), _value in answers:
                done[path] = None
        write = _versioned(source.write, 4)

        def jobs() -> Iterable[tuple[Any, ...]]:
            for path, version in sorted(changes.items()):
                if version is not None:
                    yield path, FileContent(read(path, version), version.executable), _old(rows, path)

        count = sum(version is not None for version in changes.values())
        async with aclosing(self._each("write", write, jobs(), count)) as answers:
            async for (path, *_), value in answers:
                done[path] = None if value is None else self._json(value, f"The version of {path!r}")
        return cursor

    # ---- calling

    async def merged(self, path: str, *states: bytes | None) -> bytes | None:
        """What the app's ``merge`` makes of the base, ours and theirs."""
        merge: Any = self._dir.merge
        arguments = (*states, path) if takes(merge, 4) else states
        value = await self._within("merge", portal.call_back(merge, *arguments, loop=self._loop))
        return None if value is None else self._bytes(path, value)

    async def _call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._within(what, portal.call_back(function, self._ctx, *arguments, loop=self._loop))

    async def _within(self, what: str, work: Awaitable[T]) -> T:
        """Its outcome in time, in words for the app."""
        task = asyncio.ensure_future(_outcome(work))
        waiting: set[asyncio.Future[Any]] = {task}
        if self._stopping is not None:
            waiting.add(asyncio.ensure_future(self._stopping.wait()))
        limit = self._dir.timeout
        try:
            await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and any(other.done() for other in waiting):
                limit = min(limit, _GRACE)
                await asyncio.wait({task}, timeout=limit)
            if not task.done():
                raise self._wrong(what, f"gave no answer within {limit:g} s")
            value, error = task.result()
        finally:
            if not task.done():
                self._ctx.cancel.set()
            for future in waiting:
                future.cancel()
        if error is not None:
            raise self._raised(what, error) from error
        return value  # type: ignore[no-any-return]

    async def _each(
        self, what: str, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], count: int | None = None
    ) -> AsyncGenerator[tuple[tuple[Any, ...], Any], None]:
        """Call it once for each job, and give the answers as they come, each within the deadline."""
        if inspect.iscoroutinefunction(function):
            todo = iter(jobs)
            while group := await asyncio.to_thread(lambda: list(itertools.islice(todo, _AT_ONCE))):
                calls = [asyncio.ensure_future(self._call(what, function, *job)) for job in group]
                try:
                    for job, call in zip(group, calls, strict=True):
                        yield job, await call
                finally:
                    for call in calls:
                        call.cancel()
                    await asyncio.gather(*calls, return_exceptions=True)
            return
        assert isinstance(self._source, Files)
        source = _Threads(lambda job: function(self._ctx, *job), iter(jobs), self._source.parallel)
        left = len(jobs) if count is None else count  # type: ignore[arg-type]
        try:
            while left:
                answer = source.ready()
                if answer is None:
                    answer = await self._within(what, source.next())
                job, value, error = answer
                if error is not None:
                    raise self._raised(what, error) from error
                if inspect.isawaitable(value):
                    value = await self._within(what, portal.call_back(lambda value=value: value, loop=self._loop))
                yield job, value
                left -= 1
        finally:
            source.leave()

    # ---- checking

    def _wrong(self, what: str, how: str) -> PersistenceError:
        return PersistenceError(
            f"{what} of the persistent dir {self._dir.path} in session {self._ctx.session!r} {how}."
        )

    def _raised(self, what: str, error: BaseException) -> PersistenceError:
        if isinstance(error, PersistenceConflict):
            return PersistenceConflict(str(error) or f"{self._dir.path} was changed by somebody else.")
        if isinstance(error, PersistenceError):
            return PersistenceError(str(error))
        return self._wrong(what, f"raised {type(error).__name__}: {error}")

    def _json(self, value: Any, what: str) -> str:
        try:
            return json_text(value, what)
        except TypeError as error:
            raise PersistenceError(f"{self._dir.path}: {error}.") from None

    def _path(self, path: Any) -> str:
        try:
            parts = split(path, self._dir.path)
            path.encode()
        except (PathError, UnicodeEncodeError) as error:
            raise PersistenceError(f"{self._dir.path} cannot be checked out: {error}") from None
        if not parts or "/".join(parts) != path:
            raise PersistenceError(
                f"{self._dir.path} cannot be checked out: {path!r} is not the plain relative path of a file."
            )
        return path  # type: ignore[no-any-return]

    def _bytes(self, path: str, content: Any) -> bytes:
        if isinstance(content, bytes):
            return content
        if isinstance(content, (bytearray, memoryview)):
            return bytes(content)
        raise PersistenceError(f"{self._dir.path}: the content of {path!r} is {type(content).__name__}, not bytes.")

    def _possible(self, paths: Iterable[str]) -> None:
        if (both := impossible(paths)) is not None:
            raise PersistenceError(f"{self._dir.path} cannot be checked out: {both!r} is both a file and a folder.")


async def _outcome(work: Awaitable[T]) -> tuple[Any, BaseException | None]:
    """What it gives or raises. The app may raise anything, SystemExit too, which must not end the engine."""
    try:
        return await work, None
    except GeneratorExit:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise
        return None, error


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


class _Threads:
    """Calls of a sync function, one after another in a thread of its own (or in some), a little ahead of who takes the
    answers. They come in batches: waking the engine costs more than a small call."""

    def __init__(self, work: Callable[[Any], Any], jobs: Any, threads: int) -> None:
        self._work = work
        self._jobs = jobs
        self._engine = asyncio.get_running_loop()
        self._batches: asyncio.Queue[list[_Answer]] = asyncio.Queue()
        self._taken: list[_Answer] = []
        self._room = threading.Semaphore(_AHEAD + threads)
        self._taking = threading.Lock()
        self._left = False
        for _ in range(threads):
            # Daemons: the interpreter would wait for one that the app blocks for ever.
            threading.Thread(target=self._run, name="hostler-persistent", daemon=True).start()

    def _run(self) -> None:
        while self._room.acquire() and (batch := self._batch()):
            with contextlib.suppress(RuntimeError):  # the engine is gone
                self._engine.call_soon_threadsafe(self._batches.put_nowait, batch)

    def _batch(self) -> list[_Answer]:
        batch: list[_Answer] = []
        size, end = 0, time.monotonic() + _BATCH_TIME
        while len(batch) < _BATCH and size < _BATCH_BYTES and time.monotonic() < end:
            job = None
            try:
                with self._taking:
                    job = None if self._left else next(self._jobs, None)
                if job is None:
                    break
                value = self._work(job)
            except BaseException as error:
                self._left = True
                batch.append((job, None, error))
                break
            batch.append((job, value, None))
            size += sum(len(part) for part in (value, *job) if isinstance(part, bytes))
        return batch

    def ready(self) -> _Answer | None:
        """An answer that is there."""
        if not self._taken and not self._batches.empty():
            self._take(self._batches.get_nowait())
        return self._taken.pop() if self._taken else None

    async def next(self) -> _Answer:
        """The next answer, when none is there."""
        self._take(await self._batches.get())
        return self._taken.pop()

    def _take(self, batch: list[_Answer]) -> None:
        self._room.release()
        self._taken = batch[::-1]

    def leave(self) -> None:
        """Nobody takes more: each thread ends after its call."""
        self._left = True
        self._room.release(1024)
