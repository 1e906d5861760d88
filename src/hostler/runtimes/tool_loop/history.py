"""The tool loop's transcript to OpenAI-format messages, which it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hostler.runtimes.lines import decode_line
from hostler.types.errors import CapabilityUnsupported

_ROLES = ("user", "assistant", "tool")


def history(files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
    """All messages of the session."""
    content = next((data for path, data in files.items() if path.endswith(f"/{native_id}.jsonl")), None)
    if content is None:
        raise CapabilityUnsupported(f"There is no transcript of the session {native_id}.")
    lines = (decode_line(line) for line in content.split(b"\n"))
    return [message for line in lines for message in line.objects if message.get("role") in _ROLES]
