"""Large contents of events, kept beside the journal and put back when a record is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from ..store.journal import Fetch, Journalled, Shelved, Writable
from ..types.events import Approval, Event, ToolCall, ToolResult, event_to_dict
from ..workspace import SessionDirs
from ..workspace.blobs import Blobs

LARGE = 1 << 16  # characters of a field that the journal itself holds
_PREVIEW = 1000
_FIELDS: dict[type[Any], str] = {ToolResult: "output", ToolCall: "input", Approval: "input"}


def blobs_of(dirs: SessionDirs) -> Blobs:
    """Where a session's large contents are."""
    return Blobs(dirs.blobs)


async def shelve(events: Sequence[Journalled], blobs: Blobs) -> Sequence[Writable]:
    """The events as the journal is to hold them; the large contents are on the disk when this returns."""
    if not any(_is_large(event) for event, _ in events):
        return events
    return await asyncio.to_thread(_shelve, events, blobs)


def fetcher(data_dir: str) -> Fetch:
    """Reads a large content back, by its session's key and its SHA-256; None when it is gone or was changed."""

    def fetch(key: str, sha256: str) -> str | None:
        data = blobs_of(SessionDirs.of(data_dir, key)).read(sha256)
        return None if data is None else data.decode()

    return fetch


def _shelve(events: Sequence[Journalled], blobs: Blobs) -> list[Writable]:
    return [(_shelved(event, blobs) if _is_large(event) else event, parent) for event, parent in events]


def _is_large(event: Event) -> bool:
    field = _FIELDS.get(type(event))
    return field is not None and _size(getattr(event, field), LARGE) > LARGE


def _size(value: Any, enough: int) -> int:
    """About how many characters the value holds; not counted further than ``enough``."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if not isinstance(value, (list, tuple)):
        return 8
    total = 0
    for item in value:
        total += _size(item, enough - total)
        if total > enough:
            break
    return total


def _shelved(event: Event, blobs: Blobs) -> Shelved:
    field = _FIELDS[type(event)]
    value = getattr(event, field)
    text = json.dumps(value, default=repr)
    size, sha256 = blobs.put(text.encode())
    short = value[:_PREVIEW] if isinstance(value, str) else {"beginning": text[:_PREVIEW]}
    reference = {"field": field, "sha256": sha256, "bytes": size}
    return Shelved(event, {**event_to_dict(event), field: short, "shelved": reference})
