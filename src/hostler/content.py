"""Bytes on their way into a file and out of one, in constant memory, from and for code of every kind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, BinaryIO

from . import portal
from .workspace import Root

_CHUNK = 1 << 20

Content = bytes | bytearray | memoryview | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]


class _NobodyWaits(Exception):
    """Whoever wanted the file written has left."""


async def write(root: Root, path: str, content: Any, loop: asyncio.AbstractEventLoop | None) -> tuple[int, str]:
    """Write ``content`` to a file that is seen whole or not at all; gives its size and SHA-256.

    It is written in a thread of its own, which also reads sync content; async content is read on ``loop``. When this
    is cancelled, or the content raises, nothing is left. Raises TypeError for what is no content.
    """
    if isinstance(content, (bytes, bytearray, memoryview)):
        return await asyncio.to_thread(root.write, path, bytes(content))
    chunks = _chunks(content)
    queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(2)
    feeding: asyncio.Task[None] | None = None
    if isinstance(chunks, AsyncIterator):
        feeding = asyncio.create_task(_feed(queue, chunks, loop))
        chunks = _taken(queue, asyncio.get_running_loop())
    left = False

    def copy() -> tuple[int, str]:
        with root.create(path) as writer:
            for chunk in chunks:
                if left:
                    break
                writer.write(_checked(chunk))
            if left:
                raise _NobodyWaits
            return writer.commit()

    try:
        return await portal.call_back(copy, loop=None)  # type: ignore[no-any-return]
    finally:
        left = True
        if feeding is not None:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(None)  # the thread may be waiting for more


async def _feed(
    queue: asyncio.Queue[bytes | BaseException | None],
    chunks: AsyncIterator[Any],
    loop: asyncio.AbstractEventLoop | None,
) -> None:
    """Have async content read on the app's loop, which hands over large pieces and waits for no file."""

    async def read() -> None:
        piece = bytearray()
        async for chunk in chunks:
            piece += _checked(chunk)
            if len(piece) >= _CHUNK:
                await portal.arun(queue.put(bytes(piece)))
                piece.clear()
        await portal.arun(queue.put(bytes(piece)))

    end: BaseException | None = None
    try:
        await portal.call_back(read, loop=loop)
    except Exception as error:
        end = error
    await queue.put(end)


def _taken(queue: asyncio.Queue[bytes | BaseException | None], engine: asyncio.AbstractEventLoop) -> Iterator[bytes]:
    """What is fed, for the thread that writes it."""
    while True:
        piece = asyncio.run_coroutine_threadsafe(queue.get(), engine).result()
        if isinstance(piece, BaseException):
            raise piece
        if piece is None:
            return
        yield piece


def _chunks(content: Any) -> Iterator[Any] | AsyncIterator[Any]:
    """The pieces of a file (also one whose ``read`` is async) or of an iterable."""
    if isinstance(content, str):
        raise TypeError("The content must be bytes, not a string: encode it, as in text.encode().")
    if (read := getattr(content, "read", None)) is not None:
        return _read_async(read) if inspect.iscoroutinefunction(read) else _read(read)
    if isinstance(content, AsyncIterable):
        return aiter(content)
    if isinstance(content, Iterable) and not isinstance(content, dict):
        return iter(content)
    raise TypeError(f"The content must be bytes, a binary file or an iterable of bytes, not {type(content).__name__}.")


def _read(read: Callable[[int], Any]) -> Iterator[Any]:
    while piece := read(_CHUNK):
        yield piece


async def _read_async(read: Callable[[int], Any]) -> AsyncIterator[Any]:
    while piece := await read(_CHUNK):
        yield piece


def _checked(chunk: Any) -> bytes | bytearray | memoryview:
    if isinstance(chunk, (bytes, bytearray, memoryview)):
        return chunk
    raise TypeError(f"The content must come in bytes, not in {type(chunk).__name__}.")


class ByteStream:
    """A file's bytes in pieces, for ``for`` and ``async for``; ``read()`` and ``aread()`` give the rest at once.

    What is read is the file as it was when it was opened, also when it is replaced meanwhile. A file that cannot be
    opened is said at the first step.
    """

    def __init__(self, opening: concurrent.futures.Future[BinaryIO]) -> None:
        self._opening = opening

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        piece = portal.run(self._read(_CHUNK))
        if not piece:
            self.close()
            raise StopIteration
        return piece

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = await portal.arun(self._read(_CHUNK))
        if not piece:
            await self.aclose()
            raise StopAsyncIteration
        return piece

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, all that is left without it; empty at the end."""
        return portal.run(self._read(size))

    async def aread(self, size: int = -1) -> bytes:
        """The async twin of `read`."""
        return await portal.arun(self._read(size))

    def close(self) -> None:
        """Let go of the file."""
        portal.run(self._close())

    async def aclose(self) -> None:
        """The async twin of `close`."""
        await portal.arun(self._close())

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> ByteStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        portal.post(self._close)

    # On the engine.

    async def _read(self, size: int) -> bytes:
        file = await asyncio.wrap_future(self._opening)
        return b"" if file.closed else await asyncio.to_thread(file.read, size)

    async def _close(self) -> None:
        try:
            (await asyncio.wrap_future(self._opening)).close()
        except Exception:
            pass  # it never opened, and whoever read was told
