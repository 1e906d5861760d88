"""JSON Schemas for Codex, whose model is held to them in the strict mode of OpenAI's structured outputs: every object is
closed, every property required, and a part of the keywords known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hostler.runtimes.schemas import Schema, object_root

_KEPT = frozenset(
    [
        "type",
        "enum",
        "const",
        "pattern",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "description",
        "title",
    ]
)
# The answer is checked against the whole schema: what is left out here only lets more through.
_LEFT_OUT = frozenset(
    [
        "$schema",
        "$id",
        "$comment",
        "default",
        "examples",
        "readOnly",
        "writeOnly",
        "deprecated",
        "discriminator",
        "minLength",
        "maxLength",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "required",
    ]
)
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_INNER = frozenset(
    ["properties", "additionalProperties", "items", "anyOf", "oneOf", "allOf", "$ref", "$defs", "format"]
)
_DEPTH = 10
_LARGEST = 100_000  # characters


class _Loose(Exception):
    """This schema has no strict form."""


def strict(schema: Mapping[str, Any]) -> tuple[Schema, bool] | None:
    """The schema in strict form, and whether what was asked for is wrapped in it; None when it has no such form. What may
    be left out is null in the answer."""
    rooted = object_root(schema)
    if rooted is None:
        return None
    root, wrapped = rooted
    try:
        out = _strict(root, 1)
        if definitions := root.get("$defs"):
            out["$defs"] = {name: _strict(part, 1) for name, part in definitions.items()}
    except _Loose:
        return None
    return (out, wrapped) if len(str(out)) <= _LARGEST else None


def _strict(schema: Any, depth: int) -> Schema:
    if not isinstance(schema, Mapping) or depth > _DEPTH or set(schema) - _KEPT - _LEFT_OUT - _INNER:
        raise _Loose
    if isinstance(ref := schema.get("$ref"), str):
        if not ref.startswith("#/$defs/") or set(schema) - _LEFT_OUT - {"$ref", "description", "title"}:
            raise _Loose
        return {"$ref": ref}  # nothing may stand beside it
    out = {name: value for name, value in schema.items() if name in _KEPT}
    if schema.get("format") in _FORMATS:
        out["format"] = schema["format"]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        out["anyOf"] = [_strict(choice, depth) for choice in choices]
    if (parts := schema.get("allOf")) is not None:
        if len(parts) != 1 or "anyOf" in out or "type" in out:
            raise _Loose
        return {**_strict(parts[0], depth), **({} if "$ref" in parts[0] else out)}
    if not {"type", "enum", "const", "anyOf"} & set(out):
        raise _Loose  # anything goes
    types = [out["type"]] if isinstance(out.get("type"), str) else out.get("type", [])
    if "object" in types or "properties" in schema:
        _close(schema, out, depth)
    if "array" in types:
        out["items"] = _strict(schema.get("items"), depth + 1)
    return out


def _close(schema: Mapping[str, Any], out: Schema, depth: int) -> None:
    properties = schema.get("properties")
    if not properties or schema.get("additionalProperties", False) is not False:
        raise _Loose  # any keys
    needed = schema.get("required", [])
    if set(needed) - set(properties):
        raise _Loose
    out["properties"] = {
        name: _strict(part, depth + 1) if name in needed else _or_null(_strict(part, depth + 1))
        for name, part in properties.items()
    }
    out["required"] = list(properties)
    out["additionalProperties"] = False


def _or_null(schema: Schema) -> Schema:
    if {"type": "null"} in schema.get("anyOf", []) or "null" in (schema.get("type"), *_listed(schema.get("type"))):
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
