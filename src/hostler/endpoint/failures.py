"""Failed model calls: which are worth another attempt, and what the program and the journal are told."""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hostler.types.result import ErrorInfo

from . import bodies
from .routes import Route, WireName
from .scrub import scrubbed
from .wires import read_error, write_error

AGAIN = frozenset({408, 409, 425, 429})
_BACKOFF = (0.4, 0.8, 1.6, 3.2)
_HOPELESS = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_MESSAGE_LIMIT = 2000
_BODY_LIMIT = 256 * 1024


@dataclass(frozen=True, slots=True)
class Failure:
    """A model call that was not answered. ``status`` is the provider's, None when there was none; ``body`` its error
    answer when that may go to the program as it is; ``wait`` what it asked for before another attempt."""

    code: str
    message: str
    status: int | None = None
    body: bytes | None = None
    again: bool = False
    wait: float = 0.0

    @property
    def info(self) -> ErrorInfo:
        retryable = self.code in ("model_rate_limited", "model_unavailable", "model_cut", "model_silent")
        return ErrorInfo(self.code, self.message, retryable)


def code_for(status: int) -> str:
    """The error code of a provider's HTTP status."""
    if status in (401, 403):
        return "model_auth"
    if status == 429:
        return "model_rate_limited"
    if status >= 500 or status in AGAIN:
        return "model_unavailable"
    return "model_refused"


def status_for(kind: str) -> int:
    """The HTTP status that a provider would have given for an error that it told inside a stream."""
    if "overloaded" in kind:
        return 529
    if "rate_limit" in kind or "quota" in kind:
        return 429
    if "invalid" in kind or "context_length" in kind or "not_found" in kind or "too_large" in kind:
        return 400
    return 500


def refusal(host: str, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """The failure that an HTTP error answer is. ``body`` is free of secrets already."""
    kind, said = read_error(body)
    if 300 <= status < 400:
        said = said or "a redirect, which is not followed: check the model address (api_base)"
    code = code_for(status)
    if status == 400 and said.startswith("No connected db"):
        code, said = (
            "model_auth",
            "the gateway does not know the key (a LiteLLM without a database takes its master key only)",
        )
    again = code in ("model_rate_limited", "model_unavailable")
    again = again and headers.get("x-should-retry") != "false" and kind not in _HOPELESS
    message = f"{host} answered HTTP {status}" + (f": {said}" if said else "")
    passes = code == "model_refused" and _is_object(body)
    return Failure(
        code, message[:_MESSAGE_LIMIT], status, body if passes else None, again, retry_after(headers, time.time())
    )


def told_in_stream(route: Route, error: tuple[str, str]) -> Failure:
    """The failure that an error event in a stream is."""
    kind, said = error
    status = status_for(kind)
    code = code_for(status)
    message = scrubbed(f"{route.host} ended its answer with an error ({kind or 'no type'}): {said}", route.key)
    again = code in ("model_rate_limited", "model_unavailable") and kind not in _HOPELESS
    return Failure(code, message[:_MESSAGE_LIMIT], None, None, again)


def retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds that the provider asks to wait, from ``retry-after`` (seconds or a date) or ``retry-after-ms``."""
    try:
        if ms := headers.get("retry-after-ms"):
            return max(0.0, float(ms) / 1000)
        given = headers.get("retry-after", "").strip()
        if not given:
            return 0.0
        if given.replace(".", "", 1).isdigit():
            return float(given)
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - now)
    except (ValueError, OverflowError, TypeError):
        return 0.0


def pause_before(attempt: int, failure: Failure, spent: float, patience: float) -> float | None:
    """Seconds until the attempt after ``attempt`` (counted from 1), or None when it is time to give up. All attempts
    together begin within ``patience`` seconds."""
    if not failure.again:
        return None
    pause = max(_BACKOFF[min(attempt, len(_BACKOFF)) - 1], failure.wait)
    return pause if spent + pause <= patience else None


def after_attempts(failure: Failure, attempts: int, spent: float) -> Failure:
    """The final failure, which says how hard was tried."""
    if attempts == 1:
        return failure
    message = f"{failure.message} ({attempts} attempts in {spent:.1f} s)"
    return Failure(failure.code, message, failure.status, failure.body)


def final_answer(wire: WireName, failure: Failure) -> tuple[int, bytes]:
    """Status and body that end the call for the program: none of the programs repeats it.

    On the Anthropic wire clients heed ``x-should-retry: false``, so they get the true status. OpenAI clients repeat
    nearly every status but 400.
    """
    if wire == "anthropic":
        status = failure.status or {"model_silent": 504, "model_unavailable": 503}.get(failure.code, 502)
        if status < 400:
            status = 502
        if failure.body is not None:
            return status, failure.body
        return status, write_error(wire, _anthropic_kind(status), failure.message)
    if (
        failure.body is not None
        and failure.status == 400
        and not _repeated(wire, failure.body.decode(errors="replace"))
    ):
        return 400, failure.body
    if _repeated(wire, f"{failure.code} {failure.message}"):
        return 400, write_error(wire, "invalid_request_error", _NEUTRAL)
    return 400, write_error(wire, failure.code, failure.message)


_NEUTRAL = "The model gave no answer. The application was told why."
# Chat clients read the text of an error, whatever its status: what looks passing to them they repeat for minutes.
_PASSING = re.compile(
    r"429|500|502|503|504|52[04]|rate|too many|quickly|overload|unavailable|internal|server.error|provider|terminated|"
    r"failed|network|upstream|connection|socket|timed?.?out|econn|try|retry|exhausted|capacity|busy|demand|interrupted|"
    r"disconnect|ended (without|before)|reset|enotfound|eai_again|getaddrinfo|http.?2|cut short|cancell?ed",
    re.IGNORECASE,
)
_LENGTH = re.compile(r"context|token|too long", re.IGNORECASE)  # they shorten their history and go on


def _repeated(wire: WireName, text: str) -> bool:
    return wire == "chat" and bool(_PASSING.search(text)) and not _LENGTH.search(text)


def _anthropic_kind(status: int) -> str:
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
    return kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")


def _is_object(body: bytes) -> bool:
    return len(body) <= _BODY_LIMIT and isinstance(bodies.loads(body), dict)
