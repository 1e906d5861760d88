"""Masks values by the name of their key, or by their path, in what the app and the agent pass around as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from .redaction import MASK

USUAL = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "private_key",
    "access_key",
    "authorization",
    "cookie",
    "credentials",
)
"""What is masked when the app does not say."""

_LONG = 100  # characters at the end of a key that are looked at
_DEPTH = 100  # levels that are looked at; what is nested deeper is masked as a whole


class Keys:
    """Which values to mask. A key matches by its last words, whatever their case and joints: ``token`` masks
    ``accessToken`` and ``X-Access-Token`` and not ``max_tokens``. A name with dots is a path from the top (``*``: any
    step): ``customers.*.ssn``."""

    def __init__(self, names: Iterable[str] | None = None) -> None:
        given = USUAL if names is None else tuple(names)
        self._keys = {_words(name) for name in given if "." not in name}
        self._paths = [name.split(".") for name in given if "." in name]

    def mask(self, value: Any) -> Any:
        """``value`` with the values under these keys replaced; what holds none comes back as it is."""
        return self._masked(value, self._paths, 0) if self._keys or self._paths else value

    def _masked(self, value: Any, paths: list[list[str]], depth: int) -> Any:
        if depth > _DEPTH:
            return MASK
        if isinstance(value, Mapping):
            out = {name: self._under(str(name), item, paths, depth) for name, item in value.items()}
            return value if all(out[name] is item for name, item in value.items()) else out
        if isinstance(value, (list, tuple)):
            items = [self._under(str(at), item, paths, depth) for at, item in enumerate(value)]
            return value if all(a is b for a, b in zip(items, value, strict=True)) else items
        return value

    def _under(self, name: str, item: Any, paths: list[list[str]], depth: int) -> Any:
        below = [path[1:] for path in paths if path[0] in (name, "*")]
        if item is not None and (self._matches(name) or [] in below):
            return MASK
        return self._masked(item, below, depth + 1)

    def _matches(self, name: str) -> bool:
        words = _words(name[-_LONG:])
        return any(words[-len(key) :] == key for key in self._keys)


@lru_cache(1024)
def _words(name: str) -> tuple[str, ...]:
    """``apiKey``, ``API-Key`` and ``api_key`` are the same words; ``apikey`` is one of the usual ways to join them."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    words = tuple(re.findall(r"[^\W_]+", spaced.lower()))
    return tuple(part for word in words for part in _JOINED.get(word, (word,)))


_JOINED = {"apikey": ("api", "key"), "privatekey": ("private", "key"), "accesskey": ("access", "key")}
