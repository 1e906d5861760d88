"""OpenCode's database to OpenAI-format messages."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from itertools import groupby
from typing import Any

from hostler.types.errors import CapabilityUnsupported

_PARTS = """
    select message.id, message.data, part.data from message
    join part on part.message_id = message.id
    where message.session_id = ?
    order by message.time_created, message.id, part.id
"""


def history(files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
    """All messages of the session, read from a copy of the database in memory."""
    content = next((data for path, data in files.items() if path.endswith("opencode.db")), None)
    if content is None:
        raise CapabilityUnsupported(f"There is no database of the OpenCode session {native_id}.")
    with closing(sqlite3.connect(":memory:")) as db:
        try:
            db.deserialize(_without_wal(content))
            rows = db.execute(_PARTS, (native_id,)).fetchall()
        except sqlite3.DatabaseError as error:
            raise CapabilityUnsupported(f"This OpenCode database cannot be read: {error}.") from None
    messages: list[dict[str, Any]] = []
    for _, group in groupby(rows, key=lambda row: row[0]):
        pairs = [(json.loads(about), json.loads(part)) for _, about, part in group]
        parts = [part for _, part in pairs]
        messages += _user(parts) if pairs[0][0].get("role") == "user" else _assistant(parts)
    return messages


def _without_wal(content: bytes) -> bytes:
    """A database in memory has no write-ahead log; the two bytes of the header that ask for one are set back."""
    return content[:18] + b"\x01\x01" + content[20:] if content[18:20] == b"\x02\x02" else content


def _user(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts = [
        str(p.get("text") or "")
        for p in parts
        if p.get("type") == "text" and not (p.get("synthetic") or p.get("ignored"))
    ]
    images = [p for p in parts if p.get("type") == "file" and str(p.get("mime")).startswith("image/")]
    if not texts and not images:
        return []
    text = "\n".join(texts)
    if not images:
        return [{"role": "user", "content": text}]
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    content += [{"type": "image_url", "image_url": {"url": image.get("url")}} for image in images]
    return [{"role": "user", "content": content}]


def _assistant(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The message of one model call, and the answers of the tools that it called."""
    text = "".join(str(p.get("text") or "") for p in parts if p.get("type") == "text")
    tools = [p for p in parts if p.get("type") == "tool"]
    if not text and not tools:
        return []
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if tools:
        message["tool_calls"] = [_call(p) for p in tools]
    return [message, *({"role": "tool", "tool_call_id": p.get("callID"), "content": _output(p)} for p in tools)]


def _call(part: dict[str, Any]) -> dict[str, Any]:
    given = (part.get("state") or {}).get("input") or {}
    function = {"name": str(part.get("tool")), "arguments": json.dumps(given)}
    return {"id": part.get("callID"), "type": "function", "function": function}


def _output(part: dict[str, Any]) -> str:
    state = part.get("state") or {}
    return (
        str(state.get("output") or "")
        if state.get("status") == "completed"
        else str(state.get("error") or "interrupted")
    )
