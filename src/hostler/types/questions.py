"""Questions that an agent puts to a person, and whether an answer answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

QUESTION = "question"
"""The ``tool`` of an `Approval` that is no wish to use a tool but asks something."""

Answers: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""The answer to the only question, or answers by the ids of the questions; several texts where several may be chosen."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What may be chosen: its ``label`` is the answer."""

    label: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of an agent. ``multiple``: several choices may be taken; ``free``: an answer may be none of them;
    ``kind``: what its text must be; ``required``: False when it may be left out."""

    id: str
    text: str
    header: str = ""
    choices: tuple[Choice, ...] = ()
    multiple: bool = False
    free: bool = True
    kind: Literal["text", "number", "integer"] = "text"
    required: bool = True

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without what is as usual."""
        out: dict[str, Any] = {"id": self.id, "text": self.text}
        if self.header:
            out["header"] = self.header
        if self.choices:
            out["choices"] = [{"label": c.label, "description": c.description} for c in self.choices]
        usual = Question("", "")
        return out | {
            name: getattr(self, name)
            for name in ("multiple", "free", "kind", "required")
            if getattr(self, name) != getattr(usual, name)
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Question:
        choices = tuple(Choice(str(c["label"]), str(c.get("description", ""))) for c in data.get("choices", ()))
        return cls(**{**data, "choices": choices})


def questions_of(tool: str, input: Any) -> tuple[Question, ...]:
    """The questions that an `Approval` for ``tool`` with this input asks; none when it is one."""
    if tool != QUESTION or not isinstance(input, Mapping):
        return ()
    return tuple(Question.from_dict(question) for question in input.get("questions", ()))


def settled(
    questions: Sequence[Question], allow: bool, given: Answers | None, *, what: str
) -> dict[str, list[str]] | None:
    """The ``given`` answers by the ids of the questions, checked; None for a plain yes or no. ``what`` is asked, in words.
    Raises ValueError that says what is missing or does not fit."""
    if given is not None and not questions:
        raise ValueError(f"{what} asks for a yes or a no; it takes no answers=.")
    if given is not None and not allow:
        raise ValueError(f"{what} cannot be refused and answered at once.")
    if not questions or not allow:
        return None
    if given is None:
        raise ValueError(f"{what} asks {_named(questions)}; answer it with answers=.")
    if not isinstance(given, Mapping):
        if len(questions) != 1:
            raise ValueError(f"{what} asks {_named(questions)}; answers= takes {{id: text}} then.")
        given = {questions[0].id: given}
    known = {question.id for question in questions}
    if unknown := [str(id) for id in given if id not in known]:
        raise ValueError(f"{what} has no question {unknown[0]!r}; it asks {_named(questions)}.")
    answers = {
        question.id: _texts(question, given[question.id], what) for question in questions if question.id in given
    }
    if missing := [q for q in questions if q.required and not answers.get(q.id)]:
        raise ValueError(f"{what} also asks {_named(missing)}.")
    return answers


def worded(questions: Sequence[Question], words: Sequence[str]) -> Answers | None:
    """Answers as they are typed at a terminal: texts for the only question, ``id=text`` for several."""
    if not words:
        return None
    if len(questions) == 1:
        return list(words)
    by_id: dict[str, list[str]] = {}
    for word in words:
        id, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"Several things are asked: write id=text, with the id of one of {_named(questions)}.")
        by_id.setdefault(id, []).append(text)
    return by_id


def _texts(question: Question, given: Any, what: str) -> list[str]:
    texts = [given] if isinstance(given, str) else list(given) if isinstance(given, Sequence) else [given]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{what}: the answer to {question.id!r} is a text or a list of texts, not {given!r}.")
    if len(texts) > 1 and not question.multiple:
        raise ValueError(f"{what}: {question.id!r} takes one answer, not {len(texts)}.")
    labels = [choice.label for choice in question.choices]
    if not question.free and (wrong := [text for text in texts if text not in labels]):
        raise ValueError(f"{what}: {wrong[0]!r} is none of the choices of {question.id!r}: {', '.join(labels)}.")
    for text in texts if question.kind != "text" else ():
        try:
            (int if question.kind == "integer" else float)(text)
        except ValueError:
            raise ValueError(f"{what}: {question.id!r} asks for a number, not for {text!r}.") from None
    return texts


def _named(questions: Sequence[Question]) -> str:
    return ", ".join(f"{question.id!r} ({question.text})" for question in questions)
