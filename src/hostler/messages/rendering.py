"""Messages as one prompt: the last one as it is, what was said before it as a transcript that the program goes on from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .values import File, Message, ToolUse

LIMIT = 400_000  # characters of a transcript, about half of what a usual model takes
_TOOL = 2_000  # characters of a tool's input or output, when the transcript is too long
_SEEDED = "This is the conversation so far, oldest message first. You are its assistant."
_ADDED = "These messages were added to our conversation since your last answer, oldest first."
_NATIVE_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_IMAGE = 5 << 20  # bytes of an image that providers take
_IMAGES, _TOGETHER = 20, 16 << 20  # of one prompt, and their bytes


@dataclass(frozen=True, slots=True)
class Told:
    """What to say to the program. ``images`` are files that go with it; ``cut`` says what was left out, if anything."""

    text: str
    images: tuple[File, ...] = ()
    cut: str | None = None


def told(messages: Sequence[Message], *, seed: bool, images: bool = False, limit: int = LIMIT) -> Told:
    """The prompt that says ``messages``; with ``seed`` they are a whole conversation, else the new end of one.

    A single user message is said as it is. With ``images``, the newest pictures are given natively; all files are named by
    where they lie. Of what goes before the last message at most about ``limit`` characters are kept."""
    pictures = [f for m in messages if m.role == "user" for f in m.files if images and _is_picture(f)]
    given = _newest(pictures)
    *before, last = messages if messages[-1].role == "user" else [*messages, None]
    ending = "" if last is None else _said(last, given)
    left_out = len(pictures) - len(given)
    cut = f"{left_out} of {len(pictures)} pictures were given by path only." if left_out else None
    if not before:
        return Told(ending, given, cut)
    number = _number(messages)
    transcript, shortened = _transcript([m for m in before if m is not None], f"message{number}", given, limit)
    outer = f"transcript{number}"
    head = f"{_SEEDED if seed else _ADDED}\n\n<{outer}>\n{transcript}\n</{outer}>\n\n"
    tail = f"The user's new message:\n\n{ending}" if last is not None else "Go on from there."
    return Told(head + tail, given, " ".join(filter(None, (shortened, cut))) or None)


def _transcript(messages: Sequence[Message], tag: str, given: Sequence[File], limit: int) -> tuple[str, str | None]:
    """The messages as text, and what was left out of it."""
    blocks = [_block(m, tag, given, _whole) for m in messages]
    if sum(map(len, blocks)) <= limit:
        return "\n".join(blocks), None
    count = 0

    def short(text: str) -> str:
        nonlocal count
        if len(text) <= _TOOL:
            return text
        count += 1
        return _middle(text, _TOOL)

    kept: list[str] = []
    room = limit
    for message in reversed(messages):
        block = _block(message, tag, given, short)
        if len(block) > room and kept:
            break
        block = _middle(block, limit) if len(block) > limit else block
        kept.append(block)
        room -= len(block)
    missing = len(messages) - len(kept)
    if missing:
        kept.append(f"[{missing} earlier messages are left out here]")
    said = [f"the {missing} oldest of {len(messages)} earlier messages were left out"] if missing else []
    said += [f"{count} long texts of tools were shortened"] if count else []
    said = said or ["a long message was shortened"]
    return "\n".join(reversed(kept)), f"The transcript was too long for one prompt: {', '.join(said)}."


def _block(message: Message, tag: str, given: Sequence[File], short: Callable[[str], str]) -> str:
    lines = [f"<{tag} role={message.role}>"]
    for part in message.parts:
        match part:
            case str():
                lines.append(part)
            case ToolUse():
                lines.append(f"[used the tool {part.name}: {short(part.input)}]")
                lines += [f"[its result: {short(part.output)}]"] if part.output is not None else []
            case File():
                lines.append(_named(part, given))
    return "\n".join([*lines, f"</{tag}>"])


def _said(message: Message, given: Sequence[File]) -> str:
    text = message.text
    if not message.files:
        return text
    files = "\n".join(_named(file, given) for file in message.files)
    return f"{text}\n\n{files}" if text.strip() else files


def _named(file: File, given: Sequence[File]) -> str:
    about = ", ".join(filter(None, (file.media_type, f"{file.bytes:,} bytes" if file.path else None)))
    where = file.path or file.name or "without a name"
    shown = ", shown here" if file in given else ""
    return f"[attached file: {where}{f' ({about}{shown})' if about else ''}]"


def _is_picture(file: File) -> bool:
    return file.path is not None and file.media_type in _NATIVE_IMAGES and 0 < file.bytes <= _IMAGE


def _newest(pictures: Sequence[File]) -> tuple[File, ...]:
    room, first = _TOGETHER, len(pictures)
    while first and len(pictures) - first < _IMAGES and pictures[first - 1].bytes <= room:
        first -= 1
        room -= pictures[first].bytes
    return tuple(pictures[first:])


def _number(messages: Sequence[Message]) -> str:
    """What makes the marks around and between messages stand in none of them: nobody can speak in another's name."""
    texts = [t for m in messages for p in m.parts for t in _texts(p)]
    used = {number for text in texts for number in re.findall(r"</?(?:message|transcript)(\d*)", text)}
    number = 0
    while (str(number) if number else "") in used:
        number += 1
    return str(number) if number else ""


def _texts(part: str | ToolUse | File) -> tuple[str, ...]:
    if isinstance(part, ToolUse):
        return (part.name, part.input, part.output or "")
    return (part,) if isinstance(part, str) else (part.path or "", part.name or "", part.media_type or "")


def _whole(text: str) -> str:
    return text


def _middle(text: str, size: int) -> str:
    """Its beginning and its end."""
    half = size // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters are left out here]\n{text[-half:]}"
