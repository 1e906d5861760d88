"""The resume matrix: every program in every plight, to attached, native or a typed error, and never fresh.

The table is printed at the end of the run. Each cell works on a copy of one stored session, in which the agent was told
CODEWORD-one in one process and CODEWORD-two in the next.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hostler
from hostler.harness import Done, SessionLost, State, StateIncompatible
from hostler.runtimes import runtime_for
from hostler.testing.model_server import ModelServer
from tests.conftest import keepers_of, processes_of, wait_until
from tests.sessions.programs import (
    CLAUDE,
    CODEX,
    DEEP_AGENTS,
    FAKE_PROGRAM,
    GEMINI,
    OPENCODE,
    PI,
    TOOL_LOOP,
    Program,
    ids,
)
from tests.sessions.test_resume import job_for, last, run_child

PROGRAMS = [
    pytest.param(p, marks=[pytest.mark.xdist_group(f"matrix-{p.name}"), *([] if p.fake else [pytest.mark.real]), *more])
    for p, more in (
        *((p, []) for p in (FAKE_PROGRAM, CLAUDE, CODEX, OPENCODE)),
        *((p, [pytest.mark.soak]) for p in (TOOL_LOOP, DEEP_AGENTS, PI, GEMINI)),
    )
]
FOREIGN = {  # an id as another program makes them
    "fake": "ses_0a1b2c3d4e5fABCDEFGHIJKLMN",
    "claude_code": "ses_0a1b2c3d4e5fABCDEFGHIJKLMN",
    "codex": "ses_0a1b2c3d4e5fABCDEFGHIJKLMN",
    "opencode": "0b0e1a5e-0000-4000-8000-000000000000",
    "deep_agents": "ses_0a1b2c3d4e5fABCDEFGHIJKLMN",
    "tool_loop": "ses_0a1b2c3d4e5fABCDEFGHIJKLMN",
    "pi": "ses_0a1b2c3d4e5fABCDEFGHIJKLMN",
    "gemini_cli": "ses_0a1b2c3d4e5fABCDEFGHIJKLMN",
}


@dataclass(frozen=True)
class Base:
    """A stopped session of two turns. ``older`` is its program's home as it was after the first one."""

    state_dir: Path
    workspace: Path
    older: Path
    state: State
    second: list[tuple[str, str]]
    requests: list[str]


@dataclass(frozen=True)
class Cell:
    """A copy of the base that may be broken."""

    program: Program
    models: ModelServer
    base: Base
    root: Path

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    @property
    def home(self) -> Path:
        (home,) = self.state_dir.glob("sessions/*/home")
        return home

    def native_files(self) -> list[Path]:
        """The program's own history in its home."""
        native_id = self.base.state.native_id or ""
        patterns = [f.pattern for f in runtime_for(self.program.harness).native_files]
        patterns = [p.replace("{id}", native_id).replace("{id:8}", native_id[:8]) for p in patterns]
        return [path for pattern in patterns for path in self.home.glob(pattern) if path.is_file()]

    def resume(self, state: State | None = None, **more: Any) -> Any:
        options = {"sandbox": hostler.sandbox.local(self.base.workspace), **self.program.options(self.models), **more}
        return hostler.agent_resume(state or self.base.state, state_dir=str(self.state_dir), **options)

    def child(self, *prompts: str, **more: Any) -> list[tuple[str, str]]:
        return run_child(
            job_for(self.program, self.models, workspace=str(self.base.workspace), prompts=prompts, **more.pop("job")),
            env={"HOSTLER_STATE_DIR": str(self.state_dir)},
            **more,
        )

    def asked_since(self, before: int) -> list[str]:
        return [json.dumps(request.body) for request in self.models.calls[before:]]

    def remembers(self, *words: str, how: str) -> str:
        """Resume and ask: what was said is in the model's request."""
        before = len(self.models.calls)
        with self.resume() as session:
            result = session.run(recall(self.program))
            assert (result.stop_reason, result.error) == ("done", None)
            assert session.resumed == how
            assert session.state().native_id == self.base.state.native_id
        assert knows(self.asked_since(before), "CODEWORD-one", "CODEWORD-two", *words)
        return how

    def refused(self, error: type[Exception], state: State | None = None, **more: Any) -> str:
        """Resume: a typed error, and neither a program nor a model was asked."""
        before = len(self.models.requests)
        with pytest.raises(error):
            self.resume(state, **more)
        assert len(self.models.requests) == before
        assert not processes_of(self.state_dir)
        return error.__name__


def recall(program: Program) -> str:
    if program.fake:
        return json.dumps([{"model": "What do you remember?", "memory": True}])
    return "What do you remember?"


def knows(requests: list[str], *words: str) -> bool:
    """Whether some request holds all the words."""
    return any(all(word in body for word in words) for body in requests)


# ---- the plights ----------------------------------------------------------------------------------------------------


def new_process(cell: Cell) -> str:
    assert last(cell.base.second, "resumed") == "native"
    assert knows(cell.base.requests, "CODEWORD-one", "CODEWORD-two")
    return "native"


def other_process_cwd(cell: Cell) -> str:
    elsewhere = cell.root / "elsewhere"
    elsewhere.mkdir()
    prompts = (cell.program.shell("pwd > where.txt"), recall(cell.program))
    before = len(cell.models.calls)
    lines = cell.child(*prompts, cwd=elsewhere, job={"resume": cell.base.state.dumps().decode(), "leave": "stop"})
    assert (cell.base.workspace / "where.txt").read_text().strip() == str(cell.base.workspace)
    assert not any(elsewhere.iterdir())
    assert knows(cell.asked_since(before), "CODEWORD-one", "CODEWORD-two")
    return last(lines, "resumed")


def other_workdir(cell: Cell) -> str:
    other = cell.root / "other"
    other.mkdir()
    cell.refused(StateIncompatible, dataclasses.replace(cell.base.state, workdir=str(other)))
    return cell.refused(StateIncompatible, sandbox=hostler.sandbox.local(other))


def killed_in_mid_turn(cell: Cell) -> str:
    if cell.program.fake:
        steps: list[dict[str, Any]] = [{"deltas": 40, "gap": 0.02}, {"text": "the very end"}]
        return _killed(cell, "CODEWORD-three\n" + json.dumps(steps), "Text")
    answer = {"text": "0 1 2 3 4 5 6 7 8 9 the very end", "chunks": 16, "chunk_delay": 0.06}
    return _killed(cell, f"CODEWORD-three @@{json.dumps(answer)}@@", "Text")


def killed_in_mid_tool(cell: Cell) -> str:
    command = "perl -e 'select(undef,undef,undef,0.8)'; echo the very end"
    return _killed(cell, cell.program.shell(command, "CODEWORD-three"), "ToolCall")


def _killed(cell: Cell, prompt: str, at: str) -> str:
    lines = cell.child(prompt, job={"resume": cell.base.state.dumps().decode(), "die_at": at})
    assert lines[-1] == ("event", at)
    how = cell.remembers("CODEWORD-three", how="attached")
    with cell.resume() as session:
        results = []
        for record in session.follow(0):
            results += [record.event.result] if isinstance(record.event, Done) else []
            if len(results) == 4:
                break
    assert [r.stop_reason for r in results] == ["done"] * 4
    return how


def home_lost(cell: Cell) -> str:
    shutil.rmtree(cell.home)
    return cell.remembers(how="native")


def unknown_id(cell: Cell) -> str:
    unknown = {"opencode": "ses_0a1b2c3d4e5fABCDEFGHIJKLMN"}.get(
        cell.program.name, "0b0e1a5e-0000-4000-8000-000000000000"
    )
    cell.refused(SessionLost, dataclasses.replace(cell.base.state, session="s-unknown"))
    return cell.refused(StateIncompatible, dataclasses.replace(cell.base.state, native_id=unknown))


def id_of_another_program(cell: Cell) -> str:
    foreign = FOREIGN[cell.program.name]
    other = "codex" if cell.program.name != "codex" else "opencode"
    cell.refused(StateIncompatible, dataclasses.replace(cell.base.state, harness=other))
    return cell.refused(StateIncompatible, dataclasses.replace(cell.base.state, native_id=foreign))


def id_with_a_path_in_it(cell: Cell) -> str:
    state = cell.base.state
    for path in ("../../etc/passwd", "/etc/passwd", f"../{state.native_id}", f"{state.native_id}/../x"):
        cell.refused(StateIncompatible, dataclasses.replace(state, native_id=path))
        cell.refused(SessionLost, dataclasses.replace(state, session=path))
        with pytest.raises(StateIncompatible):
            State.loads(json.dumps({**json.loads(state.dumps()), "native_id": path}))
    return "StateIncompatible"


def damaged_native_file(cell: Cell) -> str:
    files = cell.native_files()
    assert files
    for path in files:
        path.write_bytes(b"\0garbage\xff\n" * (path.stat().st_size // 10 + 1))
    return cell.remembers(how="native")


def copies_damaged_too(cell: Cell) -> str:
    for path in [*cell.native_files(), *cell.state_dir.glob("sessions/*/native/*")]:
        path.write_bytes(b"\0garbage\xff\n" * (path.stat().st_size // 10 + 1))
    return cell.refused(SessionLost)


def older_native_file(cell: Cell) -> str:
    home = cell.home
    shutil.rmtree(home)
    shutil.copytree(cell.base.older, home, symlinks=True)
    return cell.remembers(how="native")


CASES: dict[str, Callable[[Cell], str]] = {
    case.__name__.replace("_", " "): case
    for case in (
        new_process,
        other_process_cwd,
        other_workdir,
        killed_in_mid_turn,
        killed_in_mid_tool,
        home_lost,
        unknown_id,
        id_of_another_program,
        id_with_a_path_in_it,
        damaged_native_file,
        copies_damaged_too,
        older_native_file,
    )
}


# ---- the machinery --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripted() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory, scripted: ModelServer) -> Callable[[Program], Base]:
    made: dict[str, Base] = {}

    def make(program: Program) -> Base:
        root = tmp_path_factory.mktemp(program.name)
        workspace, state_dir = root / "workspace", root / "state"
        workspace.mkdir()
        job: dict[str, Any] = {"workspace": str(workspace), "leave": "stop"}
        env = {"HOSTLER_STATE_DIR": str(state_dir)}
        first = run_child(job_for(program, scripted, prompts=[program.say("CODEWORD-one")], **job), env=env)
        (home,) = state_dir.glob("sessions/*/home")
        shutil.copytree(home, root / "older", symlinks=True)
        before = len(scripted.calls)
        prompts = [program.say("CODEWORD-two"), recall(program)]
        second = run_child(
            job_for(program, scripted, prompts=prompts, resume=last(first, "state"), **job), cwd=root, env=env
        )
        requests = [json.dumps(r.body) for r in scripted.calls[before:]]
        return Base(state_dir, workspace, root / "older", State.loads(last(second, "state")), second, requests)

    def base(program: Program) -> Base:
        if program.name not in made:
            made[program.name] = make(program)
        return made[program.name]

    return base


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_resume(
    program: Program,
    case: str,
    bases: Callable[[Program], Base],
    scripted: ModelServer,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    cell = Cell(program, scripted, bases(program), tmp_path)
    shutil.copytree(cell.base.state_dir, cell.state_dir, symlinks=True)
    try:
        outcome = CASES[case](cell)
    except BaseException:
        record_property("resume", [list(CASES).index(case), case, program.name, "FAILED"])
        raise
    record_property("resume", [list(CASES).index(case), case, program.name, outcome])
    assert outcome in {"attached", "native", "StateIncompatible", "SessionLost"}
    assert wait_until(lambda: not processes_of(cell.state_dir) and not keepers_of(cell.state_dir), 5)
