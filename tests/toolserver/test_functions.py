"""Functions as tools: their schema, what is refused when the session is opened, and what models send."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from hostler.toolserver import HostTool, host_tools
from hostler.toolserver.functions import digest
from hostler.toolserver.results import answer_text


class Order(BaseModel):
    id: int
    note: str = ""


@dataclasses.dataclass
class Point:
    x: float
    y: float


def find(
    order: Order,
    kind: Literal["open", "closed"],
    names: list[str] | None = None,
    limit: Annotated[int, Field(ge=1, description="how many")] = 5,
) -> str:
    """Finds orders.

    All of them.
    """
    return f"{order} {kind} {names} {limit}"


def test_the_schema_comes_from_hints_and_docstring() -> None:
    tool = HostTool.of(find)
    assert (tool.name, tool.description) == ("find", "Finds orders.\n\nAll of them.")
    assert tool.schema["type"] == "object"
    assert tool.schema["required"] == ["order", "kind"]
    properties = tool.schema["properties"]
    assert properties["kind"]["enum"] == ["open", "closed"]
    assert properties["limit"] == {
        "default": 5,
        "description": "how many",
        "minimum": 1,
        "title": "Limit",
        "type": "integer",
    }
    assert properties["names"]["default"] is None
    assert tool.schema["$defs"]["Order"]["required"] == ["id"]


def test_arguments_arrive_as_the_hints_say_and_defaults_are_the_functions_own() -> None:
    given = HostTool.of(find).check({"order": {"id": "7"}, "kind": "open"})
    assert given == {"order": Order(id=7), "kind": "open"}
    assert find(**given) == "id=7 note='' open None 5"


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"kind": "open"}, "order"),
        ({"order": {"id": 1}, "kind": "lost"}, "kind"),
        ({"order": {"id": 1}, "kind": "open", "limit": 0}, "limit"),
        ({"order": {"id": 1}, "kind": "open", "colour": 1}, "colour"),
        ({"order": {"id": "x"}, "kind": "open"}, "order.id"),
    ],
)
def test_arguments_that_do_not_fit_are_explained(given: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=f"do not fit.*{word}") as caught:
        HostTool.of(find).check(given)
    assert "pydantic" not in str(caught.value)


def test_parameters_may_have_any_name() -> None:
    def names(copy: str, json: int, schema: int, model_config: int, _hidden: int = 1, class_: str = "") -> None: ...

    given = {"copy": "a", "json": 1, "schema": 2, "model_config": 3, "_hidden": 4, "class_": "b"}
    assert HostTool.of(names).check(given) == given


def test_a_function_without_hints_takes_what_comes() -> None:
    def plain(a, b=None):  # type: ignore[no-untyped-def]
        return a, b

    tool = HostTool.of(plain)
    assert tool.schema["required"] == ["a"]
    assert tool.check({"a": [1, {"x": None}]}) == {"a": [1, {"x": None}]}


def test_methods_and_wrapped_functions_are_tools() -> None:
    class Shop:
        def price(self, item: str) -> float:
            return 2.5 if item else 0.0

    @functools.wraps(find)
    def logged(*args: Any, **given: Any) -> str:
        return find(*args, **given)

    price, wrapped = host_tools([Shop().price, logged])
    assert list(price.schema["properties"]) == ["item"]
    assert wrapped.name == "find"
    assert "order" in wrapped.schema["properties"]


def args(*values: int) -> None: ...
def kwargs(**values: int) -> None: ...
def positional(value: int, /) -> None: ...
def unresolved(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def unwritable(value: HostTool) -> None: ...
def café() -> None: ...


@pytest.mark.parametrize("function", [args, kwargs, positional, unresolved, unwritable, café])
def test_what_cannot_be_offered_is_named(function: Any) -> None:
    with pytest.raises(TypeError, match=function.__name__):
        host_tools([function])


@pytest.mark.parametrize("thing", [lambda x: x, functools.partial(find), "find", 3, object()])
def test_what_has_no_usable_name_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="tool"):
        host_tools([thing])


def test_names_are_unique() -> None:
    with pytest.raises(TypeError, match="'find'"):
        host_tools([find, find])


def test_answers_are_text() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    assert answer_text("as it is\n") == "as it is\n"
    assert answer_text({"a": [1, 2.5, None, True]}) == '{"a":[1,2.5,null,true]}'
    assert answer_text([Order(id=1), Point(1.5, 2)]) == '[{"id":1,"note":""},{"x":1.5,"y":2}]'
    assert answer_text(None) == "null"
    assert answer_text({"o": Odd()}) == '{"o":"<odd>"}'
    assert answer_text(b"\xff") == '"_w=="'
    loop: list[Any] = []
    loop.append(loop)
    assert "..." in answer_text(loop)


def test_the_digest_changes_with_what_the_agent_is_told() -> None:
    def look(a: int) -> None:
        """One."""

    first = digest(host_tools([look]))
    assert digest(host_tools([look])) == first
    look.__doc__ = "Two."
    assert digest(host_tools([look])) != first
