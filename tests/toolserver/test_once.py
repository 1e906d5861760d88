"""A call of the app's tool runs once, and its answer comes to the agent once: over kills, detaching and cancelling."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.programs import ALL, CODEX, FAKE_PROGRAM, GEMINI, Program, ids
from tests.toolserver.app import pay, who
from tests.toolserver.test_rules import BY_HAND
from tests.toolserver.test_tools import APP, calling, told

import hostler
from hostler.harness import Done, State, ToolResult
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer
from hostler.toolserver import OUTCOME_UNKNOWN
from hostler.types.tools import ToolContext

pytestmark = pytest.mark.usefixtures("nothing_left")


def results(session: Any, until: str | None = None) -> list[tuple[str, bool]]:
    """All tool results of the journal, up to the `Done` of a turn (or the first one)."""
    found = []
    for record in session.follow(0):
        if isinstance(record.event, ToolResult):
            found.append((record.event.output, record.event.is_error))
        if isinstance(record.event, Done) and until in (None, record.turn):
            return found
    raise AssertionError("the journal ended")


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_tool_whose_app_was_killed_in_it_is_not_run_again(
    program: Program, models: ModelServer, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    job = {
        "harness": program.name,
        "options": program.options(models),
        "prompt": calling(program, ("pay", {"ledger": str(ledger)})),
    }
    done = subprocess.run(
        [sys.executable, str(APP), json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "DIE_IN_TOOL": "1"},
    )
    assert done.returncode == -9, done.stderr
    with hostler.agent_resume(State.loads(done.stdout.strip()), tools=[who, pay], **program.options(models)) as session:
        assert results(session) == [(OUTCOME_UNKNOWN.text, True)]
        assert len(ledger.read_text().splitlines()) == 1
        result = session.run(calling(program, ("pay", {"ledger": str(ledger)})))  # it can be called anew
        assert told(result) == [("paid", False)]
        assert len(ledger.read_text().splitlines()) == 2


@pytest.mark.parametrize("died", ["end", "done"])
@pytest.mark.parametrize("program", BY_HAND, ids=ids)
def test_a_call_that_outlives_its_turn_and_its_app_is_not_run_in_the_next_turn(
    program: Program, died: str, models: ModelServer, tmp_path: Path, workspace: Path
) -> None:
    """Its request is still unanswered, so it is given to the next app: which knows that it came before its own turn.
    ``died``: when the program had ended the turn, or when the turn had its Done."""
    shutil.copy(Path(__file__).with_name("thief.py"), workspace)
    ledger = tmp_path / "ledger"
    call = shlex.quote(json.dumps([{"name": "pay", "arguments": {"ledger": str(ledger)}}]))
    steal = f"setsid {sys.executable} thief.py {call} > stolen 2>&1 & until [ -e {ledger} ]; do sleep 0.05; done"
    job = {
        "harness": program.name,
        "options": program.options(models),
        "workspace": str(workspace),
        "prompt": program.shell(steal),
    }
    done = subprocess.run(
        [sys.executable, str(APP), json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "DIE_BEHIND_TURN": died},
    )
    assert done.returncode == -9, done.stderr
    state = State.loads(done.stdout.strip())
    box = hostler.sandbox.local(workspace)
    with hostler.agent_resume(state, tools=[who, pay], sandbox=box, **program.options(models)) as session:
        waiting = "until [ -s stolen ]; do sleep 0.05; done; cat stolen"
        result = session.run(program.shell(waiting))
        assert (session.resumed, result.stop_reason) == ("attached", "done")
        ((answer,),) = [json.loads(output) for output, _ in told(result)]
        assert answer[2] is True, answer
        assert len(ledger.read_text().splitlines()) == 1


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_a_tool_that_runs_while_the_app_detaches_gives_its_answer_once(program: Program, models: ModelServer) -> None:
    runs: list[str] = []
    began, go = threading.Event(), threading.Event()

    def slow(word: str) -> str:
        """Waits."""
        runs.append(word)
        began.set()
        assert go.wait(30)
        return f"slow {word}"

    options = program.options(models)
    session = hostler.agent_session(program.harness, tools=[slow], **options)
    first = session.stream(calling(program, ("slow", {"word": "a"})))
    assert began.wait(30)
    state = session.detach()
    threading.Timer(0.5, go.set).start()
    session = hostler.agent_resume(state, tools=[slow], **options)
    list(first)
    assert told(first.result) == [("slow a", False)]
    began.clear(), go.clear()
    second = session.stream(calling(program, ("slow", {"word": "b"})))
    assert began.wait(30)
    job = {"state": session.detach().dumps().decode(), "options": options}
    child = subprocess.Popen([sys.executable, "-c", CHILD, json.dumps(job)], stdout=subprocess.PIPE, text=True)
    time.sleep(1.5)  # it has the session now, and waits for what this process still runs
    go.set()
    output, _ = child.communicate(timeout=60)
    assert [json.loads(line) for line in output.splitlines()] == [["slow a", False], ["slow b", False]]
    list(second)
    assert told(second.result) == [("slow b", False)]
    assert runs == ["a", "b"]


CHILD = """
import json, sys
import hostler
from hostler.harness import Done, State, ToolResult

def slow(word: str) -> str:
    "Waits."
    return "again"

job = json.loads(sys.argv[1])
done = 0
with hostler.agent_resume(State.loads(job["state"]), tools=[slow], **job["options"]) as session:
    for record in session.follow(0):
        if isinstance(record.event, ToolResult):
            print(json.dumps([record.event.output, record.event.is_error]))
        done += isinstance(record.event, Done)
        if done == 2:
            break
"""


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_cancel_ends_a_tool_within_seconds(program: Program, models: ModelServer) -> None:
    began, heard = threading.Event(), threading.Event()

    def slow(context: ToolContext) -> None:
        """Waits."""
        began.set()
        if context.cancel.wait(30):
            heard.set()

    async def aslow() -> None:
        """Waits, too."""
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            heard.set()

    with hostler.agent_session(program.harness, tools=[slow, aslow], **program.options(models)) as session:
        for name in ("slow", "aslow"):
            began.clear(), heard.clear()
            stream = session.stream(calling(program, (name, {})))
            assert began.wait(30)
            start = time.monotonic()
            session.cancel()
            assert time.monotonic() - start < 5
            assert heard.wait(5)
            list(stream)
            assert stream.result.stop_reason == "cancelled"


def test_cancel_at_any_moment_runs_a_call_at_most_once(models: ModelServer) -> None:
    """Around the beginning, the end and the answer of an approved tool."""
    runs: Counter[str] = Counter()

    def pay(word: str) -> str:
        """Pays."""
        runs[word] += 1
        time.sleep(random.random() * 0.01)
        return word

    options = {**FAKE_PROGRAM.options(models), "permissions": "ask", "on_approval": lambda a: True}
    state: State | None = None
    for round in range(6):
        opened = hostler.agent_resume(state, tools=[pay], **options) if state else None
        session = opened or hostler.agent_session(FAKE, tools=[pay], **options)
        for number in range(5):
            stream = session.stream(calling(FAKE_PROGRAM, ("pay", {"word": f"{round}.{number}"})))
            time.sleep(random.random() * 0.08)
            stream.cancel()
            list(stream)
            assert stream.result.stop_reason in ("cancelled", "done")
        state = session.detach()
    assert state is not None
    with hostler.agent_resume(state, tools=[pay], **options) as session:
        assert session.run("[]").stop_reason == "done"
    assert set(runs.values()) <= {1}


@pytest.mark.parametrize("program", ALL, ids=ids)
def test_large_results_are_files_and_arguments_may_be_large(program: Program, models: ModelServer) -> None:
    rows = [{"id": number, "name": f"row {number}"} for number in range(2000)]

    def table(context: ToolContext, name: str) -> Any:
        """A table."""
        context.files.write("seen.txt", f"{context.session} {context.extra_body}".encode())
        return rows

    def size(text: str) -> int:
        """Counts."""
        return len(text)

    def run(name: str, arguments: dict[str, Any], *more: dict[str, Any]) -> Any:
        """The model's answers are queued, not in the prompt: that may not be as large as an argument."""
        if program.fake:
            return session.run(json.dumps([{"mcp": name, "arguments": arguments}, *more, {"text": "done"}]))
        prefix = {"opencode": "host_", "codex": "", "gemini_cli": "mcp_host_"}.get(program.name, "mcp__host__")
        native = f"{prefix}{name}"
        space = {"namespace": "mcp__host"} if program is CODEX else {}
        models.script([{"tool": native, "args": arguments, **space}, *more, {"text": "done"}])
        return session.run("go")

    with hostler.agent_session(program.harness, tools=[table, size], **program.options(models)) as session:
        result = run("table", {"name": "a"}, {"shell": 'wc -c "$HOSTLER_ARTIFACTS"/tool-results/table/*'})
        (text, bad), (counted, _) = told(result)
        assert not bad
        assert '2000 of {"id": integer, "name": string}' in text
        path = text.splitlines()[0].removeprefix("The result was put into the file ")
        assert json.loads(session.files.read(path)) == rows
        assert counted.split()[0] == str(len(session.files.read(path)))
        (file,) = result.artifacts
        assert file.path.startswith("/artifacts/tool-results/table/")
        assert json.loads(session.artifacts.read(file.path)) == rows
        assert session.files.read("seen.txt").decode() == f"{session.key} None"
        letters = 1_000_000 if program in (CODEX, GEMINI) else 10_000_000  # it can ten, in as many seconds
        assert told(run("size", {"text": "x" * letters})) == [(str(letters), False)]


def test_the_store_forgets_the_calls_of_a_turn_that_is_over(models: ModelServer, state_dir: Path) -> None:
    import sqlite3

    rows: list[Any] = []

    def look() -> str:
        """Looks."""
        with sqlite3.connect(state_dir / "store.db") as database:
            rows.extend(database.execute("select turn, tool, outcome from tool_calls").fetchall())
        return "seen"

    with hostler.agent_session(FAKE, tools=[look], **FAKE_PROGRAM.options(models)) as session:
        result = session.run(calling(FAKE_PROGRAM, ("look", {}), ("look", {})))
        with sqlite3.connect(state_dir / "store.db") as database:
            assert database.execute("select count(*) from tool_calls").fetchone() == (0,)
    outcome = json.dumps({"text": "seen", "is_error": False})
    assert rows[0] == (result.turn_id, "look", None)
    assert sorted(rows[1:], key=str) == sorted(
        [(result.turn_id, "look", outcome), (result.turn_id, "look", None)], key=str
    )
