"""Forms that an MCP server or an ACP agent has a person fill in, as questions, and the answers as what is filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hostler.runtimes.jsonrpc import obj, objs, strs
from hostler.types.questions import Choice, Question

_YES_NO = {"yes": True, "no": False}


def questions(schema: Any) -> tuple[Question, ...] | None:
    """The fields of a form, each a question; none for one without fields. None when a field is of an unknown kind."""
    fields = obj(obj(schema).get("properties"))
    required = strs(obj(schema).get("required"))
    asked = [_question(name, obj(field), name in required) for name, field in fields.items()]
    return None if None in asked else tuple(question for question in asked if question is not None)


def filled(schema: Any, answers: Mapping[str, list[str]]) -> dict[str, Any]:
    """What the form holds when its questions are answered so."""
    fields = obj(obj(schema).get("properties"))
    return {name: _value(obj(fields.get(name)), texts) for name, texts in answers.items() if texts}


def _question(name: str, field: dict[str, Any], required: bool) -> Question | None:
    text = str(field.get("description") or field.get("title") or name)
    header = str(field.get("title") or "")
    match field.get("type"):
        case "string":
            choices = _choices(field)
            return Question(name, text, header, choices, free=not choices, required=required)
        case "array":
            choices = _choices(obj(field.get("items")))
            return (
                Question(name, text, header, choices, multiple=True, free=False, required=required) if choices else None
            )
        case "boolean":
            choices = tuple(Choice(word) for word in _YES_NO)
            return Question(name, text, header, choices, free=False, required=required)
        case "integer":
            return Question(name, text, header, kind="integer", required=required)
        case "number":
            return Question(name, text, header, kind="number", required=required)
    return None


def _titled(field: dict[str, Any]) -> list[tuple[str, str]]:
    """The values to choose from, each behind what it is called."""
    for key in ("oneOf", "anyOf"):
        if options := objs(field.get(key)):
            return [(str(option.get("title") or option.get("const")), str(option.get("const"))) for option in options]
    values = strs(field.get("enum"))
    names = strs(field.get("enumNames"))
    return list(zip(names if len(names) == len(values) else values, values, strict=True))


def _choices(field: dict[str, Any]) -> tuple[Choice, ...]:
    return tuple(Choice(title) for title, _ in _titled(field))


def _value(field: dict[str, Any], texts: list[str]) -> Any:
    match field.get("type"):
        case "array":
            values = dict(_titled(obj(field.get("items"))))
            return [values.get(text, text) for text in texts]
        case "boolean":
            return _YES_NO.get(texts[0], False)
        case "integer":
            return int(texts[0])
        case "number":
            return float(texts[0])
    return dict(_titled(field)).get(texts[0], texts[0])
