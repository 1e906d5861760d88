"""Whether a JSON value fits a JSON Schema, and if not, why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .finding import loads

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

LARGEST = 1 << 18  # characters of a schema
_SHOWN = 5  # faults that are told
_LONGEST = 300  # characters of one of them
_ROUNDS = 3


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise ValueError for what is no JSON Schema, is too large, or refers to something outside of itself."""
    import jsonschema
    import referencing.exceptions
    import referencing.jsonschema

    size = len(json.dumps(schema))
    if size > LARGEST:
        raise ValueError(f"The schema of output= has {size:,} characters, at most {LARGEST:,} are possible.")
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        cls.check_schema(dict(schema))
    except jsonschema.SchemaError as error:
        raise ValueError(f"output= is no JSON Schema: at {error.json_path}: {error.message[:_LONGEST]}") from None
    except RecursionError:
        raise ValueError("The schema of output= is nested too deeply.") from None
    specification = referencing.jsonschema.DRAFT202012
    root = referencing.Resource.from_contents(schema, default_specification=specification)
    resolver = referencing.Registry[Any]().with_resource(root.id() or "", root).resolver(root.id() or "")
    for ref in _refs(schema):
        try:
            resolver.lookup(ref)
        except (referencing.exceptions.Unresolvable, ValueError):
            raise ValueError(
                f"The schema of output= refers to {ref!r}, which is not in it. Put it under $defs; nothing is fetched."
            ) from None


def fits(schema: Mapping[str, Any], value: Any) -> bool:
    return not _faults(schema, value)


def names_strings(schema: Any, root: Mapping[str, Any], hops: int = 20) -> bool:
    """Whether the schema says that the value may be a string (and does not only leave it open)."""
    if not isinstance(schema, Mapping) or hops == 0:
        return False
    kinds = schema.get("type")
    if kinds is not None:
        return "string" in ([kinds] if isinstance(kinds, str) else kinds)
    if any(isinstance(value, str) for value in (schema.get("const"), *schema.get("enum", ()))):
        return True
    choices = [choice for name in ("anyOf", "oneOf", "allOf") for choice in schema.get(name, ())]
    if isinstance(ref := schema.get("$ref"), str):
        target: Any = root
        for step in ref.removeprefix("#").split("/")[1:]:
            target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        choices.append(target)
    return any(names_strings(choice, root, hops - 1) for choice in choices)


def problem(schema: Mapping[str, Any], value: Any) -> str:
    """What is wrong with a value, one fault a line; where the value itself says it: ``at $.items[2].price: ...``."""
    from jsonschema.exceptions import best_match

    lines = []
    for fault in _faults(schema, value)[:_SHOWN]:
        deepest = best_match([fault]) or fault
        lines.append(f"- at {deepest.json_path}: {cut(deepest.message)}")
    return "\n".join(lines)


def cut(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 80]} ... {message[-70:]}"


def forms(schema: Mapping[str, Any], value: Any) -> Iterator[Any]:
    """What else a value that does not fit may mean: JSON in a string, something wrapped in an object of its own, null
    for what is left out."""
    if isinstance(value, str):
        try:
            value = loads(value)
        except ValueError:
            return
        yield value
    yield _without_nulls(schema, value)
    if isinstance(value, dict) and len(value) == 1:
        (inner,) = value.values()
        yield inner
        yield _without_nulls(schema, inner)


def _without_nulls(schema: Mapping[str, Any], value: Any) -> Any:
    """The value without the nulls that do not fit where they are: models that must name every property write them."""
    for _ in range(_ROUNDS):
        wrong = {tuple(fault.absolute_path) for fault in _all_faults(schema, value) if fault.instance is None}
        wrong = {path for path in wrong if path and isinstance(path[-1], str)}
        if not wrong:
            break
        value = _removed(value, wrong, ())
    return value


def _removed(value: Any, wrong: set[tuple[Any, ...]], path: tuple[Any, ...]) -> Any:
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if not (item is None and (*path, key) in wrong)}
        return {key: _removed(item, wrong, (*path, key)) for key, item in kept.items()}
    if isinstance(value, list):
        return [_removed(item, wrong, (*path, index)) for index, item in enumerate(value)]
    return value


def _all_faults(schema: Mapping[str, Any], value: Any) -> Iterator[ValidationError]:
    pending = list(_faults(schema, value))
    while pending:
        fault = pending.pop()
        yield fault
        pending += fault.context or ()


def _faults(schema: Mapping[str, Any], value: Any) -> list[ValidationError]:
    from jsonschema.exceptions import ValidationError, relevance

    try:
        return sorted(_validator(json.dumps(schema)).iter_errors(value), key=relevance, reverse=True)
    except RecursionError:
        return [ValidationError("it is nested too deeply to be checked")]


@lru_cache(maxsize=64)
def _validator(schema: str) -> Validator:
    import jsonschema
    import referencing

    parsed = json.loads(schema)
    cls = jsonschema.validators.validator_for(parsed, default=jsonschema.Draft202012Validator)
    # With a registry of its own it fetches nothing.
    return cls(parsed, registry=referencing.Registry(), format_checker=cls.FORMAT_CHECKER)


def _refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            elif key not in ("const", "enum", "default", "examples"):
                yield from _refs(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _refs(item)
