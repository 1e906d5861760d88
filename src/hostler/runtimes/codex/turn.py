"""The open turn of a Codex thread: begun, spoken to, stopped, ended."""

from __future__ import annotations

from hostler.runtimes.jsonrpc import Step
from hostler.types.events import ToolResult
from hostler.types.runtime import Ended


def begin_if_ready(step: Step) -> None:
    turn = step.state["turn"]
    if not turn or turn["input"] is None or not step.state["thread"] or step.state["starting"]:
        return
    params = {"threadId": step.state["thread"], "input": turn["input"]}
    if turn["schema"] is not None:
        params["outputSchema"] = turn["schema"]
    turn["input"] = turn["schema"] = None
    step.request(turn["id"], "turn/start", params, note=turn["id"])


def stop(step: Step) -> None:
    turn, thread = step.state["turn"], step.state["thread"]
    step.request(f"interrupt:{turn['id']}", "turn/interrupt", {"threadId": thread, "turnId": turn["native"]})
    # The turn ends without this too, but its commands would run on.
    step.request(f"clean:{turn['id']}", "thread/backgroundTerminals/clean", {"threadId": thread})


def send_steer(step: Step, key: str, text: str) -> None:
    params = {
        "threadId": step.state["thread"],
        "expectedTurnId": step.state["turn"]["native"],
        "input": [{"type": "text", "text": text}],
    }
    step.request(key, "turn/steer", params)


def named(step: Step, native: str) -> None:
    """The open turn runs, under this id: what waited for it can be said now. Said right after the answer to turn/start,
    before Codex tells that the turn runs, an interrupt would have no effect."""
    turn = step.state["turn"]
    if turn["native"]:
        return
    turn["native"] = native
    if turn["interrupt"]:
        stop(step)
    for key, text in turn["steer"]:
        send_steer(step, key, text)
    turn["steer"] = []


def end(step: Step, ended: Ended) -> None:
    state = step.state
    step.emit(*(ToolResult(call, "interrupted", is_error=True) for call in state["calls"]), ended)
    state.update(turn=None, items={}, calls=[], waiting=[], patches={}, agents={})
