"""The transcript of a session on disk: a file of OpenAI-format messages, one a line, that only grows."""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

from hostler.workers.acp import Refused, unknown

SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ROLES = ("user", "assistant", "tool")
INTERRUPTED = "interrupted"

Message = dict[str, Any]


class Transcript:
    """One session's messages, in memory and on disk."""

    def __init__(self, path: Path, messages: list[Message]) -> None:
        self._path = path
        self.messages = messages

    @property
    def session(self) -> str:
        return self._path.stem

    @property
    def place(self) -> str:
        """The name of the place that has been reached: a fork can be made from there."""
        return str(len(self.messages))

    def add(self, *messages: Message) -> None:
        """On disk first, whole lines at once."""
        lines = "".join(json.dumps(message, separators=(",", ":")) + "\n" for message in messages)
        with open(self._path, "ab", opener=_private) as file:
            file.write(lines.encode())
        self.messages += messages

    def close_calls(self) -> None:
        """Answer the tool calls that nobody answers any more: no model takes a transcript with open ones."""
        if open_calls := unanswered(self.messages):
            self.add(*({"role": "tool", "tool_call_id": id, "content": INTERRUPTED} for id in open_calls))


def begin(folder: str) -> Transcript:
    """A new session."""
    return _written(Path(folder, f"{uuid.uuid4()}.jsonl"), [])


def resume(folder: str, session: str, fork: dict[str, Any] | None) -> Transcript:
    """The session as it is on disk; as a ``fork`` it begins as another was at a place. Raises Refused."""
    if not SESSION_ID.fullmatch(session):
        raise unknown(session)
    path = Path(folder, f"{session}.jsonl")
    if fork is not None and not path.exists():
        origin = str(fork["from"])
        if not SESSION_ID.fullmatch(origin):
            raise unknown(origin)
        messages, place = _read(Path(folder, f"{origin}.jsonl")), str(fork["at"])
        if not place.isdecimal() or int(place) > len(messages):
            raise Refused(f"The session {origin} has no place {place!r}; it has {len(messages)} messages.")
        return _written(path, messages[: int(place)])
    transcript = Transcript(path, _read(path))
    transcript.close_calls()
    return transcript


def unanswered(messages: list[Message]) -> list[str]:
    """The tool calls of the last answer that have none."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    if last < 0:
        return []
    calls = [str(call.get("id")) for call in messages[last].get("tool_calls") or []]
    given = {m.get("tool_call_id") for m in messages[last + 1 :] if m["role"] == "tool"}
    return [id for id in calls if id not in given]


def _written(path: Path, messages: list[Message]) -> Transcript:
    os.makedirs(path.parent, mode=0o700, exist_ok=True)
    transcript = Transcript(path, [])
    transcript.add(*messages)
    return transcript


def _read(path: Path) -> list[Message]:
    """The messages; a line that is none is passed over."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        raise unknown(path.stem) from None
    found = []
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict) and message.get("role") in _ROLES:
            found.append(message)
    return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
