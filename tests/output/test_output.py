"""Schemas from types, and answers that are judged by them."""

from __future__ import annotations

import dataclasses
import enum
import json
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired

import pytest
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, field_validator
from typing_extensions import TypedDict

from hostler.harness import OutputInvalid, Result
from hostler.output import Output, checked, held, invalid, wanted
from hostler.types.runtime import Ended


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


class Node(BaseModel):
    name: str
    kids: list[Node] = []


class Horse(BaseModel):
    name: str
    age: int | None = None
    colour: Colour = Colour.RED
    at: Point | None = None
    born: date | None = None
    kind: Literal["mare", "stallion"] = "mare"

    @field_validator("name")
    @classmethod
    def known(cls, name: str) -> str:
        if name == "Nobody":
            raise ValueError("no such horse")
        return name


@dataclasses.dataclass
class Stall:
    number: int
    horse: Horse | None = None


class Feed(TypedDict):
    hay: int
    straw: NotRequired[int]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


def angry(value: int) -> int:
    raise RuntimeError("out of order")


def judge(given: Any, text: str, native: Any = None) -> tuple[Any, str | None]:
    output = wanted(given)
    assert output is not None
    ended, wrong = output.judge(Ended("done", text, native), text)
    if wrong is not None:
        assert ended.output is native
        return None, wrong
    json.dumps(ended.output)  # it can be stored
    return output.instance(ended.output), None


@pytest.mark.parametrize(
    ("given", "text", "instance"),
    [
        (Point, '{"x": 1}', Point(x=1)),
        (
            Horse,
            '{"name": "Bo", "age": null, "colour": "blue", "at": {"x": 2}}',
            Horse(name="Bo", colour=Colour.BLUE, at=Point(x=2)),
        ),
        (Horse, '{"name": "Bo", "born": "2020-02-29"}', Horse(name="Bo", born=date(2020, 2, 29))),
        (Stall, '{"number": 3, "horse": {"name": "Bo"}}', Stall(3, Horse(name="Bo"))),
        (Feed, '{"hay": 3}', {"hay": 3}),
        (Node, '{"name": "a", "kids": [{"name": "b", "kids": []}]}', Node(name="a", kids=[Node(name="b")])),
        (list[Point], '[{"x": 1}, {"x": 2}]', [Point(x=1), Point(x=2)]),
        (Pet, '{"kind": "dog", "name": "Rex"}', Dog(kind="dog", name="Rex")),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        (TypeAdapter(Point), '{"x": 1}', Point(x=1)),
        (int, "42", 42),
        (int, '{"value": 42}', 42),
        (str, "just words", "just words"),
        (str, '"just words"', "just words"),
        (Colour, "red\n", Colour.RED),
        (Colour | None, "null", None),
        (Literal["yes", "no"], "yes", "yes"),
        (bool, "true", True),
        (Decimal, '"1.50"', Decimal("1.50")),
        ({"type": "object", "required": ["n"]}, '{"n": 1}', {"n": 1}),
        ({}, "[1]", [1]),
        # What models make of it.
        (Point, '```json\n{"x": 1}\n```', Point(x=1)),
        (Point, 'Sure! {"x": 1} Anything else?', Point(x=1)),
        (Point, 'First I tried {"x": 5}, but it is {"x": 1}.', Point(x=1)),
        (Point, '{"x": 1} is what fits {"type": "object"}', Point(x=1)),
        (Point, '{"output": {"x": 1}}', Point(x=1)),
        (Point, '"{\\"x\\": 1}"', Point(x=1)),
        (Point, '{"output": "{\\"x\\": 1}"}', None),  # twice is too much: asked again
        (Point, '{"x": 1, "y": null}', Point(x=1)),
        (Node, '{"name": "a", "kids": [{"name": "b", "kids": null}]}', Node(name="a", kids=[Node(name="b")])),
        (Horse, '{"name": "Ünïcode 日本", "age": 3}', Horse(name="Ünïcode 日本", age=3)),
    ],
    ids=lambda value: str(value).split(" at 0x")[0][:40],
)
def test_answers_that_fit(given: Any, text: str, instance: Any) -> None:
    found, wrong = judge(given, text)
    if instance is None and wrong is not None:
        assert "'x' is a required property" in wrong
        return
    assert wrong is None
    assert found == instance
    assert type(found) is type(instance)


@pytest.mark.parametrize(
    ("given", "text", "told"),
    [
        (Point, "", "it is empty"),
        (Point, "  \n", "it is empty"),
        (Point, '{"x": 1, "y"', "no complete JSON"),
        (Point, "I could not do it.", "no complete JSON"),
        (Point, '{"x": "one"}', "at $.x: 'one' is not of type 'integer'"),
        (Point, '{"x": 1.5}', "at $.x"),
        (Point, "[]", "is not of type 'object'"),
        (Point, '{"x": NaN}', "no complete JSON"),
        (list[Point], '[{"x": 1}, {"y": 2}]', "at $[1]: 'x' is a required property"),
        (Horse, '{"name": "Bo", "colour": "green"}', "at $.colour: 'green' is not one of ['red', 'blue']"),
        (Horse, '{"name": "Nobody"}', "at $.name: Value error, no such horse"),
        (Horse, '{"name": "Bo", "born": "2021-02-29"}', "at $.born"),
        (Node, '{"name": "a", "kids": [{"name": 3}]}', "at $.kids[0].name: 3 is not of type 'string'"),
        (Annotated[int, AfterValidator(angry)], "3", "RuntimeError: out of order"),
        (Literal["yes", "no"], "maybe", "'maybe' is not one of ['yes', 'no']"),
        ({"type": "object", "properties": {"d": {"format": "date"}}}, '{"d": "soon"}', "'soon' is not a 'date'"),
        ({"$ref": "#"}, "{}", "nested too deeply"),
        ({"maxProperties": 0, "type": "object"}, json.dumps({"k" * 5000: "v" * 5000}), " ... "),
    ],
    ids=lambda value: str(value).split(" at 0x")[0][:40],
)
def test_answers_that_do_not(given: Any, text: str, told: str) -> None:
    found, wrong = judge(given, text)
    assert found is None
    assert wrong is not None
    assert told in wrong
    assert len(wrong) < 2000


def test_what_the_program_took_apart_itself_comes_first() -> None:
    assert judge(Point, '{"x": 1}', {"x": 2})[0] == Point(x=2)
    assert judge(Point, '{"x": 1}', {"x": "?"})[0] == Point(x=1)
    assert "at $.x: '?'" in str(judge(Point, "said nothing", {"x": "?"})[1])


def test_the_agent_is_told_the_schema() -> None:
    output = wanted(Horse)
    assert output is not None
    for said in (output.ask(), output.again("- at $.name: no such horse")):
        assert json.dumps(output.schema) in said
    assert "- at $.name: no such horse" in output.again("- at $.name: no such horse")


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ("Point", TypeError, "a type or a JSON Schema"),
        (3, TypeError, "a type or a JSON Schema"),
        ([Point], TypeError, "a type or a JSON Schema"),
        (object(), TypeError, "cannot be made into a JSON Schema"),
        (lambda x: x, TypeError, "a type or a JSON Schema"),
        ({"type": "objekt"}, ValueError, "no JSON Schema: at .*objekt"),
        ({"type": object}, TypeError, "must be JSON"),
        ({"enum": [float("nan")]}, TypeError, "must be JSON"),
        ({"$ref": "https://example.com/schema.json"}, ValueError, "nothing is fetched"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}}, ValueError, "not in it"),
        ({"enum": ["x" * 300_000]}, ValueError, "300,0.. characters"),
    ],
    ids=lambda value: str(value).split(" at 0x")[0][:40],
)
def test_what_is_no_schema_is_refused(given: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        wanted(given)


def test_references_that_are_in_it_are_found() -> None:
    schema = {
        "$defs": {"A~/b": {"type": "integer"}},
        "items": {"$ref": "#/$defs/A~0~1b"},
        "default": {"$ref": "nowhere"},
    }
    assert judge(schema, "[1]")[0] == [1]
    assert "no complete JSON" in str(
        judge({"properties": {"a": {}}}, "prose")[1]
    )  # where a string is only not excluded
    assert "integer" in str(judge(schema, '["1"]')[1])


def test_the_type_is_used_where_its_schema_is_stored() -> None:
    point, horse = wanted(Point), wanted(Horse)
    assert point is not None
    stored = json.loads(json.dumps(point.schema))
    assert held(stored, None, horse, point) is point
    plain = held(stored, None, horse)
    assert plain == Output(stored)
    assert plain is not None
    assert plain.instance({"x": 1}) == {"x": 1}
    assert held(None, point) is None


def test_a_result_that_does_not_fit_is_raised_with_all_that_it_was() -> None:
    output = wanted(Horse)
    assert output is not None
    stored = Result(text="said", output={"name": "Nobody"}, session_id="s", turn_id="t")
    result = output.made(stored)
    assert (result.stop_reason, result.output) == ("error", None)
    with pytest.raises(OutputInvalid, match="no such horse") as raised:
        checked(result)
    assert raised.value.text == "said"
    assert raised.value.result is result
    assert output.made(Result(output={"name": "Bo"})).output == Horse(name="Bo")
    assert checked(stored) is stored
    assert invalid("x").code == "output_invalid"
