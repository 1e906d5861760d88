"""How a turn ends: which of the program's results is the turn's, and what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ...types.events import Notice
from ...types.result import ErrorInfo
from ...types.runtime import CodecEvent, CodecState, Ended, Unfit
from ..failures import http_failure
from ..schemas import WRAPPED
from . import stream


def result(state: CodecState, m: dict[str, Any]) -> tuple[CodecState, list[CodecEvent]]:
    """A result covers the messages whose uuids it names. The turn is over when its prompt and all that was said to it
    since are covered: what came too late for one model call is answered in a result of its own."""
    if state["turn"] is None:
        if not state["known"] and m.get("is_error"):
            return state, [Unfit(f"Claude Code does not go on with conversation {state['id']}: {_message(m)}")]
        return state, [Notice("late_result", f"Claude Code ended a turn once more: {str(m.get('subtype'))[:100]}.")]
    if not state["known"] and state["resumed"] and m.get("is_error"):
        return _over(state), [Unfit(f"Claude Code does not go on with conversation {state['id']}: {_message(m)}")]
    ended = _ended(m)
    if state.get("wrapped") and isinstance(ended.output, dict) and set(ended.output) == {WRAPPED}:
        inner = ended.output[WRAPPED]
        ended = replace(ended, output=inner, text=json.dumps(inner, ensure_ascii=False))
    if ended.stop_reason == "interrupted":
        return _over(state), [ended]
    covered = m.get("user_message_uuids")
    left = [id for id in state["open"] if id not in covered] if isinstance(covered, list) and covered else []
    if len(left) == len(state["open"]):
        return state, [Notice("late_result", "Claude Code ended a turn that is over already.")]
    if left and ended.stop_reason == "done":
        return {**state, "open": left, "said": ended.text}, []
    events: list[CodecEvent] = []
    if ended.stop_reason == "error":
        state, events = stream.failed(state)
    return _over(state), [*events, replace(ended, at=state["at"]) if ended.stop_reason == "done" else ended]


def lifecycle(state: CodecState, message: str, what: Any) -> tuple[CodecState, list[CodecEvent]]:
    """A message that ends without a result of its own: taken out of the queue by an interrupt, or ``completed`` at once
    because the conversation has it already."""
    if state["turn"] is None or message not in state["open"] or what not in ("cancelled", "completed"):
        return state, []
    if left := [id for id in state["open"] if id != message]:
        return {**state, "open": left}, []
    if what == "cancelled":
        return _over(state), [Ended("interrupted", state["said"])]
    if state["said"] is not None:
        return _over(state), [Ended("done", state["said"], at=state["at"])]
    error = ErrorInfo(
        "prompt_repeated", "Claude Code has this prompt in its conversation and does not answer it twice."
    )
    return _over(state), [Ended("error", error=error)]


def _over(state: CodecState) -> CodecState:
    asked: dict[str, Any] | None = None if state.get("questions") is None else {}
    return {**state, "turn": None, "open": [], "said": None, "calls": {}, "asks": [], "questions": asked}


def _ended(m: dict[str, Any]) -> Ended:
    """Failure is ``is_error``; the subtype is "success" for API errors too."""
    why, status = str(m.get("terminal_reason")), m.get("api_error_status")
    if not m.get("is_error"):
        text = m.get("result")
        return Ended("done", text if isinstance(text, str) else None, m.get("structured_output"))
    if m.get("subtype") == "error_max_turns" or why == "max_turns":
        return Ended("max_turns")
    if why.startswith("aborted"):
        return Ended("interrupted")
    if isinstance(status, int):
        return Ended("error", error=http_failure(status, _message(m)))
    match why, m.get("subtype"):
        case "api_error", _:
            error = http_failure(None, _message(m))
        case "prompt_too_long" | "blocking_limit", _:
            error = ErrorInfo("context_too_long", _message(m))
        case _, "error_max_structured_output_retries":
            error = ErrorInfo("output_invalid", _message(m))
        case _:
            error = ErrorInfo("program_error", _message(m))
    return Ended("error", error=error)


def _message(m: dict[str, Any]) -> str:
    errors = m.get("errors")
    said = "; ".join(str(e) for e in errors) if isinstance(errors, list) else ""
    return (str(m.get("result") or "") or said or "it says no reason")[:2000]
