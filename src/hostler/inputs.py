"""Input types: kinds of typed input that an app names, checks by a schema and turns into messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .output import wanted

if TYPE_CHECKING:
    from .faces import Files, Session


@dataclass(frozen=True, slots=True)
class InputContext:
    """What ``to_messages`` is given beside the input: the session, its files, and the call's ``extra_body``."""

    session: Session
    files: Files
    extra_body: Any


@dataclass(frozen=True, slots=True)
class InputType:
    """A kind of typed input; made by `input_type`."""

    description: str
    input_schema: Any
    to_messages: Callable[[Any, InputContext], Any]
    output: Any = None
    instructions: str | None = None
    _check: Callable[[Any], Any] = field(default=lambda value: value, repr=False, compare=False)

    def checked(self, name: str, value: Any) -> Any:
        """The input as ``to_messages`` gets it. Raises ValueError that names the fields which are wrong."""
        try:
            return self._check(value)
        except _Wrong as wrong:
            raise ValueError(f"The input of type {name!r} is not valid: {wrong}.") from None


def input_type(
    *,
    description: str,
    input_schema: Any,
    to_messages: Callable[[Any, InputContext], Any],
    output: Any = None,
    instructions: str | None = None,
) -> InputType:
    """A kind of input for ``create_harness(input_types={"name": ...})``.

    ``input_schema`` is a pydantic model (or another type that pydantic reads) or a JSON Schema; ``to_messages(input,
    context)``, sync or async, gets a model's instance, or the dict, and an `InputContext`, and gives messages.
    ``instructions`` are added to the session's for each such turn, and ``output`` takes the place of its own. Raises TypeError or ValueError for what is none of that.
    """
    if not callable(to_messages):
        raise TypeError(f"to_messages must be a function (input, context) -> messages, not {to_messages!r}.")
    for name, text in (("description", description), ("instructions", instructions or "")):
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a string, not {type(text).__name__}.")
    check = _by_json_schema(input_schema) if isinstance(input_schema, Mapping) else _by_type(input_schema)
    return InputType(description, input_schema, to_messages, wanted(output), instructions, check)


class _Wrong(Exception):
    pass


def _by_json_schema(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    import jsonschema  # slow to import, and most apps have no such type

    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        kind.check_schema(dict(schema))
    except jsonschema.SchemaError as error:
        raise ValueError(f"input_schema is no JSON Schema: {error.message}.") from None
    validator = kind(dict(schema))

    def check(value: Any) -> Any:
        errors = sorted(validator.iter_errors(value), key=lambda e: [str(p) for p in e.absolute_path])
        if errors:
            raise _Wrong(
                "; ".join(f"{e.json_path.removeprefix('$').lstrip('.') or 'input'}: {e.message}" for e in errors[:5])
            )
        return value

    return check


def _by_type(schema: Any) -> Callable[[Any], Any]:
    import pydantic

    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(schema)
    except pydantic.errors.PydanticUserError as error:
        raise TypeError(f"input_schema must be a pydantic model or a JSON Schema, not {schema!r}: {error}") from None

    def check(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except pydantic.ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False)[:5]
            said = (f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}" for e in wrong)
            raise _Wrong("; ".join(said)) from None

    return check
