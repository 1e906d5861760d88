"""What went wrong with a model, in the codes that the endpoint uses too."""

from __future__ import annotations

from typing import Any

from hostler.types.result import ErrorInfo


def http_failure(status: Any, message: str) -> ErrorInfo:
    """The ErrorInfo of a model call that was answered with ``status`` (no number: not answered, or in the middle)."""
    if status in (401, 403):
        return ErrorInfo("model_auth", message)
    if status == 429:
        return ErrorInfo("model_rate_limited", message, retryable=True)
    if isinstance(status, int) and 400 <= status < 500 and status != 408:
        return ErrorInfo("model_refused", message)
    return ErrorInfo("model_unavailable", message, retryable=True)
