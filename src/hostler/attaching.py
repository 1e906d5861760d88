"""Files of messages, put into the session's workspace once: the model is told where they are."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import mimetypes
import re
import stat
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from . import portal
from .messages import File, Message
from .session import SessionCore
from .store import spoken
from .types.errors import CapabilityUnsupported, HarnessError, PathError
from .types.result import FileRef
from .workspace.roots import Roots

FOLDER = "/session/user-input"
Fetch = Callable[[str], Any]
_ODD = re.compile(r"[^\w.-]+")
_NAME = 100  # bytes


def refuse_unfetched(messages: Sequence[Message], fetch: Fetch | None) -> None:
    """Raise CapabilityUnsupported for a file that is given by its URL when nobody is there to fetch it."""
    for url in (file.url for message in messages for file in message.files if message.role == "user"):
        if url and fetch is None:
            raise CapabilityUnsupported(
                f"A message has a file by its URL ({url[:200]}), and hostler fetches nothing by itself. "
                "Give create_harness(fetch=...), a function of the URL that gives its bytes."
            )


async def attach(
    core: SessionCore,
    messages: Sequence[Message],
    *,
    fetch: Fetch | None,
    restage: bool,
    loop: asyncio.AbstractEventLoop | None,
) -> tuple[Message, ...]:
    """The messages with their files in the workspace: ``/session/user-input/<message id>/<safe name>``.

    What was put there before is left as it is, also when the agent has changed or removed it since, unless the client now
    has another content for it, or with ``restage``. Raises HarnessError when a URL cannot be fetched."""
    if not any(message.files for message in messages):
        return tuple(messages)
    live = core.live
    known = await live.host.store.read(lambda conn: spoken.attached_in(conn, live.id))
    taken: dict[str, str] = {}
    out: list[Message] = []
    for message in messages:
        parts = list(message.parts)
        for index, part in enumerate(parts):
            if not isinstance(part, File) or message.role != "user":
                continue
            path = _path(message, part, taken, live.roots)
            before = known.get(path)
            if before is None or before[0] != part.digest or restage:
                data, media_type = await _content(part, fetch, live.host.settings.tool_timeout, loop)
                ref = await core.files.write(path, data, media_type=media_type, source="message", loop=loop)
                await live.host.store.write(
                    lambda conn, p=path, d=part.digest, r=ref: spoken.attach(conn, live.id, p, d, asdict(r))  # type: ignore[misc]
                )
            else:
                ref = FileRef(**before[1])
            media_type = part.media_type or ref.media_type
            parts[index] = replace(
                part, data=None, path=ref.path, bytes=ref.bytes, sha256=ref.sha256, media_type=media_type
            )
        out.append(replace(message, parts=tuple(parts)))
    return tuple(out)


async def _content(
    file: File, fetch: Fetch | None, limit: float, loop: asyncio.AbstractEventLoop | None
) -> tuple[bytes, str | None]:
    if file.data is not None:
        return file.data, file.media_type
    assert file.url is not None
    assert fetch is not None
    try:
        async with asyncio.timeout(limit):
            found = await portal.call_back(fetch, file.url, loop=loop)
    except TimeoutError:
        raise HarnessError(
            f"fetch gave nothing for {file.url[:200]} within {limit:g} s (HOSTLER_TOOL_TIMEOUT); nothing was started."
        ) from None
    except Exception as error:
        raise HarnessError(f"fetch failed for {file.url[:200]}: {error!r}; nothing was started.") from error
    data, media_type = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"fetch must give bytes, or bytes and their media type, not {type(data).__name__}.")
    return bytes(data), file.media_type or media_type


def _path(message: Message, file: File, taken: dict[str, str], roots: Roots) -> str:
    """Where the file goes; two files of one call with the same name and different contents go apart, and none goes where
    the agent has made a folder."""
    folder = f"{FOLDER}/{_folder(message)}"
    name, dot, ending = _name(file).rpartition(".")
    for number in itertools.count(1):
        mark = "" if number == 1 else f"-{number}"
        path = f"{folder}/{name}{mark}{dot}{ending}" if dot and name else f"{folder}/{ending}{mark}"
        if taken.setdefault(path, file.digest) == file.digest and not _is_folder(roots, path):
            return path
    raise AssertionError("numbers end")


def _is_folder(roots: Roots, path: str) -> bool:
    root, name = roots.resolve(path)
    try:
        return stat.S_ISDIR(root.lstat(name).st_mode)
    except (OSError, PathError):
        return False  # writing there says why not


def _folder(message: Message) -> str:
    if message.id is None:
        said = json.dumps([message.text, [file.digest for file in message.files]])
        return "m-" + hashlib.sha256(said.encode()).hexdigest()[:12]
    safe = _safe(message.id, 40)
    return safe if safe == message.id else f"{safe}-{hashlib.sha256(message.id.encode()).hexdigest()[:8]}"


def _name(file: File) -> str:
    """The file's name as one that no shell, path or prompt stumbles over, with an ending that fits."""
    name = _safe((file.name or "").replace("\\", "/").rpartition("/")[2], _NAME)
    if not file.name or name == "_":
        name = "file"
    if "." not in name and file.media_type:
        name += mimetypes.guess_extension(file.media_type.partition(";")[0].strip()) or ""
    return name


def _safe(text: str, size: int) -> str:
    """``text`` without what is special anywhere, in at most about ``size`` bytes; a short ending stays."""
    stem, dot, ending = _ODD.sub("_", unicodedata.normalize("NFC", text)).strip(".").rpartition(".")
    if not dot or len(ending) > 16:
        stem, dot, ending = f"{stem}{dot}{ending}", "", ""
    short = stem.lstrip(".-").encode()[:size].decode(errors="ignore")
    return f"{short or '_'}{dot}{ending}"
