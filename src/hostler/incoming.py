"""What a call of a harness says, made ready for its session: a prompt, the caller's transcript, or typed input."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from . import messages as transcripts
from . import portal
from .attaching import Fetch, attach, refuse_unfetched
from .inputs import InputContext, InputType
from .messages import Transcript
from .rules import check_prompt
from .session import SessionCore
from .types.errors import HarnessError
from .types.options import Options

Context: TypeAlias = Literal["auto", "replay", "native"]
_POLICIES: tuple[Context, ...] = get_args(Context)
_LARGEST = 32 << 20  # characters of a transcript, files aside


@dataclass(frozen=True, slots=True)
class Incoming:
    """One call, checked as far as that goes without its session. ``call`` tells it from another one."""

    call: str
    context: transcripts.Policy
    prompt: str | None = None
    transcript: Transcript | None = None
    convert: Callable[[Any, InputContext], Any] | None = None
    input: Any = None
    instructions: str | None = None
    notices: tuple[tuple[str, str], ...] = ()
    rules: Mapping[str, Any] = field(default_factory=dict)


def checked(given: Mapping[str, Any], input_types: Mapping[str, InputType], fetch: Fetch | None) -> Incoming:
    """Raises TypeError or ValueError that names what is wrong, CapabilityUnsupported for what cannot be held."""
    ways = [name for name in ("messages", "type", "prompt") if given.get(name) is not None]
    if len(ways) != 1:
        both = f"not {' and '.join(f'{name}=' for name in ways)}" if ways else "and none was given"
        raise ValueError(f"Give either messages=, or type= with input=, or prompt=, {both}.")
    if ways != ["type"] and given.get("input") is not None:
        raise ValueError("input= goes with type=, the name of an input type of the harness.")
    context: Context = given.get("context") or "auto"
    if context not in _POLICIES:
        raise ValueError(f"context must be {', '.join(map(repr, _POLICIES))}, not {context!r}.")
    if ways == ["prompt"]:
        if context == "replay":
            raise ValueError(
                "context='replay' goes with messages=: a prompt holds no conversation that could be replayed."
            )
        check_prompt(given["prompt"])
        return Incoming("", "native", prompt=given["prompt"])
    if ways == ["messages"]:
        transcript = transcripts.read(given["messages"])
        refuse_unfetched(transcript.messages, fetch)
        said = [transcript.instructions, [_known(m) for m in transcript.messages]]
        return Incoming(_digest(["messages", said, context]), context, transcript=transcript)
    return _typed(given, input_types, context)


def _typed(given: Mapping[str, Any], input_types: Mapping[str, InputType], context: Context) -> Incoming:
    name, value = given["type"], given.get("input")
    if not isinstance(name, str):
        raise TypeError(f"type must be the name of an input type, not {type(name).__name__}.")
    call = _digest(["type", name, value, context])
    # What a typed input says is new, whatever was said before it.
    policy: transcripts.Policy = "append" if context == "auto" else context
    kind = input_types.get(name)
    if kind is None:
        try:
            text = json.dumps(value, ensure_ascii=False, indent=1)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"The input of the unknown type {name!r} is no JSON value: {error}.") from None
        transcript = transcripts.read([{"role": "user", "content": f"Input of type {json.dumps(name)}:\n\n{text}"}])
        known = ", ".join(map(repr, input_types)) or "none"
        notice = f"This harness has no input type {name!r} (it has {known}); the agent was given the input as it is."
        return Incoming(call, policy, transcript=transcript, notices=(("unknown_input_type", notice),))
    rules = {} if kind.output is None else {"output": kind.output}
    value = kind.checked(name, value)
    return Incoming(call, policy, convert=kind.to_messages, input=value, instructions=kind.instructions, rules=rules)


async def ready(
    incoming: Incoming,
    core: SessionCore,
    *,
    fetch: Fetch | None,
    extra_body: Any,
    restage: bool,
    overrides: Mapping[str, Any],
    known: bool,
    loop: asyncio.AbstractEventLoop | None,
) -> dict[str, Any]:
    """The arguments of `SessionCore.begin` that say it: ``prompt``, ``transcript`` and the rules of the call.

    ``known``: the same call was accepted before, so nothing is made ready again, nor steered or interrupted."""
    overrides = {**incoming.rules, **overrides}
    if known:
        overrides["on_busy"] = "queue"
    if incoming.prompt is not None:
        return {"prompt": incoming.prompt, **overrides}
    rules = {name: value for name, value in overrides.items() if name in Options.RULES}
    call = _digest([incoming.call, extra_body, rules])
    if known:
        return {"prompt": "", "transcript": {"call": call}, **overrides}
    body = extra_body if extra_body is not None else core.live.rules.get("extra_body")
    transcript = incoming.transcript or await _converted(incoming, core, body, loop)
    refuse_unfetched(transcript.messages, fetch)
    messages = await attach(core, transcript.messages, fetch=fetch, restage=restage, loop=loop)
    stored = transcripts.to_json(messages)
    if (size := len(json.dumps(stored))) > _LARGEST:
        raise ValueError(f"messages has {size:,} characters without its files; at most {_LARGEST:,} are taken.")
    if added := [text for text in (incoming.instructions, transcript.instructions) if text]:
        own = overrides.get("instructions", core.live.rules["instructions"])
        overrides["instructions"] = "\n\n".join([*([own] if own else []), *added])
    last = messages[-1]
    said = {
        "call": call,
        "messages": stored,
        "context": incoming.context,
        "notices": [list(notice) for notice in incoming.notices],
    }
    prompt = transcripts.told([last], seed=False).text if last.role == "user" else last.text
    return {"prompt": prompt, "transcript": said, **overrides}


async def _converted(
    incoming: Incoming, core: SessionCore, extra_body: Any, loop: asyncio.AbstractEventLoop | None
) -> Transcript:
    from .faces import Files, Session

    assert incoming.convert is not None
    context = InputContext(Session(core), Files(core.files), extra_body)
    limit = core.live.host.settings.tool_timeout
    try:
        async with asyncio.timeout(limit):
            messages = await portal.call_back(incoming.convert, incoming.input, context, loop=loop)
    except TimeoutError:
        raise HarnessError(
            f"to_messages gave nothing for session {core.key!r} within {limit:g} s (HOSTLER_TOOL_TIMEOUT); no turn was begun."
        ) from None
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return transcripts.read(messages)


def _known(message: transcripts.Message) -> Any:
    """What makes a message the same one again: a client may send more about it the next time."""
    parts = [part.digest if isinstance(part, transcripts.File) else part for part in message.parts]
    return [
        message.role,
        message.id,
        [[p.name, p.input, p.output] if isinstance(p, transcripts.ToolUse) else p for p in parts],
    ]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()
