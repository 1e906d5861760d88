"""Whether an answer answers what was asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hostler.harness import Approval, Choice, Question
from hostler.types.events import Answered, event_from_dict, event_to_dict
from hostler.types.questions import settled, worded

DB = Question("db", "Which database?", "DB", (Choice("Postgres", "big"), Choice("SQLite")))
COLOURS = Question("colours", "Which colours?", choices=(Choice("red"), Choice("blue")), multiple=True, free=False)
COUNT = Question("n", "How many?", kind="integer", required=False)
ALL = (DB, COLOURS, COUNT)


def asked(*questions: Question) -> Approval:
    return Approval("a", "question", {"questions": [question.to_dict() for question in questions]})


def test_questions_go_through_the_journal() -> None:
    event = event_from_dict(json.loads(json.dumps(event_to_dict(asked(*ALL)))))
    assert isinstance(event, Approval)
    assert event.questions == ALL
    answer = Answered("a", True, None, {"db": ["Postgres"]})
    assert event_from_dict(json.loads(json.dumps(event_to_dict(answer)))) == answer
    assert event_from_dict({"type": "answered", "id": "a", "allow": True, "reason": None}) == Answered("a", True)


@pytest.mark.parametrize("approval", [Approval("a", "bash", {"questions": [{"id": "x", "text": "y"}]}), asked()])
def test_what_asks_for_leave_asks_nothing_else(approval: Approval) -> None:
    assert approval.questions == ()


@pytest.mark.parametrize(
    ("questions", "given", "answers"),
    [
        ((DB,), "Postgres", {"db": ["Postgres"]}),
        ((DB,), "neither", {"db": ["neither"]}),  # it may be answered in other words
        ((DB,), ["SQLite"], {"db": ["SQLite"]}),
        ((COLOURS,), ["red", "blue"], {"colours": ["red", "blue"]}),
        ((COLOURS,), "red", {"colours": ["red"]}),
        (ALL, {"db": "x", "colours": ["red"]}, {"db": ["x"], "colours": ["red"]}),
        (ALL, {"db": "x", "colours": ["red"], "n": "3"}, {"db": ["x"], "colours": ["red"], "n": ["3"]}),
    ],
)
def test_answers(questions: tuple[Question, ...], given: Any, answers: Any) -> None:
    assert settled(questions, True, given, what="It") == answers


@pytest.mark.parametrize(
    ("questions", "given", "wrong"),
    [
        ((), "x", "takes no answers="),
        ((DB,), None, "asks 'db'"),
        (ALL, "x", "takes {id: text}"),
        (ALL, {"db": "x"}, "also asks 'colours'"),
        (ALL, {"db": [], "colours": ["red"]}, "also asks 'db'"),
        ((DB,), {"database": "x"}, "no question 'database'"),
        ((DB,), ["a", "b"], "takes one answer"),
        ((DB,), 7, "a text or a list of texts"),
        ((COLOURS,), ["red", "green"], "'green' is none of the choices"),
        ((COUNT,), "many", "asks for a number"),
        ((COUNT,), "1.5", "asks for a number"),
    ],
)
def test_answers_that_are_none(questions: tuple[Question, ...], given: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        settled(questions, True, given, what="It")


def test_a_refusal_needs_no_answer_and_takes_none() -> None:
    assert settled((DB,), False, None, what="It") is None
    with pytest.raises(ValueError, match="refused and answered"):
        settled((DB,), False, "x", what="It")
    assert settled((), True, None, what="It") is None


def test_answers_as_they_are_typed() -> None:
    assert worded((DB,), []) is None
    assert worded((DB,), ["a=b"]) == ["a=b"]
    assert worded(ALL, ["db=a=b", "colours=red", "colours=blue"]) == {"db": ["a=b"], "colours": ["red", "blue"]}
    with pytest.raises(ValueError, match="id=text"):
        worded(ALL, ["Postgres"])
