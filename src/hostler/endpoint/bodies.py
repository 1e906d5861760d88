"""The JSON of model calls: read and written quickly, and exactly where the quick way is not exact."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from hostler import exact_json


@dataclass(frozen=True, slots=True)
class Body:
    """A request: its bytes and the fields in them. ``common``: orjson reads it without loss (`exact_json`)."""

    raw: bytes
    fields: dict[str, Any]
    common: bool

    def written(self, fields: dict[str, Any]) -> bytes:
        """The request with these fields, which were made of its own: the bytes that came when nothing has changed."""
        if not self.common:
            return json.dumps(fields).encode()
        if fields == self.fields and not _names_two_models(self.raw):
            return self.raw
        try:
            return orjson.dumps(fields)
        except TypeError:  # nested deeper than orjson writes
            return json.dumps(fields).encode()


def read(raw: bytes) -> Body | None:
    """The request, or None when it is no JSON object."""
    common = True
    try:
        fields = exact_json.read(raw)
    except ValueError:
        common, fields = False, _slowly(raw)
    return Body(raw, fields, common) if isinstance(fields, dict) else None


def loads(raw: bytes) -> Any:
    """What an answer says, None when it is no JSON. Numbers may lose digits that no token count has."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _slowly(raw)


def _slowly(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _names_two_models(raw: bytes) -> bool:
    """Whether it may name its model twice: we read the last one, an upstream might read the first."""
    return raw.count(b'"model"') > 1 or b"\\u006" in raw  # every letter of that name, written as a number
