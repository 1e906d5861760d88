"""The rule against a model of it, and how messages are recognised. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.messages import Append, Fork, Message, Seed, Seen, ToolUse, answered, keys, plan
from hostler.messages.chain import matches

Said = tuple[str, str]  # role and text


def key(said: Said) -> Any:
    return keys([Message(said[0], (said[1],))])[0]  # type: ignore[arg-type]


class Program:
    """A program that keeps what it was told, and the model of the rule: plain lists, no hashes."""

    def __init__(self, forks: bool) -> None:
        self.forks = forks
        self.turns: list[tuple[list[Said], bool, bool]] = []  # what each added, whether it ended well, has it a place

    @property
    def holds(self) -> list[Said]:
        return [said for turn, _, _ in self.turns for said in turn]

    def noted(self) -> list[Seen]:
        out = []
        for number, (turn, well, place) in enumerate(self.turns):
            *new, answer = turn
            entries = [*map(key, new), answered([answer[1]], f"t{number}")]
            out.append(Seen(entries, f"at-{number}" if place else None) if well else Seen([], None, False))
        return out

    def rule(self, messages: list[Said]) -> tuple[str, int]:
        """What should happen, and from which message on is told: said once more, from the issue's words."""
        sound = [n for n in range(len(self.turns) + 1) if all(well for _, well, _ in self.turns[:n])]
        whole = {n: [said for turn, _, _ in self.turns[:n] for said in turn] for n in sound}
        same = [n for n in sound if messages[: len(whole[n])] == whole[n] and len(messages) > len(whole[n])]
        if len(self.turns) in same:
            return "append", len(whole[len(self.turns)])
        places = [n for n in same if n and self.turns[n - 1][2]]
        if self.forks and places:
            return "fork", len(whole[max(places)])
        return "seed", 0

    def tell(self, messages: list[Said], answer: str, *, well: bool, place: bool) -> None:
        found = plan(self.noted(), [key(m) for m in messages], "auto", fork=self.forks)
        wanted, start = self.rule(messages)
        assert (type(found).__name__.lower(), found.new) == (wanted, start)
        if not well and not isinstance(found, Append):
            return  # the conversation that it began is given up
        if isinstance(found, Fork):
            assert found.at == f"at-{found.turns - 1}"
            self.turns = self.turns[: found.turns]
        elif isinstance(found, Seed):
            self.turns = []
        self.turns.append(([*messages[found.new :], ("assistant", answer)], well, place))
        if well and all(well for _, well, _ in self.turns):
            assert self.holds == [*messages, ("assistant", answer)]  # nothing old, nothing lost, in order


@given(st.booleans(), st.data())
def test_after_any_edits_the_program_holds_what_its_caller_says(forks: bool, data: st.DataObject) -> None:
    program = Program(forks)
    messages: list[Said] = []
    words = st.sampled_from(["a", "b", "c"])  # few, so that the same text comes twice
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(messages)))
            match data.draw(st.sampled_from(["edit", "delete", "insert", "swap", "cut", "replace", "answer"])):
                case "edit" if at < len(messages):
                    messages[at] = (messages[at][0], messages[at][1] + data.draw(words))
                case "delete" if at < len(messages):
                    del messages[at]
                case "insert":
                    messages.insert(at, ("user", data.draw(words)))
                case "answer":
                    messages.insert(at, ("assistant", data.draw(words)))
                case "swap" if at + 1 < len(messages):
                    messages[at], messages[at + 1] = messages[at + 1], messages[at]
                case "cut":
                    messages = messages[:at]
                case "replace":
                    messages = [("user", data.draw(words)) for _ in range(at)]
        if not messages or messages[-1][0] == "assistant" or data.draw(st.booleans()):
            messages.append(("user", data.draw(words)))
        answer = data.draw(words)
        well = data.draw(st.integers(0, 3)) > 0
        program.tell(messages, answer, well=well, place=data.draw(st.integers(0, 4)) > 0)
        if data.draw(st.booleans()) or well:
            messages.append(("assistant", answer))


def test_policies() -> None:
    seen = [Seen([key(("user", "a")), answered(["b"], "t")], "at")]
    given_ = [key(m) for m in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    assert plan(seen, given_, "auto", fork=True) == Append(2)
    assert plan(seen, given_, "replay", fork=True) == Seed(0)
    assert plan(seen, given_[1:], "native", fork=True) == Append(1)
    assert plan(seen, given_, "append", fork=True) == Append(0)
    assert plan(seen, given_[:2], "auto", fork=True) == Seed(0)  # nothing new in it


@pytest.mark.parametrize(
    ("message", "same"),
    [
        (Message("assistant", ("I look. Done:\n\n- 40 bales\n",)), True),
        (Message("assistant", ("  I look.\r\nDone: - 40\tbales",)), True),
        (Message("assistant", ("I look.", "Done:\n\n- 40 bales")), True),
        (Message("assistant", ("I look.", ToolUse("bash", "{}", "x"), "Done:\n\n- 40 bales")), True),
        (Message("assistant", ("Done:\n\n- 40 bales",)), True),  # the last words only
        (Message("assistant", ("I look. Done:\n\n- 41 bales",)), False),
        (Message("assistant", ("I look. Done:\n\n* 40 bales",)), False),
        (Message("assistant", ("I look. Done:\n\n* 40 bales",), "turn_1"), True),  # the client's own marks, under our id
        (Message("assistant", ("I look. Done: **40** bales",), "turn_1"), True),
        (Message("assistant", ("I look. Done: **41** bales",), "turn_1"), False),  # edited, under the same id
        (Message("assistant", (), "turn_1"), True),  # the client keeps ids only
        (Message("assistant", (), "turn_2"), False),
        (Message("user", ("Done:\n\n- 40 bales",)), False),
    ],
)  # fmt: skip
def test_an_answer_comes_back_in_the_clients_form(message: Message, same: bool) -> None:
    entry = answered(["Done:\n\n- 40 bales", "I look.Done:\n\n- 40 bales"], "turn_1")
    assert matches(entry, keys([message])[0]) is same


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (Message("user", ("a  b",), "1"), Message("user", ("a  b\r\n",), "2"), True),
        (Message("user", ("a  b",), "1"), Message("user", ("a b",), "1"), False),  # white space that a user wrote counts
        (Message("assistant", ("x", ToolUse("t", "{}", "1"))), Message("assistant", ("x", ToolUse("t", "{}", "1"))), True),
        (Message("assistant", ("x", ToolUse("t", "{}", "1"))), Message("assistant", ("x", ToolUse("t", "{}", "2"))), False),
        (Message("assistant", ("caf\u00e9",)), Message("assistant", ("cafe\u0301 ",)), True),
    ],
)  # fmt: skip
def test_what_the_caller_brought_comes_back_as_it_was(first: Message, second: Message, same: bool) -> None:
    assert matches(keys([first])[0], keys([second])[0]) is same
