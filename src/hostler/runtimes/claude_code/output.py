"""JSON Schemas for Claude Code, which makes a tool of the one that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..schemas import Schema, mapped, object_root, subschemas

# It drops a schema with a keyword that it does not know, without a word.
_KNOWN = frozenset(
    [
        "$ref",
        "$defs",
        "definitions",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "readOnly",
        "writeOnly",
        "deprecated",
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "items",
        "minItems",
        "maxItems",
        "uniqueItems",
        "contains",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
    ]
)
_SAYS_NOTHING = ("$schema", "$id", "discriminator")


def native(schema: Mapping[str, Any]) -> tuple[Schema, bool] | None:
    """The schema in the form that it takes, and whether what was asked for is wrapped in it; None when it takes none."""
    rooted = object_root(mapped(schema, _without_notes))
    if rooted is None or any(set(part) - _KNOWN for part in subschemas(rooted[0])):
        return None
    return rooted


def _without_notes(schema: Schema) -> Schema:
    return {name: value for name, value in schema.items() if name not in _SAYS_NOTHING}
