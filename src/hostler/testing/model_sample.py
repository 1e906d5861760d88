"""What the scripted model answers without a script when it is asked for structured output: the least that fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_FORMATS = {"date": "2024-02-29", "date-time": "2024-02-29T12:00:00Z", "time": "12:00:00Z", "email": "a@example.com"}
_TOOL = "StructuredOutput"  # Claude Code's
_DEPTH = 20


def structured(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The step that answers a request for structured output on any wire; None for another request."""
    for tool in body.get("tools") or []:
        if tool.get("name") == _TOOL:
            return {"tools": [{"tool": _TOOL, "args": sample(tool.get("input_schema"))}]}
    form = (body.get("text") or {}).get("format") or (body.get("response_format") or {}).get("json_schema") or {}
    return {"text": json.dumps(sample(form["schema"]))} if "schema" in form else None


def sample(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """A small value that fits a JSON Schema, as far as its types and choices say what does."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return None
    root = schema if root is None else root
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if "$ref" in schema:
        target: Any = root
        for name in str(schema["$ref"]).split("/")[1:]:
            target = target.get(name, {})
        return sample(target, root, depth + 1)
    for choices in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
        if choices:
            return sample(choices[0], root, depth + 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            parts = schema.get("properties", {})
            return {name: sample(parts.get(name), root, depth + 1) for name in schema.get("required", [])}
        case "array":
            return [sample(schema.get("items"), root, depth + 1) for _ in range(schema.get("minItems", 0))]
        case "integer":
            return int(schema.get("minimum", 1))
        case "number":
            return float(schema.get("minimum", 1.5))
        case "boolean":
            return True
        case "string":
            return _FORMATS.get(str(schema.get("format")), "word").ljust(schema.get("minLength", 0), "x")
    return None
