"""The rule: what a conversation holds and what its caller says it holds, to append, fork or seed. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .values import Message

Policy: TypeAlias = Literal["auto", "replay", "native", "append"]
Entry: TypeAlias = list[Any]
"""How a message is recognised, JSON: ``["user", hash]``, ``["given", hash, ...]`` of an assistant message that the caller
brought, ``["said", [hashes], turn, hash]`` of what a turn answered."""
_MARKS = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Seen:
    """What one turn added to the conversation: its entries, and the program's name for the place behind it. Without
    ``sure`` nobody knows what the conversation holds from here on."""

    entries: Sequence[Entry]
    at: str | None = None
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Append:
    """The conversation goes on; messages from number ``new`` on are said to it."""

    new: int


@dataclass(frozen=True, slots=True)
class Fork:
    """A new conversation that holds the first ``turns`` turns of this one, up to the place ``at``; messages from number
    ``new`` on are said to it."""

    turns: int
    at: str
    new: int


@dataclass(frozen=True, slots=True)
class Seed:
    """A new conversation that is told all messages."""

    new: int = 0


Plan: TypeAlias = Append | Fork | Seed


def plan(seen: Sequence[Seen], given: Sequence[Entry], policy: Policy, *, fork: bool) -> Plan:
    """How the conversation comes to hold what ``given`` (the keys of the caller's messages) says.

    ``auto``: what the conversation holds is not said again. It goes on where it is the beginning of ``given``; else, if
    the program can ``fork``, the longest run of its turns that is; else a new one is seeded. On doubt it is seeded.
    ``replay`` always seeds, ``native`` says the last message only, ``append`` all of them.
    """
    if policy == "replay":
        return Seed()
    if policy == "native":
        return Append(len(given) - 1)
    if policy == "append":
        return Append(0)
    places = [(0, 0)]  # turns that are the beginning of what is given, and the messages in them
    for turn in seen:
        start = places[-1][1]
        rest = given[start : start + len(turn.entries)]
        if not turn.sure or len(rest) < len(turn.entries) or not all(map(matches, turn.entries, rest)):
            break
        places.append((places[-1][0] + 1, start + len(turn.entries)))
    turns, new = places[-1]
    if turns == len(seen) and new < len(given):
        return Append(new)
    for turns, new in reversed(places[1:]):
        if fork and new < len(given) and (at := seen[turns - 1].at) is not None:
            return Fork(turns, at, new)
    return Seed()


# ---- how messages are recognised ---------------------------------------------------------------------------------


def keys(messages: Sequence[Message]) -> list[Entry]:
    """The entries of messages as their caller brings them."""
    return [_key(message) for message in messages]


def answered(texts: Iterable[str], turn: str) -> Entry:
    """The entry of what a turn answered. ``texts`` are the forms in which a client may have it: the last words, all that
    was streamed."""
    forms = list(dict.fromkeys(texts))
    return ["said", list(dict.fromkeys(_hash(_dense(t)) for t in forms)), turn, [_hash(_letters(t)) for t in forms]]


def matches(entry: Entry, key: Entry) -> bool:
    """Whether ``key``, an entry of `keys`, is the message that ``entry`` stands for.

    An assistant's answer comes back in the client's own form: other white space, in parts, with or without its tools. With
    the turn's id on it, marks may differ too; letters and digits may not, because an edited message keeps its id."""
    if entry[0] != "said" or key[0] != "given":
        return bool(entry[:2] == key[:2])
    _, exact, dense, letters, id = key
    return dense in entry[1] or (id == entry[2] and (letters in entry[3] or not exact))


def _key(message: Message) -> Entry:
    if message.role == "user":
        text = unicodedata.normalize("NFC", message.text.replace("\r\n", "\n").replace("\r", "\n").strip())
        return ["user", _hash(json.dumps([text, [file.digest for file in message.files]]))]
    spoken = "".join(part for part in message.parts if isinstance(part, str))
    rest = [[tool.name, tool.input, tool.output] for tool in message.tools] + [f.digest for f in message.files]
    exact = _hash(json.dumps([_dense(spoken), rest])) if spoken.strip() or rest else ""
    return ["given", exact, _hash(_dense(spoken)), _hash(_letters(spoken)), message.id]


def _dense(text: str) -> str:
    return "".join(unicodedata.normalize("NFC", text).split())


def _letters(text: str) -> str:
    return _MARKS.sub("", unicodedata.normalize("NFKC", text))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
