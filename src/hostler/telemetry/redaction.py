"""Masks known secrets in what agents say, also when a secret comes in pieces."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, quote_plus

from ..types.events import Approval, Compaction, Done, Event, Reasoning, Retract, Text, ToolCall, ToolResult

if TYPE_CHECKING:
    from .keys import Keys

MASK = "[masked]"
_SHORTEST = 8  # shorter ones are words that would be masked everywhere
_HEAD = 4
_NEVER = "(?!)"
_REMEMBERED = 16  # texts that others have followed, whose ends are remembered: they may go on all the same

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class _Secrets:
    """What is looked for: ``forms``, the longest first, and ``heads``, their beginnings too short for ``starts``, which
    finds where one may begin."""

    forms: tuple[str, ...]
    pattern: re.Pattern[str]
    heads: frozenset[str]
    starts: re.Pattern[str]
    longest: int


@lru_cache(64)
def _secrets(secrets: tuple[str, ...]) -> _Secrets:
    """Made once for each set: every turn asks for the same."""
    forms = sorted({form for secret in secrets for form in _forms(secret)}, key=lambda form: (-len(form), form))
    return _Secrets(
        tuple(forms),
        re.compile("|".join(map(re.escape, forms)) or _NEVER),
        frozenset(form[:size] for form in forms for size in range(1, _HEAD)),
        re.compile("|".join(sorted({re.escape(form[:_HEAD]) for form in forms})) or _NEVER),
        max(map(len, forms), default=0),
    )


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class _End:
    """The end of a text that may be the beginning of a secret; its first ``shown`` characters were shown all the same."""

    text: str = ""
    shown: int = 0


class Masker:
    """Replaces secrets, whole or as base64, URL or JSON text, by ``[masked]``; the leftmost and then the longest first.

    `feed` does the same for text that comes in deltas: it holds back what may be the beginning of a secret until the
    next delta, or `flush`, shows whether it is. The pieces together are what `mask` makes of the whole. Where another text
    follows, `overtake` shows what is held back before that, unless it tells too much of a secret: then it is masked.
    Secrets of less than 8 characters are left alone; without secrets everything passes as it is.
    """

    def __init__(self, secrets: Iterable[str] = (), keys: Keys | None = None) -> None:
        self._keys = keys
        self._secrets = _secrets(tuple(sorted(secret for secret in secrets if len(secret) >= _SHORTEST)))
        self._held: dict[str, _End] = {}

    def __repr__(self) -> str:
        return f"Masker(<{len(self._secrets.forms)} forms>)"

    def mask(self, value: T) -> T:
        """``value`` with every secret masked: a string, or a JSON value or event (dataclass) that holds strings."""
        if not self._secrets.forms:
            return value
        return self._masked(value)  # type: ignore[no-any-return]

    def feed(self, item: str, delta: str) -> str:
        """The next piece of the text ``item``; gives what can be shown now, possibly nothing."""
        if not self._secrets.forms:
            return delta
        return self._read(item, delta)

    def flush(self, item: str) -> str:
        """The text ``item`` has ended: what was held back of it."""
        return self._read(item, "", ended=True)

    def overtake(self, item: str) -> str:
        """Another text comes, though ``item`` may go on behind it: what was held back of it."""
        end = self._held.pop(item, _End())
        left = end.text[end.shown :]
        if end.text:
            self._held[item] = _End(end.text, len(end.text))
        for forgotten in [item for item, end in self._held.items() if end.shown == len(end.text)][:-_REMEMBERED]:
            del self._held[forgotten]
        return MASK if left and self._tells(end.text) else left

    def _read(self, item: str, delta: str, *, ended: bool = False) -> str:
        end = self._held.pop(item, _End())
        text = end.text + delta
        out: list[str] = []
        at = 0
        while True:
            # From ``open`` on, the next delta may complete a secret, or a longer one than is there already.
            open_at = len(text) if ended else self._beginning(text, at)
            match = self._secrets.pattern.search(text, at)
            if match is None or match.start() >= open_at:
                break
            out.append(text[max(at, end.shown) : match.start()])
            if match.end() > end.shown:
                out.append(MASK)
            at = match.end()
        if open_at < len(text):
            self._held[item] = _End(text[open_at:], max(0, end.shown - open_at))
        out.append(text[max(at, end.shown) : open_at])
        return "".join(out)

    def _tells(self, text: str) -> bool:
        """Whether more than a third of a secret is in it."""
        ends = [text[at:] for at in range(len(text))]
        begun = any(len(end) * 3 > len(form) and form.startswith(end) for form in self._secrets.forms for end in ends)
        return begun or self._secrets.pattern.search(text) is not None

    def events(self, event: Event, parent: str | None = None) -> list[tuple[Event, str | None]]:
        """What to record for an event (of the sub-agent ``parent``): the event masked, deltas as by `feed`, and before
        an event that follows on a text, also another text, what was held back of the texts of the same agent. What is
        given to tools is masked by its keys as well."""
        if self._keys is not None and isinstance(event, (ToolCall, Approval)):
            shown = self._keys.mask(event.input)
            event = event if shown is event.input else dataclasses.replace(event, input=shown)
        if not self._secrets.forms:
            return [(event, parent)]
        if isinstance(event, (Text, Reasoning)):
            if not self._held and self._is_plain(event.delta):
                return [(event, parent)]
            before = self._overtaken(parent, but=_item(event, parent)) if event.delta else []
            delta = self.feed(_item(event, parent), event.delta)
            return [*before, *([(dataclasses.replace(event, delta=delta), parent)] if delta else [])]
        if isinstance(event, Retract):
            for kind in (Text, Reasoning):
                self._held.pop(_item(kind(event.item, ""), parent), None)
        rest: list[tuple[Event, str | None]] = []
        if isinstance(event, Done):
            rest = self.rest()
        elif isinstance(event, ToolResult):
            rest = [*self._overtaken(parent), *self.rest(event.id)]  # a sub-agent called by this id has said all
        elif isinstance(event, (ToolCall, Approval, Compaction)):
            rest = self._overtaken(parent)
        return [*rest, (self.mask(event), parent)]

    def rest(self, *parents: str | None) -> list[tuple[Event, str | None]]:
        """What was held back of all texts, or those of the agents ``parents``, as events: they have ended."""
        keys = [key for key in self._held if not parents or _parent(key) in parents]
        return [shown for key in keys for shown in _said(key, self.flush(key))]

    def _overtaken(self, parent: str | None, *, but: str | None = None) -> list[tuple[Event, str | None]]:
        """What was held back of the texts of an agent that says or does something else now."""
        open_ends = [key for key, end in self._held.items() if end.shown < len(end.text)]
        keys = [key for key in open_ends if key != but and _parent(key) == parent]
        return [shown for key in keys for shown in _said(key, self.overtake(key))]

    # What is held back is always the beginning of a form, so numbers say it without saying the secret.

    def carry(self) -> dict[str, Any]:
        """What is held back of all texts, as JSON without any part of a secret; for `resume` in another process."""
        if not self._held:
            return {}
        held = {item: [self._form_of(end.text), len(end.text), end.shown] for item, end in self._held.items()}
        return {"forms": self._fingerprint(), "held": held}

    def resume(self, carried: Mapping[str, Any]) -> None:
        """Go on where `carry` was taken. Taken under other secrets, what was held back becomes ``[masked]``."""
        same = carried.get("forms") == self._fingerprint()
        for item, (form, size, *shown) in carried.get("held", {}).items():
            given = shown[0] if shown else 0  # older states do not say
            if same and 0 <= form < len(self._secrets.forms):
                self._held[item] = _End(self._secrets.forms[form][:size], given)
            elif given < size:
                self._held[item] = _End(MASK)

    def _masked(self, value: Any) -> Any:
        """What holds no secret comes back as it is."""
        if isinstance(value, str):
            return self._secrets.pattern.sub(MASK, value) if self._secrets.pattern.search(value) else value
        if isinstance(value, Mapping):
            items = {self._masked(key): self._masked(item) for key, item in value.items()}
            return value if all(items.get(key, items) is item for key, item in value.items()) else items
        if isinstance(value, (list, tuple)):
            parts = [self._masked(part) for part in value]
            if all(map(operator.is_, parts, value)):
                return value
            return tuple(parts) if isinstance(value, tuple) else parts
        changed: dict[str, Any] = {}
        for name in _fields(type(value)):  # type: ignore[arg-type]
            if (masked := self._masked(old := getattr(value, name))) is not old:
                changed[name] = masked
        return dataclasses.replace(value, **changed) if changed else value

    def _is_plain(self, text: str) -> bool:
        """Whether there is no secret in it, nor the beginning of one at its end: most of what agents say."""
        return self._beginning(text, 0) == len(text) and self._secrets.pattern.search(text) is None

    def _beginning(self, text: str, start: int) -> int:
        """Where the longest end of ``text`` (from ``start``) begins that is a proper beginning of a form."""
        end = len(text)
        best = next((at for at in range(max(start, end - _HEAD + 1), end) if text[at:] in self._secrets.heads), end)
        if self._secrets.starts.search(text, max(start, end - self._secrets.longest + 1)) is None:
            return best
        for form in self._secrets.forms:
            at = text.find(form[:_HEAD], max(start, end - len(form) + 1), best + _HEAD)
            while 0 <= at < best:
                if form.startswith(text[at:]):
                    best = at
                    break
                at = text.find(form[:_HEAD], at + 1, best + _HEAD)
        return best

    def _form_of(self, text: str) -> int:
        return next((number for number, form in enumerate(self._secrets.forms) if form.startswith(text)), -1)

    def _fingerprint(self) -> str:
        # Four digits tell two sets apart and tell nobody what is in them.
        return hashlib.sha256("\0".join(self._secrets.forms).encode("utf-8", "surrogatepass")).hexdigest()[:4]


@lru_cache(256)
def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass; of anything else none."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def _item(event: Text | Reasoning, parent: str | None) -> str:
    return json.dumps([type(event).__name__, parent, event.item])


def _parent(key: str) -> str | None:
    parent: str | None = json.loads(key)[1]
    return parent


def _said(key: str, delta: str) -> list[tuple[Event, str | None]]:
    kind, parent, item = json.loads(key)
    return [((Text if kind == "Text" else Reasoning)(item, delta), parent)] if delta else []


def _forms(secret: str) -> Iterator[str]:
    """How a secret may look in text."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    data = secret.encode("utf-8", "surrogatepass")
    for quoted in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield quoted
        yield re.sub("%..", lambda match: match[0].lower(), quoted)
    # In the base64 of a longer text the secret begins at one of three places in a group. What depends on the neighbours
    # is left out: it is part of the first and of the last character.
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + data)
        inner = encoded[(0, 2, 3)[shift] : (shift + len(data)) * 8 // 6].decode()
        yield inner
        yield inner.translate(str.maketrans("+/", "-_"))
