"""An app that restarts in the middle of a turn: at a question, in a stream, in a tool, under much output; and upgrades."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import (
    Answered,
    Approval,
    Done,
    Record,
    Retract,
    State,
    StateIncompatible,
    Text,
    ToolCall,
    ToolResult,
)
from hostler.keeper import launch
from hostler.testing.model_server import ModelServer
from tests.conftest import keepers_of, processes_of, wait_until
from tests.sessions.programs import ALL, FAKE_PROGRAM, GEMINI, Program, ids
from tests.sessions.test_kill import App, journal

pytestmark = pytest.mark.usefixtures("nothing_left")


def job_of(program: Program, options: dict[str, Any], workspace: Path, *prompts: str, **more: Any) -> dict[str, Any]:
    return {
        "harness": program.name,
        "options": options,
        "prompts": [program.say("CODEWORD-one"), *prompts],
        "workspace": str(workspace),
        **more,
    }


def state_of(app: App) -> State:
    return State.loads(next(line[6:] for line in reversed(app.lines) if line.startswith("state ")))


def of_turn(records: list[Record], number: int) -> list[Any]:
    turns = list(dict.fromkeys(record.turn for record in records))
    return [record.event for record in records if record.turn == turns[number]]


# ---- at a question --------------------------------------------------------------------------------------------------


def asking(program: Program) -> str:
    """A prompt whose tool needs an approval, and leaves a file when it gets it."""
    if program.fake:
        steps: list[Any] = [{"approve": "Shell", "input": {"command": "x"}}, {"write": "ran.txt", "content": "ran"}]
        return "CODEWORD-two\n" + json.dumps([*steps, {"text": "after"}])
    return program.shell("echo ran > ran.txt", "CODEWORD-two")


@pytest.mark.parametrize("how", ["on_approval", "answer", "nobody"])
@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_question_outlives_the_app_that_was_asked(
    program: Program, how: str, models: ModelServer, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "nobody":
        monkeypatch.setenv("HOSTLER_APPROVAL_TTL", "1")
    options = program.options(models)
    app = App(
        job_of(program, {**options, "permissions": "ask"}, workspace, asking(program), callback=how == "on_approval")
    )
    app.until("event Approval")
    app.kill()
    asked: list[Approval] = []

    def allow(approval: Approval) -> bool:
        asked.append(approval)
        return True

    more = {"on_approval": allow} if how == "on_approval" else {}
    box = hostler.sandbox.local(workspace)
    with hostler.agent_resume(state_of(app), sandbox=box, **options, **more) as session:
        if how == "answer":
            (approval,) = session.approvals()
            session.answer(approval.id, True)
        result = session.run(program.recall())
        records = journal(session, result.turn_id)
    assert "CODEWORD-two" in result.text
    events = of_turn(records, 1)
    approvals = [event for event in events if isinstance(event, Approval)]
    answers = [event for event in events if isinstance(event, Answered)]
    assert len(approvals) == len(answers) == 1
    assert answers[0].id == approvals[0].id
    assert answers[0].allow is (how != "nobody")
    assert [a.id for a in asked] == ([approvals[0].id] if how == "on_approval" else [])
    assert events[-1].result.stop_reason == "done"
    if how == "nobody":
        assert "Nobody answered" in str(answers[0].reason)
    if not (program.fake and how == "nobody"):
        assert (workspace / "ran.txt").exists() is (how != "nobody")


# ---- in a stream and in a tool --------------------------------------------------------------------------------------

ANSWER = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu"


def streaming() -> str:
    """A prompt that is answered slowly, word by word, by the model."""
    steps = json.dumps({"text": ANSWER, "chunks": 12, "chunk_delay": 0.15})
    return "CODEWORD-two\n" + json.dumps([{"model": f"@@{steps}@@"}])


def test_an_answer_that_was_cut_by_a_restart_is_told_once(models: ModelServer, workspace: Path) -> None:
    """The real programs: the conformance row `restart`."""
    program = FAKE_PROGRAM
    options = program.options(models)
    app = App(job_of(program, options, workspace, streaming()))
    app.until("result")
    before = len(app.lines)
    while sum(line == "event Text" for line in app.lines[before:]) < 3:
        app.until("event Text")
    app.kill()
    with hostler.agent_resume(state_of(app), sandbox=hostler.sandbox.local(workspace), **options) as session:
        result = session.run(program.recall())
        records = journal(session, result.turn_id)
        assert session.resumed == "attached"
    assert "CODEWORD-one" in result.text
    assert "CODEWORD-two" in result.text
    events = of_turn(records, 1)
    assert [type(event) for event in events].count(Done) == 1
    done = events[-1].result
    assert (done.stop_reason, done.error) == ("done", None)
    assert done.text == ANSWER
    assert any(isinstance(event, Retract) for event in events)
    shown: dict[str, str] = {}  # what a follower that heeds Retract has on its screen at the end
    for event in events:
        if isinstance(event, Text):
            shown[event.item] = shown.get(event.item, "") + event.delta
        elif isinstance(event, Retract):
            shown.pop(event.item, None)
    assert "".join(shown.values()) == ANSWER
    assert [record.seq for record in records] == list(range(1, len(records) + 1))


def test_a_tool_that_runs_while_the_app_restarts_runs_once(models: ModelServer, workspace: Path) -> None:
    """The real programs: the conformance row `restart-in-tool`."""
    program = FAKE_PROGRAM
    options = program.options(models)
    command = "echo begun >> log.txt; sleep 1.5; echo ended >> log.txt"
    app = App(job_of(program, options, workspace, program.shell(command, "CODEWORD-two")))
    app.until("result")
    assert wait_until((workspace / "log.txt").exists, 20)
    app.kill()
    assert (workspace / "log.txt").read_text() == "begun\n"
    with hostler.agent_resume(state_of(app), sandbox=hostler.sandbox.local(workspace), **options) as session:
        result = session.run(program.recall())
        records = journal(session, result.turn_id)
    assert "CODEWORD-two" in result.text
    events = of_turn(records, 1)
    assert events[-1].result.stop_reason == "done"
    assert [type(event) for event in events].count(Done) == 1
    calls = [event.id for event in events if isinstance(event, ToolCall)]
    assert len(calls) == 1
    assert [event.id for event in events if isinstance(event, ToolResult)] == calls
    assert (workspace / "log.txt").read_text() == "begun\nended\n"


# ---- before the first step of the turn is stored ---------------------------------------------------------------------


def with_keeper(fate: str, programs: list[Any]) -> list[Any]:
    params = (each if isinstance(each, Program) else each.values[0] for each in programs)
    marks = (() if isinstance(each, Program) else each.marks for each in programs)
    return [pytest.param(p, fate, marks=m, id=f"{p.name}-{fate}") for p, m in zip(params, marks, strict=True)]


# Whether Gemini CLI's answer broke off only the host has seen, which dies here with the keeper.
ITS_LOG_TELLS = [each for each in ALL if isinstance(each, Program) or each.values[0] is not GEMINI]


@pytest.mark.parametrize("when", ["in a tool", "when the turn is over"])
@pytest.mark.parametrize(("program", "keeper"), with_keeper("lives", ALL) + with_keeper("dies", ITS_LOG_TELLS))
def test_a_prompt_that_the_store_does_not_know_to_be_given_is_not_given_again(
    program: Program, when: str, keeper: str, models: ModelServer, state_dir: Path, workspace: Path
) -> None:
    """The program has its prompt before the step that says so is committed: its log tells whoever comes next."""
    options = program.options(models)
    command = f"echo begun >> log.txt; sleep {2 if when == 'in a tool' else 0}; echo ended >> log.txt"
    app = App(job_of(program, options, workspace, program.shell(command, "CODEWORD-two"), unwritten=1))
    app.until("state", 2)
    log = workspace / "log.txt"
    assert wait_until(log.exists, 20)
    if when == "when the turn is over":
        assert wait_until(lambda: said_it_all(program, state_dir), 20)
    app.kill()
    if keeper == "dies":
        (holder,) = keepers_of(state_dir)
        holder.kill()
        assert wait_until(lambda: not processes_of(state_dir), 10)
    with hostler.agent_resume(state_of(app), sandbox=hostler.sandbox.local(workspace), **options) as session:
        result = session.run(program.recall())
        records = journal(session, result.turn_id)
    assert "CODEWORD-one" in result.text
    events = of_turn(records, 1)
    assert [type(event) for event in events].count(Done) == 1
    done = events[-1].result
    lost = keeper == "dies" and when == "in a tool"
    assert done.stop_reason == ("error" if lost else "done"), done.error
    if lost:
        assert done.error.code == "program_lost"
    else:
        assert "CODEWORD-two" in result.text
    calls = [event.id for event in events if isinstance(event, ToolCall)]
    assert len(calls) == 1
    assert log.read_text() == ("begun\n" if lost else "begun\nended\n")
    assert [record.seq for record in records] == list(range(1, len(records) + 1))


ENDS = {"fake": b'"end"', "claude_code": b'"type":"result"', "codex": b"turn/completed", "pi": b"agent_end"}


def said_it_all(program: Program, state_dir: Path) -> bool:
    """Whether the log of the program's keeper holds the end of its second turn."""
    (spool,) = state_dir.glob("**/spool")
    said = b"".join(part.read_bytes() for part in sorted(spool.iterdir()))
    return said.count(ENDS.get(program.name, b'"stopReason"')) >= 2


def test_detaching_does_not_wait_for_a_turn_that_was_found(
    models: ModelServer, state_dir: Path, workspace: Path
) -> None:
    program = FAKE_PROGRAM
    options = program.options(models)
    command = "until [ -e go ]; do sleep 0.05; done; echo ended > log.txt"
    app = App(job_of(program, options, workspace, program.shell(command, "CODEWORD-two")))
    app.until("event ToolCall")
    app.kill()
    state = state_of(app)
    box = hostler.sandbox.local(workspace)
    for _ in range(2):
        state = hostler.agent_resume(state, sandbox=box, **options).detach()
    assert not (workspace / "log.txt").exists()
    assert len(keepers_of(state_dir)) == 1
    (workspace / "go").touch()
    with hostler.agent_resume(state, sandbox=box, **options) as session:
        assert "CODEWORD-two" in session.run(program.recall()).text
        assert session.resumed == "attached"
    assert (workspace / "log.txt").read_text() == "ended\n"


# ---- much output ----------------------------------------------------------------------------------------------------


def resident(pid: int) -> float:
    """Megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


@pytest.mark.parametrize(
    ("megabytes", "limit"),
    [
        pytest.param(8, 2 << 20, id="over the bound"),
        pytest.param(8, 1 << 30, id="within it"),
        pytest.param(200, 1 << 30, id="200 MB", marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
        pytest.param(200, 32 << 20, id="200 MB over the bound", marks=[pytest.mark.soak, pytest.mark.timeout(300)]),
    ],
)
def test_much_output_while_nobody_is_attached(
    megabytes: int, limit: int, models: ModelServer, state_dir: Path, workspace: Path
) -> None:
    """Bounded in memory and on disk, and nothing is lost: at the bound the program waits."""
    options = FAKE_PROGRAM.options(models)
    size = 20_000
    count = megabytes * 1_000_000 // size
    flood = json.dumps([{"text": "a"}, {"sleep": 1}, {"deltas": count, "size": size}, {"text": "the end"}])
    app = App(job_of(FAKE_PROGRAM, options, workspace, flood), HOSTLER_SPOOL_LIMIT=str(limit))
    app.until("result")
    app.until("event Text")
    app.kill()
    (keeper,) = keepers_of(state_dir)
    (spool,) = state_dir.glob("sessions/*/private/keeper/*/spool")

    def written() -> int:
        return sum(path.stat().st_size for path in spool.glob("*"))

    whole = min(limit, count * size)
    assert wait_until(lambda: written() >= whole, 60)
    time.sleep(0.3)
    if limit == whole:  # else the last message, which holds the whole text once more, comes on top
        assert written() < whole + (2 << 20)
    assert resident(keeper.pid) < 25
    with hostler.agent_resume(state_of(app), sandbox=hostler.sandbox.local(workspace), **options) as session:
        records: list[Record] = []
        dones = 0
        for record in session.follow(0):
            records.append(record)
            dones += isinstance(record.event, Done)
            if dones == 2:
                break
        assert session.run(FAKE_PROGRAM.recall()).stop_reason == "done"
        assert resident(keeper.pid) < 25
    text = records[-1].event.result.text
    assert len(text) == 1 + count * size + len("the end")
    assert text.endswith("the end")
    numbers = [int(text[1 + n * size : 1 + n * size + 12].split("x")[0]) for n in range(count)]
    assert numbers == list(range(count))
    assert [record.seq for record in records] == list(range(1, len(records) + 1))


# ---- an upgrade -----------------------------------------------------------------------------------------------------

NEWER = """
import sys
import hostler.keeper
from hostler.keeper import client, launch
from hostler.keeper.holder import frames
folder = sys.argv.pop(1)  # a holder of another version, whose protocol is another number
launch.HOLDER = folder
frames.PROTOCOL = hostler.keeper.PROTOCOL = 99
from tests.sessions.child import main
main()
"""


@pytest.fixture
def newer(models: ModelServer, tmp_path: Path) -> Callable[..., list[str]]:
    """Runs an app (see child.py) with another version of hostler; what it said. It detaches."""
    holder = tmp_path / "keeper" / "holder"
    shutil.copytree(launch.HOLDER, holder)
    source = (holder / "frames.py").read_text()
    assert "PROTOCOL = 1\n" in source
    (holder / "frames.py").write_text(source.replace("PROTOCOL = 1\n", "PROTOCOL = 99\n"))

    def run(**job: Any) -> list[str]:
        job = {"harness": "fake", "options": FAKE_PROGRAM.options(models), "leave": "detach", **job}
        done = subprocess.run(
            [sys.executable, "-c", NEWER, str(holder), json.dumps(job)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


def hostler_kill(key: str) -> None:
    subprocess.run([sys.executable, "-m", "hostler.cli", "kill", key], capture_output=True, timeout=60, check=True)


def test_a_keeper_of_another_version_is_refused_and_left_alone(
    newer: Callable[..., list[str]], models: ModelServer, state_dir: Path
) -> None:
    options = FAKE_PROGRAM.options(models)
    first = newer(prompts=[FAKE_PROGRAM.say("CODEWORD-one")])
    state = State.loads(first[-1].removeprefix("state "))
    (keeper,) = keepers_of(state_dir)
    with pytest.raises(StateIncompatible, match=r"another version of hostler .*protocol 99, .*hostler kill"):
        hostler.agent_resume(state, **options)
    assert keeper.is_running()
    again = newer(resume=state.dumps().decode(), prompts=[FAKE_PROGRAM.recall()])  # the session was not harmed
    assert "resumed attached" in again
    assert "CODEWORD-one" in next(line for line in again if line.startswith("result"))
    hostler_kill(state.session)
    assert processes_of(state_dir) == []
    with hostler.agent_resume(state, **options) as session:
        assert "CODEWORD-one" in session.run(FAKE_PROGRAM.recall()).text
        assert session.resumed == "native"


def test_an_open_session_whose_program_another_version_has_meanwhile(
    newer: Callable[..., list[str]], models: ModelServer, state_dir: Path
) -> None:
    with hostler.agent_session(FAKE_PROGRAM.harness, **FAKE_PROGRAM.options(models)) as session:
        session.run(FAKE_PROGRAM.say("CODEWORD-one"))
        hostler_kill(session.key)
        resume = session.state().dumps().decode()
        assert "resumed native" in newer(resume=resume, prompts=["hi"])
        (keeper,) = keepers_of(state_dir)
        with pytest.raises(StateIncompatible, match="another version of hostler"):
            session.run("CODEWORD-two")
        assert keeper.is_running()
        said = newer(resume=resume, prompts=[FAKE_PROGRAM.recall()])  # the turn that was refused is run there
        result = next(line for line in said if line.startswith("result"))
        assert "CODEWORD-one" in result
        assert "CODEWORD-two" in result
