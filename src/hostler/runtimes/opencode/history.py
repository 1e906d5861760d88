"""OpenCode's database to OpenAI-format messages."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from hostler.types.errors import CapabilityUnsupported

_PARTS = """
    select message.data, part.data from message
    left join part on part.message_id = message.id
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
    for about, part in rows:
        if part is not None:
            _add(messages, json.loads(about), json.loads(part))
    return messages


def _without_wal(content: bytes) -> bytes:
    """A database in memory has no write-ahead log; the two bytes of the header that ask for one are set back."""
    return content[:18] + b"\x01\x01" + content[20:] if content[18:20] == b"\x02\x02" else content


def _add(messages: list[dict[str, Any]], about: dict[str, Any], part: dict[str, Any]) -> None:
    role, kind = about.get("role"), part.get("type")
    if role == "user" and kind == "text" and not part.get("synthetic"):
        messages.append({"role": "user", "content": part.get("text") or ""})
    elif role == "user" and kind == "file" and str(part.get("mime")).startswith("image/"):
        _image(messages, str(part.get("url")))
    elif role == "assistant" and kind == "text" and part.get("text"):
        messages.append({"role": "assistant", "content": part["text"]})
    elif role == "assistant" and kind == "tool":
        _tool(messages, part)


def _tool(messages: list[dict[str, Any]], part: dict[str, Any]) -> None:
    state = part.get("state") or {}
    function = {"name": str(part.get("tool")), "arguments": json.dumps(state.get("input") or {})}
    call = {"id": part.get("callID"), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
        messages.append({"role": "assistant", "content": None})
    messages[-1]["tool_calls"] = [call]
    output = state.get("output") if state.get("status") == "completed" else state.get("error") or "interrupted"
    messages.append({"role": "tool", "tool_call_id": part.get("callID"), "content": str(output or "")})


def _image(messages: list[dict[str, Any]], url: str) -> None:
    image = {"type": "image_url", "image_url": {"url": url}}
    if not messages or messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": ""})
    content = messages[-1]["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    messages[-1]["content"] = [*parts, image]
