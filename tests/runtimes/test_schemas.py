"""JSON Schemas in the forms that programs take, checked with the answers that those let through."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field, TypeAdapter

from hostler.runtimes.claude_code.output import native
from hostler.runtimes.codex.output import strict
from hostler.runtimes.schemas import object_root, subschemas


class Node(BaseModel):
    name: str
    kids: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    owner: str | None = None


class Home(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    node: Node | None = None
    size: float = Field(default=1.0, gt=0, description="in acres")
    tags: list[str] = Field(default=[], max_length=3)
    name: str = Field(default="", min_length=0, max_length=20)


def schema(type: Any) -> dict[str, Any]:
    return TypeAdapter(type).json_schema()


def fits(schema: dict[str, Any], value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def test_objects_stay_and_the_rest_is_wrapped() -> None:
    assert object_root(schema(Cat)) == (schema(Cat), False)
    rooted = object_root(schema(Node))  # its root is a reference
    assert rooted is not None
    assert (rooted[0]["type"], rooted[1]) == ("object", False)
    for type in (list[Node], int, Cat | Dog, Literal["a"], Node | None):
        rooted = object_root(schema(type))
        assert rooted is not None
        assert (rooted[0]["type"], rooted[0]["required"], rooted[1]) == ("object", ["value"], True)
        jsonschema.Draft202012Validator.check_schema(rooted[0])
    rooted = object_root(schema(list[Node]))
    assert rooted is not None
    assert fits(rooted[0], {"value": [{"name": "a", "kids": [{"name": "b"}]}]})
    assert not fits(rooted[0], {"value": [{"kids": []}]})
    assert object_root({"type": "array", "items": {"$ref": "#"}}) is None
    assert object_root({"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}) is not None  # round for ever


@pytest.mark.parametrize("type", [Cat, Node, Home, list[Home], Cat | Dog, int])
def test_claude_code_takes_what_pydantic_makes(type: Any) -> None:
    taken = native({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema(type)})
    assert taken is not None
    assert not any({"$schema", "discriminator"} & set(part) for part in subschemas(taken[0]))


@pytest.mark.parametrize(
    "more", [{"prefixItems": [{}]}, {"if": {}, "then": {}}, {"unevaluatedProperties": False}, {"x-y": 1}]
)
def test_claude_code_is_asked_in_words_where_it_would_drop_the_schema(more: dict[str, Any]) -> None:
    assert native({"type": "object", **more}) is None
    assert native({"type": "object", "properties": {"a": {"items": more}}}) is None
    assert native({"type": "object", "properties": {"prefixItems": {}, "if": {}}}) is not None  # names, no keywords


@pytest.mark.parametrize("type", [Cat, Dog, Node, Home, list[Home], Cat | Dog, int, Literal["a", "b"], Node | None])
def test_the_strict_form_is_strict(type: Any) -> None:
    taken = strict(schema(type))
    assert taken is not None
    for part in subschemas(taken[0]):
        assert not {"default", "oneOf", "allOf", "discriminator", "minLength", "uniqueItems"} & set(part)
        if part.get("type") == "object":
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])
        if "$ref" in part:
            assert set(part) == {"$ref"}
    jsonschema.Draft202012Validator.check_schema(taken[0])
    assert taken[0]["type"] == "object"


def test_what_may_be_left_out_is_null_in_the_strict_form() -> None:
    taken = strict(schema(Home))
    assert taken is not None
    whole = {"pet": {"kind": "dog", "owner": None}, "node": None, "size": 2.5, "tags": None, "name": None}
    assert fits(taken[0], whole)
    assert not fits(taken[0], {**whole, "more": 1})
    assert not fits(taken[0], {k: v for k, v in whole.items() if k != "tags"})
    assert not fits(taken[0], {**whole, "pet": None})
    assert not fits(taken[0], {**whole, "size": 0})
    assert taken[0]["properties"]["node"]["anyOf"].count({"type": "null"}) == 1


@pytest.mark.parametrize(
    "loose",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"not": {"type": "null"}}}},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/A"}}, "definitions": {"A": {"type": "null"}}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"allOf": [{"type": "integer"}, {"minimum": 3}]}}},
        {"type": "object", "patternProperties": {"a": {"type": "integer"}}, "properties": {"a": {"type": "null"}}},
        schema(dict[str, int]),
        schema(tuple[int, str]),
    ],
    ids=str,
)
def test_what_has_no_strict_form_is_asked_for_in_words(loose: dict[str, Any]) -> None:
    assert strict(loose) is None


def test_what_is_too_deep_or_too_large_for_the_strict_form() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(11):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    assert strict(deep) is None
    assert strict({"type": "object", "properties": {"a": {"enum": ["x" * 100_001]}}}) is None
