"""The model messages of the main agent and its sub-agents as they stream: deltas, whole blocks, repeated calls.

``calls`` in the codec's state holds the last message of each agent under its parent's id ("" for the main agent):
``no`` is its number, ``id`` the provider's, ``block`` the block that streams, ``live`` the blocks that were shown,
``whole`` how many came whole, ``done`` whether it is over, ``void`` whether the program gave it up to repeat the call.
"""

from __future__ import annotations

from typing import Any

from ...types.events import Event, Reasoning, Retract, Text
from ...types.runtime import CodecEvent, CodecState, In, StepStarted

_DELTAS: dict[str, tuple[str, type[Text] | type[Reasoning]]] = {
    "text_delta": ("text", Text),
    "thinking_delta": ("thinking", Reasoning),
}
_WHOLE: dict[str, type[Text] | type[Reasoning]] = {"text": Text, "thinking": Reasoning}


def event(
    state: CodecState, parent: str | None, e: dict[str, Any], abandoned: Any = None
) -> tuple[CodecState, list[CodecEvent]]:
    """One event of the provider's stream. ``abandoned`` comes with the end of a message that was cut: its blocks from
    ``from_block_index`` on are in no history."""
    kind = e.get("type")
    if kind == "message_start":
        message = e.get("message")
        id = message.get("id") if isinstance(message, dict) else None
        return _begin(state, parent, str(id), done=False)
    call = state["calls"].get(parent or "")
    if call is None:
        return state, []  # the tail of a message that an earlier turn cut off
    if kind == "message_stop" and isinstance(abandoned, dict):
        first = abandoned.get("from_block_index")
        return _void(state, parent, first if isinstance(first, int) else 0)
    if kind == "message_stop":
        return _put(state, parent, {**call, "done": True}), []
    index = e.get("index")
    if not isinstance(index, int):
        return state, []
    if kind == "content_block_start":
        return _put(state, parent, {**call, "block": index}), []
    delta = e.get("delta")
    if kind != "content_block_delta" or not isinstance(delta, dict) or str(delta.get("type")) not in _DELTAS:
        return state, []
    field, cls = _DELTAS[delta["type"]]
    piece = delta.get(field)
    if not isinstance(piece, str) or not piece:
        return state, []
    if index not in call["live"]:
        state = _put(state, parent, {**call, "live": [*call["live"], index]})
    return state, [_in(parent, cls(_item(call, index), piece))]


def whole(state: CodecState, parent: str | None, id: str, block: dict[str, Any]) -> tuple[CodecState, list[CodecEvent]]:
    """A whole block of a message. What was streamed is not said twice; what was not is said now."""
    call = state["calls"].get(parent or "")
    events: list[CodecEvent] = []
    if call is None or call["id"] != id:  # not streamed at all: a call that was repeated without streaming
        state, events = _begin(state, parent, id, done=True)
        call = state["calls"][parent or ""]
    index = call["whole"] if call["done"] else call["block"]
    call = {**call, "whole": call["whole"] + 1}
    kind = block.get("type")
    text = block.get(kind) if isinstance(kind, str) and kind in _WHOLE else None
    if isinstance(text, str) and text and index not in call["live"]:
        call["live"] = [*call["live"], index]
        events.append(_in(parent, _WHOLE[str(kind)](_item(call, index), text)))
    return _put(state, parent, call), events


def retried(state: CodecState) -> tuple[CodecState, list[CodecEvent]]:
    """The program says that it repeats a call, not whose: with one message under way it is that one."""
    under_way = [parent for parent, call in state["calls"].items() if not call["done"]]
    return _void(state, under_way[0] or None) if len(under_way) == 1 else (state, [])


def failed(state: CodecState) -> tuple[CodecState, list[CodecEvent]]:
    """The main agent's last call failed for good: what it showed of it is in no history."""
    call = state["calls"].get("")
    return _void(state, None) if call and not call["done"] else (state, [])


def forget(state: CodecState, tool_call: str) -> CodecState:
    """The sub-agent of this call is over."""
    if tool_call not in state["calls"]:
        return state
    return {**state, "calls": {parent: call for parent, call in state["calls"].items() if parent != tool_call}}


def _begin(state: CodecState, parent: str | None, id: str, *, done: bool) -> tuple[CodecState, list[CodecEvent]]:
    before = state["calls"].get(parent or "")
    repeated = before is not None and (before["void"] or not before["done"])
    events: list[CodecEvent] = []
    if repeated:
        state, events = _void(state, parent)
    elif parent is None:
        events = [StepStarted()]
    no = state["begun"] + 1
    call = {"no": no, "id": id, "block": 0, "live": [], "whole": 0, "done": done, "void": False}
    return _put({**state, "begun": no}, parent, call), events


def _void(state: CodecState, parent: str | None, first: int = 0) -> tuple[CodecState, list[CodecEvent]]:
    call = state["calls"][parent or ""]
    if call["void"]:
        return state, []
    events = [_in(parent, Retract(_item(call, index))) for index in call["live"] if index >= first]
    return _put(state, parent, {**call, "done": True, "void": True}), events


def _put(state: CodecState, parent: str | None, call: dict[str, Any]) -> CodecState:
    return {**state, "calls": {**state["calls"], parent or "": call}}


def _item(call: dict[str, Any], index: int) -> str:
    """Numbered by us: providers give ids twice, or none."""
    return f"{call['no']}:{index}"


def _in(parent: str | None, event: Event) -> CodecEvent:
    return event if parent is None else In(parent, event)
