"""What is asked of an agent: a session, a prompt, to hear more, to stop."""

from __future__ import annotations

from typing import Any

from hostler.runtimes.acp.dialect import Dialect
from hostler.runtimes.jsonrpc import Step
from hostler.types.events import Notice
from hostler.types.runtime import Ended, Prompt, Steer, StepStarted, Unfit

CANCELLED = {"outcome": {"outcome": "cancelled"}}


def join(step: Step, method: str, key: str = "start") -> None:
    setup, resume = step.state["setup"], step.state["resume"]
    step.request(key, method, {**setup, "sessionId": resume} if resume else setup)


def _text(text: str, dialect: Dialect) -> list[dict[str, Any]]:
    plain: dict[str, Any] = {"type": "text", "text": text}
    if dialect.commands and text.lstrip().startswith("/"):
        return [{"type": "text", "text": ".", "annotations": {"audience": ["user"]}}, plain]
    return [plain]


def prompt(step: Step, prompt: Prompt, dialect: Dialect) -> None:
    if step.state["unfit"]:
        step.emit(Unfit(step.state["unfit"]))
        return
    content = _text(prompt.text, dialect)
    content += [{"type": "image", "mimeType": media, "data": data} for media, data in prompt.images]
    step.state["turn"] = {
        "id": prompt.turn,
        "input": content,
        "main": prompt.turn,
        "prompts": [prompt.turn],
        "denied": [],
        "steer": [],
        "ended": None,
        "interrupt": False,
        "message": None,  # the id of the message that is being written
        "attempt": 0,  # grows with each model call that was cut, so that its pieces can be taken back
        "block": 0,  # grows where the agent does not name its messages
        "over": False,  # the model call is over
        "worked": False,  # it called tools
    }
    if prompt.fresh:
        step.state.update(session=None, ready=False, resume=None)
        join(step, "session/new", f"fresh:{prompt.turn}")
    else:
        begin_if_ready(step)


def begin_if_ready(step: Step) -> None:
    """The prompt that waits for the session to be there."""
    turn = step.state["turn"]
    if not turn or turn["input"] is None or not step.state["ready"] or step.state.get("settles"):
        return
    content, turn["input"] = turn["input"], None
    step.request(turn["id"], "session/prompt", {"sessionId": step.state["session"], "prompt": content}, note=turn["id"])
    step.emit(StepStarted())
    for key, said in turn["steer"]:
        _send_steer(step, key, said)
    turn["steer"] = []


def interrupt(step: Step) -> None:
    turn = step.state["turn"]
    if not turn or turn["interrupt"]:
        return
    if turn["input"] is not None:
        step.state["turn"] = None
        step.emit(Ended("interrupted"))
        return
    turn["interrupt"] = True
    for ask, (number, options, _) in step.state["asks"].items():
        step.reply(f"answer:{ask}", number, {"action": "cancel"} if "schema" in options else CANCELLED)
    step.state["asks"] = {}
    step.notify(f"interrupt:{turn['id']}", "session/cancel", {"sessionId": step.state["session"]})


def steer(step: Step, command: Steer, dialect: Dialect) -> None:
    turn = step.state["turn"]
    if not turn or not dialect.steers or turn["interrupt"]:
        why = "The turn is over" if dialect.steers else "This agent takes nothing during a turn"
        step.emit(Notice("steer_refused", f"{why}; what was said to it was not delivered."))
    elif turn["input"] is not None:
        turn["steer"] = [*turn["steer"], [command.key, _text(command.text, dialect)]]
    else:
        _send_steer(step, command.key, _text(command.text, dialect))


def _send_steer(step: Step, key: str, content: list[dict[str, Any]]) -> None:
    turn = step.state["turn"]
    turn["prompts"] = [*turn["prompts"], key]
    params = {"sessionId": step.state["session"], "prompt": content}
    step.request(key, "session/prompt", params, note=key)


def go_on(step: Step) -> None:
    """The agent took a denial for the end of its turn: it is told to go on."""
    turn = step.state["turn"]
    said = f"[Not allowed: {'; '.join(turn['denied'])}. Go on without it.]"
    key = f"{turn['main']}:denied"
    step.state.update(tools={}, said=[], asks={})
    turn.update(
        main=key, prompts=[key], denied=[], ended=None, over=False, worked=False, message=None, block=turn["block"] + 1
    )
    params = {"sessionId": step.state["session"], "prompt": [{"type": "text", "text": said}]}
    step.request(key, "session/prompt", params, note=key)
    step.emit(StepStarted())
