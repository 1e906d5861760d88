"""Claude Code's transcript, to OpenAI-format messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...types.errors import SessionLost
from . import tools

Row = dict[str, Any]
Message = dict[str, Any]
_NO_RESULT = "The transcript holds no result of this call."
_INTERRUPTED = "[Request interrupted by user"


def history(files: Mapping[str, bytes], native_id: str) -> list[Message]:
    """What the user and the main agent said and did, in order; every tool call is followed by its result.

    The transcript is a tree of rows, each naming its parent: edits and rewinds leave dead branches, sub-agents have
    branches of their own. The conversation is the way from the last row to the root.
    """
    content = next((data for path, data in files.items() if path.rsplit("/", 1)[-1] == f"{native_id}.jsonl"), None)
    if content is None:
        raise SessionLost(f"Claude Code's transcript of conversation {native_id} is gone.")
    rows = [row for row in _rows(content) if not row.get("isSidechain")]
    return list(_messages(_conversation(rows)))


def _rows(content: bytes) -> Iterator[Row]:
    for line in content.split(b"\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # empty, or torn by a crash
        if isinstance(row, dict) and isinstance(row.get("uuid"), str):
            yield row


def _conversation(rows: list[Row]) -> list[Row]:
    """The rows on the way from the last one to the root, and with them the rest of each answer on it: calls made
    side by side, and their results, hang beside that way."""
    by_id = {row["uuid"]: row for row in rows}
    on_way: set[str] = set()
    row = rows[-1] if rows else None
    while row is not None and row["uuid"] not in on_way:
        on_way.add(row["uuid"])
        row = by_id.get(str(row.get("parentUuid") or row.get("logicalParentUuid")))  # the latter crosses a compaction
    answers = {id for row in rows if row["uuid"] in on_way and (id := _answer_id(row))}
    kept = [row for row in rows if row["uuid"] in on_way or _answer_id(row) in answers]
    calls = {str(block.get("id")) for row in kept for block in _blocks(row, "tool_use")}
    ids = {row["uuid"] for row in kept}
    return [
        row
        for row in rows
        if row["uuid"] in ids or any(str(b.get("tool_use_id")) in calls for b in _blocks(row, "tool_result"))
    ]


def _messages(rows: list[Row]) -> Iterator[Message]:
    results = {
        str(block.get("tool_use_id")): tools.output_text(block.get("content"))
        for row in rows
        for block in _blocks(row, "tool_result")
    }
    answer: list[Row] = []
    for row in rows:
        if answer and (_answer_id(row) != _answer_id(answer[0])) and not _blocks(row, "tool_result"):
            yield from _assistant(answer, results)
            answer = []
        if _answer_id(row):
            answer.append(row)
        elif (said := _said(row)) is not None:
            yield {"role": "user", "content": said}
    yield from _assistant(answer, results)


def _assistant(rows: list[Row], results: Mapping[str, str]) -> Iterator[Message]:
    text = "\n\n".join(str(block.get("text")) for row in rows for block in _blocks(row, "text") if block.get("text"))
    calls = [block for row in rows for block in _blocks(row, "tool_use")]
    if not text and not calls:
        return
    message: Message = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": block.get("id"),
                "type": "function",
                "function": {"name": block.get("name"), "arguments": json.dumps(block.get("input"))},
            }
            for block in calls
        ]
    yield message
    for block in calls:
        id = str(block.get("id"))
        yield {"role": "tool", "tool_call_id": id, "content": results.get(id, _NO_RESULT)}


def _said(row: Row) -> str | list[Message] | None:
    """What the user said in this row; None where it is the program's own."""
    if row.get("isMeta") or row.get("isCompactSummary") or row.get("rowSource") == "harness":
        return None
    content: Any = None
    if row.get("type") == "user" and isinstance(row.get("message"), dict):
        content = row["message"].get("content")
    elif isinstance(said := row.get("attachment"), dict) and said.get("type") == "queued_command":
        content = said.get("prompt")  # said while a turn was running
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return None
    parts = [part for block in content if isinstance(block, dict) and (part := _part(block))]
    if not parts:
        return None
    return "\n".join(part["text"] for part in parts) if all(part["type"] == "text" for part in parts) else parts


def _part(block: dict[str, Any]) -> Message | None:
    if block.get("type") == "text" and isinstance(block.get("text"), str) and block["text"]:
        return None if block["text"].startswith(_INTERRUPTED) else {"type": "text", "text": block["text"]}
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, dict) and source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return None


def _answer_id(row: Row) -> str | None:
    """The id of the model's message that this row is a part of."""
    message = row.get("message")
    if row.get("type") != "assistant" or not isinstance(message, dict) or message.get("model") == "<synthetic>":
        return None
    return str(message.get("id"))


def _blocks(row: Row, kind: str) -> list[dict[str, Any]]:
    message = row.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict) and block.get("type") == kind]
