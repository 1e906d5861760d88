from __future__ import annotations

import base64
import json
import urllib.parse
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.telemetry.redaction import MASK, Masker
from hostler.types.events import Approval, Done, Event, Reasoning, Retract, Text, ToolCall, ToolResult
from hostler.types.result import Result

SECRET = 'canary/+&ä"key\\0123'


def leaks(text: str, secret: str) -> bool:
    return any(secret[at : at + 8] in text for at in range(len(secret) - 7))


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "key=", "Basic user:"])
@pytest.mark.parametrize("after", ["", "z", "zz", "\n"])
def test_every_form_is_masked(before: str, after: str) -> None:
    masker = Masker([SECRET])
    plain = before + SECRET + after
    shown = masker.mask(plain)
    assert shown == before + MASK + after
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(plain.encode()).decode()
        left = masker.mask(encoded)
        assert MASK in left
        assert len(left.replace(MASK, "")) <= len(base64.b64encode((before + after).encode())) + 4
    for quoted in (urllib.parse.quote(plain), urllib.parse.quote(plain, safe=""), urllib.parse.quote_plus(plain)):
        assert not leaks(urllib.parse.unquote_plus(masker.mask(quoted)), SECRET)
        assert MASK in masker.mask(quoted)
    for as_json in (json.dumps({"a": plain}), json.dumps({"a": plain}, ensure_ascii=False)):
        assert json.loads(masker.mask(as_json)) == {"a": before + MASK + after}


def test_nested_values_and_events() -> None:
    masker = Masker(["sk-12345678"])
    value = {"k sk-12345678": [1, None, True, ("x sk-12345678", {"y": "sk-12345678"})], "n": 1.5}
    assert masker.mask(value) == {f"k {MASK}": [1, None, True, (f"x {MASK}", {"y": MASK})], "n": 1.5}
    assert value["n"] == 1.5
    approval = Approval("1", "bash", {"command": "echo sk-12345678"}, answer=lambda allow, reason: None)  # type: ignore[arg-type]
    masked = masker.mask(approval)
    assert masked.input == {"command": f"echo {MASK}"}
    assert masked.answer is approval.answer
    assert masker.mask(Done(Result(text="sk-12345678", files=()))).result.text == MASK


def test_without_secrets_nothing_is_touched() -> None:
    for masker in (Masker(), Masker(["", "short", "1234567"])):
        value = {"a": ["short 1234567"]}
        event = Text("i", "short")
        assert masker.mask(value) is value
        assert masker.feed("i", "short") == "short"
        assert masker.flush("i") == ""
        assert masker.events(event) == [(event, None)]
        assert masker.carry() == {}


def test_the_longest_secret_wins() -> None:
    masker = Masker(["abcdefgh", "abcdefghijkl"])
    assert masker.mask("xabcdefghijklx abcdefghx") == f"x{MASK}x {MASK}x"
    shown = masker.feed("i", "abcdefgh")
    assert shown == ""
    assert masker.feed("i", "ij") == ""
    assert masker.feed("i", "x") + masker.flush("i") == f"{MASK}ijx"


def test_only_what_may_be_a_beginning_is_held_back() -> None:
    masker = Masker(["sk-12345678"])
    assert masker.feed("i", "as") == "a"
    assert masker.feed("i", "k") == ""
    assert masker.feed("j", "k") == "k"
    assert masker.feed("i", "!") == "sk!"
    assert masker.feed("i", "sk-1234") == ""
    assert masker.feed("i", "5678.") == f"{MASK}."
    assert masker.feed("i", "sk-") == ""
    assert masker.flush("i") == "sk-"
    assert masker.flush("i") == ""


SECRETS = st.lists(st.text("ab-", min_size=8, max_size=14), min_size=1, max_size=4)


@settings(max_examples=400, deadline=None)
@given(SECRETS, st.data())
def test_any_split_gives_what_the_whole_gives(secrets: list[str], data: st.DataObject) -> None:
    forms = sorted({f for s in secrets for f in (s, s[:-1], s[1:], s[:4], base64.b64encode(s.encode()).decode())})
    pieces = data.draw(st.lists(st.sampled_from([*forms, "a", "b", "-", "Y", "%"]), max_size=12))
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=15)))
    deltas = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    masker = Masker(secrets)
    out = ""
    for delta in deltas:
        out += masker.feed("item", delta)
        carried = json.loads(json.dumps(masker.carry()))
        assert not any(secret in json.dumps(carried) for secret in secrets)
        masker = Masker(reversed(secrets))  # another process goes on
        masker.resume(carried)
    out += masker.flush("item")
    assert out == Masker(secrets).mask(text)
    assert not any(secret in out.replace(MASK, "\0") for secret in secrets)


def test_what_was_held_back_under_other_secrets_is_masked() -> None:
    masker = Masker(["sk-12345678"])
    masker.feed("i", "text sk-1234")
    carried = masker.carry()
    assert "sk-" not in json.dumps(carried)
    other = Masker(["other-secret"])
    other.resume(carried)
    assert other.carry()["held"] == {"i": [-1, len(MASK), 0]}
    assert other.feed("i", "!") == f"{MASK}!"


def stream(masker: Masker, *events: tuple[Event, str | None]) -> list[tuple[Event, str | None]]:
    return [shown for event, parent in events for shown in masker.events(event, parent)]


def test_a_stream_of_events() -> None:
    masker = Masker(["sk-12345678"])
    done = Done(Result(text="my sk-12345678 is"))
    out = stream(
        masker,
        (Text("1", "my sk-12"), None),
        (Text("s", "sub is"), "call"),
        (ToolResult("t", "sk-12345678"), "call"),
        (Text("1", "345678 is"), None),
        (Reasoning("1", "sk-"), None),
        (ToolCall("t", "bash", "Bash", {"c": "sk-12345678"}), None),
        (Text("2", "void sk-"), None),
        (Retract("2"), None),
        (Text("3", "ends"), None),
        (done, None),
    )
    assert out == [
        (Text("1", "my "), None),
        (Text("s", "sub i"), "call"),
        (Text("s", "s"), "call"),
        (ToolResult("t", MASK), "call"),
        (Text("1", f"{MASK} i"), None),
        (Text("1", "s"), None),
        (Reasoning("1", "sk-"), None),
        (ToolCall("t", "bash", "Bash", {"c": MASK}), None),
        (Text("2", "void "), None),
        (Retract("2"), None),
        (Text("3", "end"), None),
        (Text("3", "s"), None),
        (Done(Result(text=f"my {MASK} is")), None),
    ]


def test_a_text_does_not_pass_one_that_is_held_back() -> None:
    masker = Masker(["sk-12345678"])
    out = stream(
        masker, (Text("1", "a s"), None), (Text("2", "b"), None), (Reasoning("2", "s"), None), (Text("2", "!"), None)
    )
    assert [event for event, _ in out] == [
        Text("1", "a "),
        Text("1", "s"),
        Text("2", "b"),
        Reasoning("2", "s"),
        Text("2", "!"),
    ]


@pytest.mark.parametrize("between", [Text("2", "b"), Reasoning("1", "b"), ToolCall("t", "bash", "Bash", {})])
def test_a_secret_is_caught_around_another_event(between: Event) -> None:
    for cut in range(1, 11):
        masker = Masker(["sk-12345678"])
        out = stream(
            masker,
            (Text("1", "sk-12345678"[:cut]), None),
            (between, None),
            (Text("1", "sk-12345678"[cut:] + "!"), None),
        )
        shown = "".join(event.delta for event, _ in out if isinstance(event, Text) and event.item == "1")
        assert shown == {1: "s", 2: "sk", 3: "sk-"}.get(cut, MASK) + MASK + "!"


def test_what_another_text_followed_is_remembered_only_so_long() -> None:
    masker = Masker(["sk-12345678"])
    for number in range(1000):
        stream(masker, (Text(f"{number}", "is"), None))
    assert len(masker.carry()["held"]) < 20


def test_a_state_of_before_is_read() -> None:
    masker = Masker(["sk-12345678"])
    masker.feed("i", "sk-1234")
    carried = masker.carry()
    carried["held"] = {item: numbers[:2] for item, numbers in carried["held"].items()}
    other = Masker(["sk-12345678"])
    other.resume(carried)
    assert other.feed("i", "5678!") == f"{MASK}!"


WHO = st.sampled_from([(Text, "1"), (Text, "2"), (Reasoning, "1")])


@settings(max_examples=400, deadline=None)
@given(SECRETS, st.data())
def test_texts_come_in_their_order_and_no_secret_is_shown(secrets: list[str], data: st.DataObject) -> None:
    forms = sorted({f for s in secrets for f in (s, s[:-1], s[1:], s[:4], s[4:])})
    cut = st.sampled_from([*forms, "a", "b", "-", "x"]).flatmap(
        lambda piece: st.integers(0, len(piece)).map(lambda at: (piece[:at], piece[at:]))
    )
    given = data.draw(st.lists(st.tuples(WHO, cut.flatmap(st.sampled_from)), max_size=14))
    masker = Masker(secrets)
    out: list[tuple[Event, str | None]] = []
    for (kind, item), delta in given:
        out += masker.events(kind(item, delta))
        carried = json.loads(json.dumps(masker.carry()))
        masker = Masker(secrets)  # another process goes on
        masker.resume(carried)
    out += masker.rest()
    said, shown = merged(kind(item, delta) for (kind, item), delta in given), merged(event for event, _ in out)
    # The same turns of speech in the same order. One that has only the rest of a secret that is masked says nothing.
    left = iter(said)
    assert all(any(who == spoke for spoke, _ in left) for who, _ in shown)
    if not any(MASK in text for _, text in shown):
        assert shown == said
    for one in {who for who, _ in said}:
        whole = "".join(text for who, text in shown if who == one).replace(MASK, "\0")
        assert not any(secret in whole for secret in secrets)
    if len(said) == 1:
        assert "".join(text for _, text in shown) == Masker(secrets).mask(said[0][1])


def merged(events: Any) -> list[tuple[Any, str]]:
    """Who says what: deltas of one text that follow each other are one."""
    out: list[tuple[Any, str]] = []
    for event in events:
        who = (type(event), event.item)
        if event.delta and out and out[-1][0] == who:
            out[-1] = (who, out[-1][1] + event.delta)
        elif event.delta:
            out.append((who, event.delta))
    return out


def test_it_does_not_tell_its_secrets() -> None:
    assert "12345678" not in repr(Masker(["sk-12345678"]))


def test_it_is_quick_with_long_texts_and_long_secrets() -> None:
    import time

    masker: Any = Masker(
        [f"-----BEGIN KEY-----{'QUJD' * 400}{n}" for n in range(3)] + [f"sk-{n:020}" for n in range(10)]
    )
    started = time.process_time()
    for _ in range(2000):
        masker.feed("i", "Some words of a model, ")
    took = time.process_time() - started
    print(f"{took / 2000 * 1e6:.0f} us per delta")
    assert took < 2
