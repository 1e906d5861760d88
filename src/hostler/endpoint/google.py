"""Google's generateContent wire: the model is named in the path, and an answer has no last event. Pure translation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

COUNTS = "countTokens"
STREAMS = "streamGenerateContent"
WORDS = (b'"finishReason"', b'"usageMetadata"', b'"error"', b'"promptFeedback"')

_PATH = re.compile(
    r"/v1(?:beta)?/models/(?P<model>[^:]+):(?P<method>generateContent|streamGenerateContent|countTokens)"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a path asks for."""

    model: str
    method: str


def asked(path: str) -> Asked | None:
    """The model and the method that a path names; None for another wire's path."""
    found = _PATH.fullmatch(path)
    return Asked(found["model"], found["method"]) if found else None


def path_of(model: str, method: str) -> str:
    """The path below the version's, with its query."""
    return f"/models/{quote(model, safe='/')}:{method}" + ("?alt=sse" if method == STREAMS else "")


def counts(usage: Any) -> tuple[Any, Any, Any]:
    """Input (cached included), output (thoughts included) and cached tokens; what is no number is None."""
    told = usage if isinstance(usage, dict) else {}
    output = [told[name] for name in ("candidatesTokenCount", "thoughtsTokenCount") if _is_count(told.get(name))]
    return told.get("promptTokenCount"), sum(output) if output else None, told.get("cachedContentTokenCount")


def has_stopped(event: Mapping[str, Any]) -> bool:
    """Whether the model said why it stopped, or why it does not begin."""
    candidates = event.get("candidates")
    reasons = [c.get("finishReason") for c in candidates if isinstance(c, dict)] if isinstance(candidates, list) else []
    feedback = event.get("promptFeedback")
    return any(reasons) or (isinstance(feedback, dict) and bool(feedback.get("blockReason")))


def error_of(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """(kind, message) of an error told in the stream."""
    error = event.get("error")
    if not isinstance(error, dict):
        return None
    kind = str(error.get("status") or error.get("code") or "").lower()
    return {"resource_exhausted": "rate_limit_error"}.get(kind, kind), str(error.get("message") or "")


def told_once(body: dict[str, Any]) -> dict[str, Any]:
    """The request with one result for each call: Gemini CLI tells the results of before a resume twice."""
    contents = body.get("contents")
    return {**body, "contents": [_told_once(each) for each in contents]} if isinstance(contents, list) else body


def _told_once(content: Any) -> Any:
    parts = content.get("parts") if isinstance(content, dict) else None
    if not isinstance(parts, list):
        return content
    seen: set[str] = set()
    kept = []
    for part in parts:
        told = part.get("functionResponse") if isinstance(part, dict) else None
        id = told.get("id") if isinstance(told, dict) else None
        if isinstance(id, str):
            if id in seen:
                continue
            seen.add(id)
        kept.append(part)
    return {**content, "parts": kept}


def error_body(kind: str, message: str) -> bytes:
    """An error answer as the wire's clients read it."""
    return json.dumps({"error": {"code": 400, "message": message, "status": kind}}).encode()


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
