"""What becomes of a transcript when turns fail, queue, are repeated, or die with their host; with the fake program."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import keepers_of, wait_until
from tests.messages.support import FAKE, Chat, Message, assistant, marks, user

import hostler
from hostler.harness import Accepted, Notice, Started
from hostler.testing.model_server import ModelServer


@pytest.fixture
def chat(models: ModelServer, tmp_path: Path) -> Iterator[Chat]:
    chat = Chat(FAKE, models, tmp_path / "data")
    yield chat
    chat.close()


def script(mark: str, *steps: dict[str, Any]) -> Message:
    return user(f"{mark}\n{json.dumps(list(steps))}")


# ---- any edits, end to end -------------------------------------------------------------------------------------------


def test_after_any_edits_the_program_holds_what_its_caller_says(
    models: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    examples = 60 if os.environ.get("HOSTLER_SOAK") == "1" else 6

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        chat = Chat(FAKE, models, tmp_path_factory.mktemp("data"))
        t: list[Message] = []
        for _ in range(data.draw(st.integers(2, 5))):
            at = data.draw(st.integers(0, len(t)))
            match data.draw(st.sampled_from(["go on", "cut", "delete", "swap", "insert", "replace", "again"])):
                case "cut":
                    t = t[:at]
                case "delete" if at < len(t):
                    del t[at]
                case "swap" if at + 1 < len(t):
                    t[at], t[at + 1] = t[at + 1], t[at]
                case "insert":
                    t.insert(at, data.draw(st.sampled_from([chat.new(), assistant("An800q")])))
                case "replace":
                    t = [chat.new()]
                case "again" if t:
                    t.append(t[0] if t[0]["role"] == "user" else chat.new())
            if not t or t[-1]["role"] == "assistant":
                t.append(chat.new())
            t = chat.say(t)
        chat.close()

    run()


# ---- turns that do not end well --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["all", "question", "nothing"])
@pytest.mark.parametrize(
    "steps",
    [
        [{"text": "An70q"}, {"error": "model_unavailable"}],
        [{"text": "An70q"}, {"exit": 3}],
        [{"text": "An70q"}, {"hang": True}],
        [{"error": "model_unavailable"}],
    ],
)
def test_a_turn_that_failed_is_told_again_or_not_at_all(chat: Chat, steps: list[Any], kept: str) -> None:
    """Nobody knows how much of it the program keeps; so the conversation goes on from before it."""
    t = chat.say([chat.new()])
    failing = script("Un70q", *steps)
    result = chat.send([*t, failing], timeout=0.5)
    assert result.stop_reason in ("error", "timeout")
    partial = [assistant("An70q")] if len(steps) > 1 else []
    after = {"all": [*t, failing, *partial], "question": [*t, failing], "nothing": t}[kept]
    after = chat.say([*after, chat.new()], "forked")
    chat.say([*after, chat.new()], "appended")


def test_a_first_turn_that_failed(chat: Chat) -> None:
    failing = script("Un70q", {"text": "An70q"}, {"error": "model_unavailable"})
    assert chat.send([failing]).stop_reason == "error"
    t = chat.say([chat.new()], "seeded")
    chat.say([*t, chat.new()], "appended")


def test_a_conversation_that_a_failed_turn_began_is_given_up(chat: Chat) -> None:
    t = chat.say([chat.new()])
    t = chat.say([*t, chat.new()])
    before = chat.harness.sessions.get(chat.key).state().native_id
    for other in ([*t[:2], script("Un70q", {"error": "x"})], [script("Un71q", {"exit": 1})]):
        assert chat.send(other).stop_reason == "error"
        assert chat.harness.sessions.get(chat.key).state().native_id == before
    t = chat.say([*t, chat.new()], "appended")  # the one that it had goes on, as if nothing had been
    recall = hostler.generate_harness(harness=chat.harness, prompt='[{"say": "memory"}]', session=chat.key)
    assert recall.context == "native"
    assert marks(recall.text) == marks([m["content"] for m in t if m["role"] == "user"])


def test_a_turn_that_never_reached_the_program_changes_nothing(chat: Chat) -> None:
    t = chat.say([chat.new()])
    slow = hostler.stream_harness(harness=chat.harness, prompt='[{"text": "x"}, {"sleep": 1}]', session=chat.key)
    next(slow)
    waiting = hostler.stream_harness(harness=chat.harness, messages=[*t, chat.new()], session=chat.key)
    assert wait_until(lambda: len(chat.harness.sessions.status(chat.key).waiting) == 1, 5)
    chat.harness.sessions.cancel(chat.key, chat.harness.sessions.status(chat.key).waiting[0])
    assert waiting.wait().stop_reason == "cancelled"
    result = slow.wait()
    # A prompt between is a part of the conversation: who has it goes on, who has not does not get its answer.
    shown = [*t, user('[{"text": "x"}, {"sleep": 1}]'), assistant(result.text), chat.new()]
    assert chat.send(shown).context == "appended"
    chat.say([*t, chat.new()], "forked")


# ---- many at once, and the same again --------------------------------------------------------------------------------


def test_two_clients_with_diverging_transcripts_in_turns_and_at_once(chat: Chat) -> None:
    t = chat.say([chat.new()])
    one, two = [*t, chat.new()], [*t, chat.new()]
    for _ in range(2):
        one, two = [*chat.say(one), chat.new()], [*chat.say(two), chat.new()]
    # The decision is taken when a turn runs, not when it is accepted.
    streams = [
        hostler.stream_harness(harness=chat.harness, messages=messages, session=chat.key)
        for messages in (one, two, one)
    ]
    results = [stream.wait() for stream in streams]
    assert [marks(r.text) for r in results] == [marks(m[-1])[1:] for m in (one, two, one)]
    assert "appended" not in {r.context for r in results[1:]}
    chat.say([*one, assistant(results[2].text), chat.new()], "appended")


def test_a_call_with_a_run_id_runs_once_also_when_its_input_is_forgotten(chat: Chat) -> None:
    t = chat.say([chat.new()])
    messages = [*t, chat.new()]
    results: list[Any] = []

    def call() -> None:
        results.append(chat.send(messages, run_id="r-1", extra_body={"user": 7}))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    call()
    assert len({r.turn_id for r in results}) == 1
    assert len({r.text for r in results}) == 1
    chat.say([*messages, assistant(results[0].text), chat.new()], "appended")
    with pytest.raises(hostler.OptionsMismatch, match="run_id"):
        chat.send([*t, chat.new()], run_id="r-1", extra_body={"user": 7})


def test_the_store_keeps_no_word_of_a_transcript(chat: Chat, tmp_path: Path) -> None:
    t = chat.say([user("The password is xyzzy-41."), assistant("Noted xyzzy-42."), chat.new()], "seeded")
    chat.say([*t, chat.new()], "appended")
    chat.harness.sessions.get(chat.key).stop()
    import sqlite3

    store = sqlite3.connect(tmp_path / "data" / "store.db")
    with store:
        said = json.dumps(
            [row for table in ("turns", "spoken", "sessions") for row in store.execute(f"select * from {table}")]
        )
    store.close()
    assert "xyzzy" not in said


def test_steering_leaves_the_conversation_in_doubt(chat: Chat) -> None:
    t = chat.say([chat.new()])
    waits = script("Un70q", {"text": "An70q"}, {"steered": True})
    stream = hostler.stream_harness(harness=chat.harness, messages=[*t, waits], session=chat.key)
    next(stream)
    told = [*t, waits, user("Un71q")]
    hostler.stream_harness(harness=chat.harness, messages=told, session=chat.key, on_busy="steer").close()
    assert stream.wait().stop_reason == "done"
    assert "Un71q" in stream.result.text
    chat.say([*t, waits, chat.new()], "forked")  # a client that does not show what it steered with


# ---- hosts that die --------------------------------------------------------------------------------------------------


class App:
    """The call in a process of its own."""

    def __init__(self, chat: Chat, messages: list[Message], data_dir: Path, models: ModelServer) -> None:
        job = {"data_dir": str(data_dir), "key": chat.key, "messages": messages, "options": FAKE.options(models)}
        path = Path(__file__).with_name("app.py")
        self.process = subprocess.Popen([sys.executable, str(path), json.dumps(job)], stdout=subprocess.PIPE, text=True)

    def until_its_end(self) -> None:
        assert self.process.stdout is not None
        assert self.process.communicate(timeout=30)[0].split()[-1] == "Done"
        assert self.process.returncode == 0

    def kill_at(self, event: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == event:
                break
        self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.mark.parametrize("begins", ["fork", "seed", "nothing"])
@pytest.mark.parametrize("keeper_too", [False, True])
def test_a_host_that_dies_in_a_turn_leaves_no_wrong_conversation(
    begins: str, keeper_too: bool, models: ModelServer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    chat = Chat(FAKE, models, data)
    t = chat.say([chat.new()])
    t = chat.say([*t, chat.new()])
    chat.harness.sessions.get(chat.key).detach()
    slow = script("Un70q", {"text": "An70q"}, {"sleep": 1.0})
    messages = {"fork": [*t[:2], slow], "seed": [slow], "nothing": [*t, slow]}[begins]
    app = App(chat, messages, data, models)
    app.kill_at("Text")
    if keeper_too:
        for keeper in keepers_of(data):
            os.kill(keeper.pid, signal.SIGKILL)
        assert wait_until(lambda: not keepers_of(data), 5)
    told = [*messages, assistant("An70q"), chat.new()]
    records = hostler.generate_harness(harness=chat.harness, prompt='[{"text": "x"}]', session="another")
    assert records.stop_reason == "done"
    if keeper_too:  # its turn is lost; the conversation that it began is given up, and the one before goes on
        chat.say(told, {"fork": "forked", "seed": "seeded", "nothing": "forked"}[begins])
    else:  # the program went on, and the next host brought the turn to its end
        chat.say(told, "appended")
    chat.harness.sessions.delete("another")
    chat.close()


# ---- what is told of it ----------------------------------------------------------------------------------------------


def test_results_notices_and_records_say_how(chat: Chat) -> None:
    t = [user(f"Un{n}q " + "x" * 10_000) for n in range(2001, 2061)]
    result = chat.send([*t, chat.new()])
    assert result.context == "seeded"
    (warning,) = result.warnings
    assert "oldest of 60 earlier messages were left out" in warning
    records = list(_turn_records(chat, result.turn_id))
    accepted = next(e for e in records if isinstance(e, Accepted))
    assert accepted.preview.startswith("Un1q")
    assert [e.code for e in records if isinstance(e, Notice)] == ["transcript_cut"]
    again = chat.send([chat.new()])
    (started,) = [e for e in _turn_records(chat, again.turn_id) if isinstance(e, Started)]
    assert (again.context, started.resumed) == ("seeded", "replayed")
    state = chat.harness.sessions.get(chat.key).state()
    assert state.native_id is not None


def _turn_records(chat: Chat, turn: str) -> Iterator[Any]:
    follow = chat.harness.sessions.follow(chat.key, after=0)
    for record in follow:
        if record.turn == turn:
            yield record.event
            if type(record.event).__name__ == "Done":
                follow.close()
                return


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({}, "Give either messages=, or type="),
        ({"messages": [user("a")], "prompt": "b"}, "not messages= and prompt="),
        ({"prompt": " \n"}, "The prompt is empty"),
        ({"messages": [user("a")], "type": "x"}, "not messages= and type="),
        ({"messages": []}, "nothing that was said"),
        ({"messages": [user("a"), assistant("b")]}, "from the assistant"),
        ({"messages": [user("a")], "context": "fresh"}, "context must be"),
        ({"prompt": "a", "context": "replay"}, "goes with messages="),
        ({"messages": [user("a")], "input": {}}, "goes with type="),
    ],
)
def test_bad_calls_start_nothing(call: dict[str, Any], said: str, models: ModelServer, tmp_path: Path) -> None:
    chat = Chat(FAKE, models, tmp_path / "data")
    with pytest.raises(ValueError, match=said):
        hostler.stream_harness(harness=chat.harness, session=chat.key, **call)
    assert not (tmp_path / "data").exists()


def test_a_lost_history_is_replayed_when_asked_for_and_never_otherwise(
    models: ModelServer, tmp_path: Path, in_another_process: Any
) -> None:
    chat = Chat(FAKE, models, tmp_path / "data")
    t = in_another_process(chat, [chat.new()])
    (session,) = (tmp_path / "data" / "sessions").iterdir()
    shutil.rmtree(session / "home")
    shutil.rmtree(session / "native")
    t = [*t, chat.new()]
    with pytest.raises(hostler.SessionLost, match='context="replay"'):
        chat.send(t)
    chat.say(t, "seeded", context="replay")
    chat.close()


@pytest.fixture
def in_another_process(models: ModelServer, tmp_path: Path) -> Any:
    """A whole turn of an app that ends behind it; gives the transcript with the answer."""

    def run(chat: Chat, messages: list[Message]) -> list[Message]:
        App(chat, messages, tmp_path / "data", models).until_its_end()
        mark = marks(messages[-1])[-1]  # what its script has it say
        return [*messages, assistant(mark)]

    return run


def test_without_a_key_a_transcript_is_told_to_a_session_of_one_turn(models: ModelServer, tmp_path: Path) -> None:
    chat = Chat(FAKE, models, tmp_path / "data")
    result = hostler.generate_harness(
        harness=chat.harness, messages=[user("Un1q"), assistant("An1q"), user('[{"say": "memory"}, {"text": "An2q"}]')]
    )
    assert result.context == "seeded"
    assert result.text == "An2q"
