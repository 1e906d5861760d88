"""Streams of real programs, recorded with `stdio_driver`: one JSON value a line, what went in and what came out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from hostler.types.events import ModelCall
from hostler.types.result import Usage
from hostler.types.runtime import (
    Answer,
    Codec,
    CodecEvent,
    Command,
    Frame,
    Interrupt,
    LaunchContext,
    Prompt,
    Send,
    Steer,
)

STREAMS = Path(__file__).parent / "streams"
LONGEST = 500  # characters that are kept of a text inside a recorded line
_COMMANDS = {cls.__name__: cls for cls in (Prompt, Interrupt, Steer, Answer)}

Item: TypeAlias = Frame | ModelCall | Command


def context(**rules: Any) -> LaunchContext:
    """A launch as the recordings had it; what the codec does not look at is made up."""
    given: dict[str, Any] = {
        "program": ("agent",),
        "home": "/home/agent",
        "tmp": "/home/agent-tmp",
        "workdir": "/session",
        "files_dir": "/files",
        "model": "scripted",
        "model_url": "http://model.invalid",
        "token": "a-token",
    }
    return LaunchContext(**{**given, **rules})


def save(name: str, items: list[Item], hide: Mapping[str, str], **rules: Any) -> None:
    """Write a recording. ``hide``: private texts and what stands for them."""
    lines = [json.dumps({"start": rules})]
    for item in items:
        if isinstance(item, ModelCall):
            lines.append(json.dumps({"call": item.status}))
        elif isinstance(item, Frame):
            lines.append(json.dumps({item.kind: _short(json.loads(item.data))}))
        else:
            lines.append(json.dumps({type(item).__name__: dataclasses.asdict(item)}))
    text = "\n".join(lines) + "\n"
    for private, public in hide.items():
        text = text.replace(private, public)
    (STREAMS / f"{name}.jsonl").write_text(text)


def load(name: str) -> tuple[LaunchContext, list[Item]]:
    first, *rest = [json.loads(line) for line in (STREAMS / f"{name}.jsonl").read_text().splitlines()]
    items: list[Item] = []
    for no, line in enumerate(rest, 1):
        ((kind, value),) = line.items()
        if kind == "call":
            items.append(ModelCall("scripted", Usage(calls=1), None, value))
        elif kind in _COMMANDS:
            images = {"images": tuple(map(tuple, value["images"]))} if kind == "Prompt" else {}
            items.append(_COMMANDS[kind](**{**value, **images}))
        else:
            items.append(Frame(no, kind, json.dumps(value).encode()))
    return context(**first["start"]), items


def replay(codec: Codec, name: str, *, round_trip: bool = False) -> tuple[list[CodecEvent], list[Send], dict[str, Any]]:
    """Fold a recording. ``round_trip``: the state goes through JSON after every item, as if the host died each time."""
    ctx, items = load(name)
    folded = codec.start(ctx)
    events, sends = list(folded.events), list(folded.sends)
    for item in items:
        state = folded.state
        before = json.dumps(state)
        if round_trip:
            state = json.loads(before)
        folded = codec.encode(state, item) if isinstance(item, tuple(_COMMANDS.values())) else codec.fold(state, item)
        assert json.dumps(state) == before, "the codec changed the state that it was given"
        events += folded.events
        sends += folded.sends
    return events, sends, folded.state


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[:LONGEST] + "…"
    if isinstance(value, list):
        return [_short(v) for v in value][:12]
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return value
