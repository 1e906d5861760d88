"""What is asked of an agent: a session, a prompt, to hear more, to stop."""

from __future__ import annotations

import json
from typing import Any

from hostler.runtimes.acp.dialect import Dialect
from hostler.runtimes.jsonrpc import Step
from hostler.types.events import Notice, Retract
from hostler.types.runtime import Ended, Prompt, Steer, StepStarted, Unfit

GO_ON = "Your answer broke off. Go on."
_KEPT = 16_384  # characters of a prompt that may be repeated; the state is stored with every frame
_REPEATS = 5  # the endpoint ends a row of cuts before
CANCELLED = {"outcome": {"outcome": "cancelled"}}


def join(step: Step, method: str, key: str = "start") -> None:
    setup, loaded = step.state["setup"], step.state["loaded"]
    step.request(key, method, {**setup, "sessionId": loaded} if loaded else setup)


def _text(text: str, dialect: Dialect) -> list[dict[str, Any]]:
    plain: dict[str, Any] = {"type": "text", "text": text}
    if word := dialect.before(text):
        return [{"type": "text", "text": word}, plain]
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
        "acted": False,  # it has called tools in this turn
        "broken": False,  # its last model call was cut
        "kept": content if dialect.cut is not None and len(json.dumps(content)) < _KEPT else None,
        "repeats": 0,
    }
    if prompt.fresh:
        step.state.update(session=None, ready=False, resume=None, loaded=None)
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
    for ask, (number, options, *_) in step.state["asks"].items():
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


def repeat(step: Step) -> bool:
    """Say the prompt of a turn whose model call was cut once more; False where that cannot be done."""
    turn = step.state["turn"]
    if turn["kept"] is None or turn["interrupt"] or turn["repeats"] >= _REPEATS:
        return False
    step.emit(*(Retract(item) for item in step.state["said"]))
    step.state["said"] = []
    turn.update(broken=False, over=False, attempt=turn["attempt"] + 1, repeats=turn["repeats"] + 1)
    turn["prompts"] = [*turn["prompts"], turn["main"]]
    # What tools have done stays in its history; without that nothing of the prompt does.
    content = [{"type": "text", "text": GO_ON}] if turn["acted"] else turn["kept"]
    params = {"sessionId": step.state["session"], "prompt": content}
    step.request(f"{turn['id']}:again{turn['repeats']}", "session/prompt", params, note=turn["main"])
    return True


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
