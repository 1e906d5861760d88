"""Nothing of the escape suite gets out of bubblewrap: by root and by an ordinary user, by the fake and real programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.programs import CLAUDE, CODEX, OPENCODE, Program

import hostler
from hostler.testing import escapes
from hostler.testing.escapes import ATTEMPTS, Agent, Kind, Outcome, attempts

ROOT = Path(__file__).resolve().parents[2]
ORDINARY = Path(__file__).with_name("ordinary.py")
USER = 61234
# Where the machine lets an ordinary user make no control group, a limit of the memory is refused.
MAY_BE_REFUSED = {"memory bomb"}
# The keeper has the program in a process namespace of its own, also in `local`, where the system has one.
BY_THE_KEEPER = {"host environment", "other processes", "memory of the app", "planted key"}


def escaped(outcomes: dict[str, Outcome]) -> dict[str, str]:
    return {name: outcome.words for name, outcome in outcomes.items() if outcome.escaped}


@pytest.mark.bubblewrap
def test_nothing_gets_out_of_bubblewrap() -> None:
    outcomes = attempts(Kind(escapes.bounded))
    assert list(outcomes) == list(ATTEMPTS)
    assert escaped(outcomes) == {}


def test_everything_gets_out_of_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """So each attempt can succeed; and `local` says honestly that it does not isolate."""
    monkeypatch.setenv("HOSTLER_GUARD", "guardian")
    assert set(ATTEMPTS) - set(escaped(attempts(Kind(hostler.sandbox.local)))) <= set(not_for_an_agent_here())


def not_for_an_agent_here() -> Iterator[str]:
    """What this machine does not have for anybody."""
    if not any(os.path.exists(path) for path in ("/dev/kvm", "/dev/mem", "/dev/vda", "/dev/sda", "/dev/fuse")):
        yield "devices"
    if os.geteuid() and not os.access("/proc/sys/kernel/core_pattern", os.W_OK):
        yield from ("kernel settings", "mounts")


@pytest.mark.real
@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    "program", [CLAUDE, pytest.param(CODEX, marks=pytest.mark.soak), pytest.param(OPENCODE, marks=pytest.mark.soak)]
)
def test_no_real_program_gets_out(program: Program) -> None:
    def box(workspace: Any) -> Any:
        limits = hostler.sandbox.Limits(escapes.MEMORY, escapes.PROCESSES)
        return hostler.sandbox.bubblewrap(workspace, ro=[sys.base_prefix], limits=limits)

    python = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    agent = Agent(program.harness, program.model, program.shell, python)
    assert escaped(attempts(Kind(box), agent)) == {}


CODE = """
import dataclasses, json
from hostler.testing.escapes import Kind, attempts, bounded
print(json.dumps({name: dataclasses.astuple(o) for name, o in attempts(Kind(bounded)).items()}))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="hostler-ordinary-", dir="/tmp"))
    os.chown(path, USER, USER)
    yield path
    shutil.rmtree(path)


def as_ordinary(code: str, home: Path, **more: str) -> str:
    """What a Python program says that runs as a user without any privilege."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home), "XDG_RUNTIME_DIR": str(home), **more}
    command = [sys.executable, "-c", code]
    if os.geteuid() == 0:
        # The packages may be in another folder than the environment says.
        folders = {sys.base_prefix, sys.prefix, str(ROOT), *(path for path in sys.path if os.path.isdir(path))}
        command = [sys.executable, str(ORDINARY), str(USER), *folders, "--", *command]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.bubblewrap
def test_nothing_gets_out_of_an_ordinary_users_bubblewrap(home: Path) -> None:
    found = {name: Outcome(*said) for name, said in json.loads(as_ordinary(CODE, home)).items()}
    assert list(found) == list(ATTEMPTS)
    assert set(escaped(found)) <= MAY_BE_REFUSED


LIFE = "keeper_is_killed or network_is or limits_are_removed or polite"


@pytest.mark.bubblewrap
def test_sessions_of_an_ordinary_user(home: Path) -> None:
    """The tests beside this one that take the fake program."""
    tests = str(Path(__file__).with_name("test_bubblewrap.py"))
    given = [
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={home}/tests",
        f"--rootdir={ROOT}",
        "-c",
        f"{ROOT}/pyproject.toml",
    ]
    code = f"import pytest, sys; sys.exit(pytest.main({[*given, '-m', 'not real and not soak', '-k', LIFE, tests]!r}))"
    said = as_ordinary(f"import os; os.chdir({str(ROOT)!r})\n{code}", home)
    assert " passed" in said
    assert "skipped" not in said


def test_the_table_of_the_readme_is_so() -> None:
    table = (ROOT / "README.md").read_text().split("| attempt |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == list(ATTEMPTS)
    assert {row[0] for row in rows if row[1] == "held by the keeper"} == BY_THE_KEEPER
    assert {row[2] for row in rows} == {"held", "held, with `limits=`"}
    assert {row[0] for row in rows if row[3] != row[2]} == set(escapes.container({}, "").concedes)
