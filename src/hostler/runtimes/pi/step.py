"""One fold of Pi's codec in the making, and the open turn: begun, ended."""

from __future__ import annotations

from typing import Any

from hostler.runtimes.lines import encode_line
from hostler.types.events import ToolResult
from hostler.types.runtime import CodecEvent, CodecState, Ended, Folded, Send, Unfit


class Step:
    """Collects what one frame or command gives, over a private copy of the state."""

    def __init__(self, state: CodecState) -> None:
        self.state: CodecState = {k: _copy(v) for k, v in state.items()}
        self._events: list[CodecEvent] = []
        self._sends: list[Send] = []

    def emit(self, *events: CodecEvent) -> None:
        self._events += events

    def send(self, key: str, message: dict[str, Any]) -> None:
        self._sends.append(Send(key, encode_line(message)))

    def done(self) -> Folded:
        return Folded(self.state, tuple(self._events), tuple(self._sends))


def begin_if_ready(step: Step) -> None:
    """Say the prompt once the program is in its conversation and its tools are known."""
    state, turn = step.state, step.state["turn"]
    if turn and turn["input"] is not None and state["id"] is not None and not state["starting"]:
        message, turn["input"] = turn["input"], None
        step.send(turn["id"], message)


def end(step: Step, ended: Ended) -> None:
    for call in step.state["tools"]:
        step.emit(ToolResult(call, "interrupted", is_error=True))
    step.state.update(turn=None, tools=[], asks=[])
    step.emit(ended)


def unfit(step: Step, message: str) -> None:
    step.state["unfit"] = message
    step.emit(Unfit(message))


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: list(v) if isinstance(v, list) else v for k, v in value.items()}
    return list(value) if isinstance(value, list) else value
