"""JSON Schemas as agent programs take them: an object at the root, nothing that they do not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

WRAPPED = "value"
"""Holds what is no object where a program wants one."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONES = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "additionalItems")
_HOPS = 20

Schema = dict[str, Any]


def object_root(schema: Mapping[str, Any]) -> tuple[Schema, bool] | None:
    """The schema with an object at its root, and whether it had to be wrapped for that. None when it cannot be: it refers
    to itself by its place."""
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    if any(not ref.startswith(("#/$defs/", "#/definitions/")) for ref in refs(schema)):
        return None
    root = {name: value for name, value in schema.items() if name not in definitions}
    for _ in range(_HOPS):
        ref = root.get("$ref")
        if not isinstance(ref, str):
            break
        _, where, name, *deeper = ref.split("/")
        target = definitions.get(where, {}).get(_unescaped(name))
        if deeper or not isinstance(target, Mapping):
            return None
        root = {**target, **{key: value for key, value in root.items() if key != "$ref"}}
    if root.get("type") == "object":
        return {**root, **definitions}, False
    wrapped = {"type": "object", "properties": {WRAPPED: root}, "required": [WRAPPED], "additionalProperties": False}
    return {**wrapped, **definitions}, True


def refs(schema: Any) -> Iterator[str]:
    for part in subschemas(schema):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]


def subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema and all schemas in it."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, Mapping):
            yield part
            pending += _inner(part)


def mapped(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """The schema with ``change`` made to it and to all schemas in it, the inner ones first."""
    if not isinstance(schema, Mapping):
        return schema
    out: Schema = {}
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, Mapping):
            out[name] = {key: mapped(inner, change) for key, inner in value.items()}
        elif name in (*_LISTS, *_ONES) and isinstance(value, list):
            out[name] = [mapped(inner, change) for inner in value]
        elif name in _ONES:
            out[name] = mapped(value, change)
        else:
            out[name] = value
    return change(out)


def _inner(schema: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, Mapping):
            found += value.values()
        elif name in (*_LISTS, *_ONES):
            found += value if isinstance(value, list) else [value]
    return found


def _unescaped(name: str) -> str:
    return name.replace("~1", "/").replace("~0", "~")
