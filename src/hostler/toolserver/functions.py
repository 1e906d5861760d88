"""A Python function as a tool: its schema, and its arguments checked."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from typing_extensions import TypedDict

from ..types.tools import ToolContext

_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")  # with the server's name in front, what every model provider takes
_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True, slots=True)
class HostTool:
    """A function of the app that the agent may call. ``schema`` is the JSON schema of its arguments; ``context`` is the
    parameter that takes the `ToolContext`, if one does, and ``first`` the first of the others."""

    name: str
    description: str
    schema: Mapping[str, Any]
    function: Callable[..., Any] = field(repr=False)
    arguments: TypeAdapter[dict[str, Any]] = field(repr=False)
    context: str | None = None
    first: inspect.Parameter | None = field(default=None, repr=False)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> HostTool:
        """The tool that a sync or async function is, by its type hints and docstring. TypeError when it cannot be one."""
        name = getattr(function, "__name__", None)
        if not callable(function) or not isinstance(name, str):
            raise TypeError(f"tools= takes functions, not {function!r}. Wrap it in a function with a name of its own.")
        if not _NAME.fullmatch(name):
            raise TypeError(
                f"The tool {name!r} needs another name: 1 to 50 of the characters a-z, A-Z, 0-9, _ and -. "
                "Write it as a function with such a name."
            )
        try:
            parameters = dict(inspect.signature(function, eval_str=True).parameters)
            context = _context(name, parameters.values())
            if context is not None:
                del parameters[context]
            arguments = _arguments(name, parameters.values())
            schema = arguments.json_schema()
        except TypeError:
            raise
        except (NameError, AttributeError, SyntaxError, ValueError, PydanticUserError) as error:
            raise TypeError(
                f"The tool {name!r} cannot be offered: {error}. Its parameters need type hints that can be resolved and "
                "written as JSON."
            ) from error
        schema.pop("title", None)
        first = next(iter(parameters.values()), None)
        return cls(name, inspect.getdoc(function) or "", schema, function, arguments, context, first)

    def about(self, given: Mapping[str, Any]) -> str | None:
        """The first argument of a call, or its default, as the text that rules with a pattern look at."""
        if self.first is None:
            return None
        value = given.get(self.first.name, self.first.default)
        return value if isinstance(value, str) else to_json(value, fallback=str).decode()

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function takes them. ValueError in words for the model when they do not fit."""
        try:
            return self.arguments.validate_python(dict(given))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors())
            raise ValueError(f"The arguments do not fit: {wrong}") from None


def host_tools(functions: Iterable[Callable[..., Any]]) -> tuple[HostTool, ...]:
    """The tools that these functions are. Raises TypeError naming the one that cannot be offered."""
    tools = tuple(HostTool.of(function) for function in functions)
    names = [tool.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise TypeError(f"Two tools are named {sorted(twice)[0]!r}; the agent could not tell them apart.")
    return tools


def digest(tools: Iterable[HostTool]) -> str:
    """Changes when the agent would have to be told of other tools."""
    told = [[tool.name, tool.description, tool.schema] for tool in tools]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _context(name: str, parameters: Iterable[inspect.Parameter]) -> str | None:
    """The parameter that is annotated as `ToolContext`, alone or as one of several."""
    found = [p.name for p in parameters if ToolContext in (p.annotation, *get_args(p.annotation))]
    if len(found) > 1:
        raise TypeError(f"The tool {name!r} takes its context twice: {', '.join(found)}.")
    return found[0] if found else None


def _arguments(name: str, parameters: Iterable[inspect.Parameter]) -> TypeAdapter[dict[str, Any]]:
    """A check of keyword arguments. A parameter that is not given is left to the function's own default."""
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in _UNNAMED:
            raise TypeError(
                f"The tool {name!r} takes {parameter}; a tool's parameters must each have a name to call them by."
            )
        hint = Any if parameter.annotation is parameter.empty else parameter.annotation
        if parameter.default is parameter.empty:
            fields[parameter.name] = hint
        else:
            fields[parameter.name] = NotRequired[Annotated[hint, Field(json_schema_extra=_default(parameter.default))]]
    make: Any = TypedDict  # its checkers know literal ones only
    shape = make(name, fields)
    shape.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    return TypeAdapter(shape)


def _default(value: Any) -> dict[str, Any]:
    try:
        return {"default": to_jsonable_python(value)}
    except PydanticSerializationError:
        return {}
