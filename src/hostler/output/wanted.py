"""What the caller wants of a turn's answer: a JSON Schema, and the type that it came from where there is one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from ..types.errors import OutputInvalid
from ..types.result import ErrorInfo, Result
from ..types.runtime import Ended
from .finding import values
from .fitting import check_schema, cut, fits, forms, names_strings, problem

CODE = "output_invalid"
_CANDIDATES = 100  # JSON values in one answer that are looked at

_ASK = """

When you are done, let your last message be your answer as JSON that fits this JSON Schema, and nothing else:

{schema}"""

_AGAIN = """Your answer does not fit what was asked for:
{problem}

Give the whole answer again, as JSON that fits this JSON Schema, and nothing else:

{schema}"""


@dataclass(frozen=True)
class Output:
    """``schema`` is stored with the session. ``make`` turns a JSON value into an instance of the caller's type, or raises
    ValueError; a process that was not given the type has none, and its output stays plain JSON."""

    schema: Mapping[str, Any]
    make: Callable[[Any], Any] | None = field(default=None, repr=False, compare=False)

    def ask(self) -> str:
        """What is said behind the prompt where the program has no way of its own to take a schema."""
        return _ASK.format(schema=self._text())

    def again(self, wrong: str) -> str:
        """What is said to the agent when its answer does not fit."""
        return _AGAIN.format(problem=wrong, schema=self._text())

    def judge(self, ended: Ended, text: str) -> tuple[Ended, str | None]:
        """The end of a turn with its output; or, as the second, what is wrong with the answer. ``text`` is what the
        program said at last. Blocks (a caller's type may do anything)."""
        said = [ended.output] if ended.output is not None else []
        said += islice(values(text), _CANDIDATES)
        if not said and not text.strip():
            return ended, "- it is empty"
        wrong = "" if said else "- it holds no complete JSON\n"
        if names_strings(self.schema, self.schema):
            said.append(text.strip())  # it need not be quoted
        for value in chain(said, chain.from_iterable(forms(self.schema, value) for value in said)):
            if fits(self.schema, value):
                break
        else:
            return ended, wrong + problem(self.schema, said[0]) if said else wrong.rstrip()
        try:
            self.instance(value)
        except ValueError as error:
            return ended, _why(error)
        return replace(ended, output=value), None

    def instance(self, value: Any) -> Any:
        """The value as the caller's type has it. Raises ValueError when that does not take it."""
        return value if self.make is None else self.make(value)

    def made(self, result: Result) -> Result:
        """The stored result of a turn as its caller gets it."""
        try:
            return replace(result, output=self.instance(result.output))
        except ValueError as error:
            return replace(result, output=None, stop_reason="error", error=invalid(_why(error)))

    def _text(self) -> str:
        return json.dumps(self.schema, ensure_ascii=False)


def wanted(given: Any) -> Output | None:
    """What ``output=`` stands for: a JSON Schema (a dict), or a type that pydantic knows (a model, a dataclass, a
    TypedDict, ``list[Item]``, ...). Raises TypeError or ValueError that says why it cannot be one."""
    if given is None or isinstance(given, Output):
        return given
    if isinstance(given, Mapping):
        try:
            schema = json.loads(json.dumps(given, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"The schema of output= must be JSON: {error}.") from None
        check_schema(schema)
        return Output(schema)
    if isinstance(given, (str, bytes, int, float, list, tuple)) or inspect.isroutine(given):
        raise TypeError(f"output= takes a type or a JSON Schema, not {given!r}.")
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        adapter = given if isinstance(given, TypeAdapter) else TypeAdapter(given)
        schema = json.loads(json.dumps(adapter.json_schema()))
    except (PydanticUserError, TypeError, NameError) as error:
        raise TypeError(f"output={given!r} cannot be made into a JSON Schema: {error}") from None
    check_schema(schema)

    def make(value: Any) -> Any:
        try:
            return adapter.validate_json(json.dumps(value))
        except ValidationError:
            raise
        except Exception as error:  # a validator of the caller's type that fails in its own way
            raise ValueError(f"{type(error).__name__}: {error}") from error

    return Output(schema, make)


def held(schema: Mapping[str, Any] | None, *given: Output | None) -> Output | None:
    """The stored schema with the type that belongs to it, if one of those given does."""
    if schema is None:
        return None
    return next((output for output in given if output is not None and output.schema == schema), Output(schema))


def invalid(wrong: str) -> ErrorInfo:
    """How a turn ends whose answer does not fit."""
    return ErrorInfo(CODE, f"The agent's answer does not fit output=:\n{wrong}")


def checked(result: Result) -> Result:
    """The result itself. Raises OutputInvalid, which keeps it, when its answer did not fit ``output=``."""
    if result.error is not None and result.error.code == CODE:
        raise OutputInvalid(
            f"{result.error.message}\nIts words are in .text, all else of turn {result.turn_id} of session "
            f"{result.session_id!r} is in .result; the session can be gone on with.",
            text=result.text,
            result=result,
        )
    return result


def _why(error: ValueError) -> str:
    """pydantic's faults in the form of the schema's."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return f"- {cut(str(error))}"
    lines = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False)[:5]:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
        lines.append(f"- at ${place}: {cut(fault['msg'])}")
    return "\n".join(lines)
