"""Questions that are answered from any process, once or for good."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import Answered, Approval, Done
from hostler.store import Store, approvals, queries
from hostler.testing.fake_runtime import FakeCodec, FakeRuntime
from hostler.testing.model_server import ModelServer
from hostler.types.runtime import CodecState, Folded, Frame, Send
from tests.conftest import wait_until
from tests.sessions.programs import ALL, FAKE_PROGRAM, REAL, Program, ids
from tests.sessions.test_kill import App
from tests.sessions.test_restart import asking, job_of, journal, of_turn, state_of

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness


def new_session(conn: Any) -> Any:
    return queries.create_session(
        conn, key="k", harness="fake", new_id="n", workdir="/w", owned=True, rules={}, callables=[], now=1.0
    )


def cli(*arguments: str, code: int = 0) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "hostler.cli", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == code, ran.stderr + ran.stdout
    return ran.stdout + ran.stderr


def question_in(listing: str, key: str) -> str:
    (line,) = [line for line in listing.splitlines() if line.startswith(key)]
    return line.split()[1]


def shell_question(command: str, *more: dict[str, Any]) -> str:
    return json.dumps([{"approve": "Bash", "input": {"command": command}}, *more, {"text": "after"}])


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_question_of_a_killed_app_is_answered_from_the_command_line(
    program: Program, models: ModelServer, workspace: Path
) -> None:
    options = program.options(models)
    app = App(job_of(program, {**options, "permissions": "ask"}, workspace, asking(program)))
    app.until("event Approval")
    app.kill()
    state = state_of(app)
    id = question_in(cli("approvals"), state.session)
    assert "allowed" in cli("answer", state.session, id, "--allow")
    assert "answered, not given yet" in cli("approvals", state.session)
    assert "answered already" in cli("answer", state.session, id, "--deny", code=2)
    with hostler.agent_resume(state, sandbox=hostler.sandbox.local(workspace), **options) as session:
        result = session.run(program.recall())
        records = journal(session, result.turn_id)
        assert session.approvals() == []
    (answered,) = [event for event in of_turn(records, 1) if isinstance(event, Answered)]
    assert (answered.id, answered.allow) == (id, True)
    assert (workspace / "ran.txt").exists()
    assert "no open approvals" in cli("approvals")


@pytest.mark.parametrize("program", REAL, ids=ids)
def test_an_answer_is_not_lost_when_the_model_fails_behind_it(
    program: Program, models: ModelServer, workspace: Path
) -> None:
    """Nor asked for again: the tool has run, the turn ends with the model's failure, and the session goes on."""
    options = program.options(models)
    app = App(job_of(program, {**options, "permissions": "ask"}, workspace, asking(program)))
    app.until("event Approval")
    app.kill()
    state = state_of(app)
    models.script([{"error": 400, "message": "out of hay"}])
    cli("answer", state.session, question_in(cli("approvals"), state.session), "--allow")
    with hostler.agent_resume(state, sandbox=hostler.sandbox.local(workspace), **options) as session:
        result = session.run("And now? @@{}@@")
        assert (result.stop_reason, result.error) == ("done", None)
        events = of_turn(journal(session, result.turn_id), 1)
    assert [event.allow for event in events if isinstance(event, Answered)] == [True]
    assert len([event for event in events if isinstance(event, Approval)]) == 1
    assert events[-1].result.stop_reason == "error"
    assert "out of hay" in events[-1].result.error.message
    assert (workspace / "ran.txt").read_text() == "ran\n"


@pytest.mark.parametrize("allow", [True, False])
def test_a_process_answers_what_another_one_runs(allow: bool, models: ModelServer, workspace: Path) -> None:
    options = FAKE_PROGRAM.options(models)
    app = App(job_of(FAKE_PROGRAM, {**options, "permissions": "ask"}, workspace, asking(FAKE_PROGRAM)))
    app.until("event Approval")
    state = state_of(app)
    session = hostler.agent_resume(state, sandbox=hostler.sandbox.local(workspace), **options)
    (approval,) = session.approvals()
    session.answer(approval.id, allow, None if allow else "not today")
    with pytest.raises(hostler.HarnessError, match=r"answered already|no open approval"):
        session.answer(approval.id, allow)
    app.until("result")
    app.process.wait(20)
    app.kill()
    result = session.run("bye")
    (answered,) = [r.event for r in journal(session, result.turn_id) if isinstance(r.event, Answered)]
    session.close()
    assert (answered.id, answered.allow) == (approval.id, allow)
    assert answered.reason == (None if allow else "not today")


def test_an_answer_for_good(models: ModelServer, workspace: Path) -> None:
    """Of a shell command only the same command is meant; it holds in the next process and is given without a word."""
    options = {**FAKE_PROGRAM.options(models), "sandbox": hostler.sandbox.local(workspace)}
    asked: list[str] = []

    def events(session: Any, prompt: str, **answer: Any) -> list[Any]:
        seen = []
        for event in session.stream(prompt):
            seen.append(event)
            if isinstance(event, Approval) and event.id in [a.id for a in session.approvals()] and answer:
                asked.append(event.input["command"])
                event.allow(**answer)
        return seen

    with hostler.agent_session(FAKE, permissions="ask", **options) as session:
        events(session, shell_question("git status"), always=True)
        state = session.detach()
    with hostler.agent_resume(state, **options) as session:
        again = events(session, shell_question("git status"))
        assert isinstance(again[-1], Done)
        assert again[-1].result.stop_reason == "done"
        events(session, shell_question("git status; rm x"), always=False)
        records = journal(session, session.run("x").turn_id)
    assert asked == ["git status", "git status; rm x"]
    assert [r.event.allow for r in records if isinstance(r.event, Answered)] == [True, True, True]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (("edit", {"path": "a", "call": 1}), ("edit", {"path": "b", "call": 2}), True),
        (("edit", {"path": "a"}), ("write", {"path": "a"}), False),
        (("bash", {"command": "ls", "call": 1, "reason": "x"}), ("bash", {"command": "ls", "call": 2}), True),
        (("bash", {"command": "ls"}), ("bash", {"command": "ls; rm x"}), False),
        (("permissions", {"permissions": {"net": 1}}), ("permissions", {"permissions": {"net": 2}}), False),
        (("mcp", {"server": "a", "message": "add?"}), ("mcp", {"server": "a", "message": "remove?"}), False),
        (("odd", ["no", "dict"]), ("odd", None), True),
    ],
)
def test_which_questions_are_alike(one: Any, other: Any, alike: bool, tmp_path: Path) -> None:
    async def work() -> bool | None:
        store = Store.open(str(tmp_path / "store.db"))
        row = await store.write(new_session)
        await store.write(lambda conn: approvals.remember(conn, row.id, Approval("1", *one), True))
        known = await store.read(lambda conn: approvals.remembered(conn, row.id, Approval("2", *other)))
        store.close()
        return known

    assert asyncio.run(work()) is (True if alike else None)


def test_of_many_answers_one_counts(models: ModelServer) -> None:
    with hostler.agent_session(FAKE, permissions="ask", **FAKE_PROGRAM.options(models)) as session:
        stream = session.stream(shell_question("ls"))
        for event in stream:
            if isinstance(event, Approval):
                threads = [threading.Thread(target=_quietly, args=(session, event.id, n % 2 == 0)) for n in range(10)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(20)
        records = journal(session, stream.result.turn_id)
    assert len([r for r in records if isinstance(r.event, Answered)]) == 1
    assert stream.result.stop_reason == "done"


def _quietly(session: Any, id: str, allow: bool) -> None:
    try:
        session.answer(id, allow)
    except hostler.HarnessError as error:
        assert "open approval" in str(error) or "answered" in str(error)


def test_what_is_not_asked_cannot_be_answered(models: ModelServer, state_dir: Path) -> None:
    with hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models)) as session:
        session.run("hi")
        with pytest.raises(hostler.HarnessError, match="no open approval 'nonsense'"):
            session.answer("nonsense", True)
        assert session.approvals() == []
        key = session.key
    assert "no open approval" in cli("answer", key, "nonsense", "--allow", code=2)
    assert "There is no session" in cli("answer", "nobody", "x", "--deny", code=2)


LATE = """
import json, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
answered = None
def say(**message):
    print(json.dumps(message), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["op"] == "hello":
        say(ev="ready", session=options["--session"])
    elif message["op"] == "answer":
        answered = message["reason"]
    elif message["op"] == "prompt":
        say(ev="end", turn=message["turn"], stop="done", text=f"answered: {answered}", output=None, error=None)
        say(ev="ask", id="late", tool="Bash", input={})
"""


class LateCodec(FakeCodec):
    """Answers what is asked behind the end of a turn, as the codecs of real programs do."""

    def fold(self, state: CodecState, item: Any) -> Folded:
        if isinstance(item, Frame) and b'"ask"' in item.data and state["turn"] is None:
            answer = {"op": "answer", "id": "late", "allow": False, "reason": "it is over"}
            return Folded(state, sends=(Send("answer:late", json.dumps(answer).encode()),))
        return super().fold(state, item)


def test_what_is_asked_between_turns_is_answered_before_the_next_prompt(models: ModelServer, tmp_path: Path) -> None:
    """Case H02: a program that waits for an answer would not hear the prompt."""

    class Late(FakeRuntime):
        codec = LateCodec()

    program = tmp_path / "late.py"
    program.write_text(LATE)
    options = {**FAKE_PROGRAM.options(models), "options": {"program": [sys.executable, str(program)]}}
    with hostler.agent_session(Late(), **options) as session:
        assert session.run("one").text == "answered: None"
        assert wait_until(lambda: session.run("again").text == "answered: it is over", 10)
