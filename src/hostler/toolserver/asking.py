"""The tool by which an agent asks a person something, where its program has no way of its own that a host could answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict

from ..types.questions import QUESTION, Choice, Question
from ..types.tools import ToolAnswer
from .functions import HostTool


class Option(TypedDict):
    """What the user may choose."""

    label: str
    description: NotRequired[str]


class Asked(TypedDict):
    """One question."""

    question: str
    header: NotRequired[str]
    options: NotRequired[list[Option]]
    multiple: NotRequired[bool]


def question(questions: list[Asked]) -> str:
    """Ask the user and wait for the answer, when you cannot go on well without it: which of several ways to take, or
    what only the user knows. Give options where there are likely answers; the user may also answer in other words. Set
    multiple where several of them may be chosen."""
    raise AssertionError(f"{len(questions)} questions were not put at the desk.")


def question_tool() -> HostTool:
    """The tool; it is not run, the desk puts its questions."""
    tool = HostTool.of(question)
    assert tool.name == QUESTION
    return tool


def asked(arguments: Mapping[str, Any]) -> tuple[Question, ...]:
    """What a call of it asks; its arguments have been checked."""
    return tuple(
        Question(
            str(number),
            given["question"],
            given.get("header", ""),
            tuple(Choice(option["label"], option.get("description", "")) for option in given.get("options", ())),
            multiple=given.get("multiple", False),
        )
        for number, given in enumerate(arguments["questions"], 1)
    )


def told(questions: Sequence[Question], answers: Mapping[str, list[str]] | None, reason: str | None) -> ToolAnswer:
    """What the model is told of the answers, or of why there are none."""
    if answers is None:
        return ToolAnswer(f"The user did not answer: {reason or 'no reason was given.'}")
    lines = [f"{question.text} {', '.join(answers.get(question.id, ()))}" for question in questions]
    return ToolAnswer("\n".join(["The user answered:", *lines]))
