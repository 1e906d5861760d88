"""What all tests share: a state dir of their own, a scripted model, and a look for processes that were left behind."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hostler.sandboxes import probe
from hostler.testing.model_server import ModelServer

pytest_plugins = ["tests.containers.fixtures"]

SOAK = os.environ.get("HOSTLER_SOAK") == "1"
CI = os.environ.get("CI") == "true"
_skipped: list[str] = []
_again: dict[str, str] = {}  # tests that failed and were run once more, and how they had failed
_MAX_AGAIN = 3  # many that fail once are no bad luck

# Before a test module looks for a program: those that `make` has installed come first.
_PROGRAMS = Path(__file__).resolve().parents[1] / ".programs" / "node_modules" / ".bin"
os.environ["PATH"] = f"{_PROGRAMS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = probe.missing()
    for item in items:
        if "soak" in item.keywords and not SOAK:
            item.add_marker(pytest.mark.skip(reason="run by make soak"))
        elif "bubblewrap" in item.keywords and missing is not None:
            item.add_marker(pytest.mark.skip(reason=f"no bubblewrap: {missing}"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and "run by make soak" not in str(report.longrepr):
        _skipped.append(report.nodeid)
    elif report.outcome == "rerun":  # type: ignore[comparison-overlap]
        _again[report.nodeid] = report.longreprtext


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    # In CI every back end is installed; a test that is skipped there hides a missing one.
    if CI and _skipped:
        print("\nskipped in CI:", *_skipped, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if len(_again) > _MAX_AGAIN:
        print(f"\nmore than {_MAX_AGAIN} tests had to be run again")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tables of what tests have recorded."""
    _resume_matrix(terminalreporter)
    _probes(terminalreporter)
    _kills(terminalreporter)
    if _again:
        terminalreporter.section("failed, and were run once more")
        for test, why in _again.items():
            terminalreporter.write_line(f"{test}\n{why[-2000:]}\n")


def _kills(terminalreporter: Any) -> None:
    """For docs/soak.md."""
    fates: dict[str, Counter[str]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "kill":
                fates.setdefault(value[0], Counter())[value[1]] += 1
    kills = ("killed_at_a_random_moment", "what_a_subscriber_saw")
    failed = sum(any(name in report.nodeid for name in kills) for report in terminalreporter.getreports("failed"))
    if fates or failed:
        passed = sum(sum(counter.values()) for counter in fates.values())
        terminalreporter.section("kills")
        terminalreporter.write_line(f"{time.strftime('%Y-%m-%d')}: {passed} kills, {failed} tests failed")
        for program, counter in sorted(fates.items()):
            terminalreporter.write_line(
                f"  {program}: " + ", ".join(f"{n} {fate}" for fate, n in counter.most_common())
            )


def _resume_matrix(terminalreporter: Any) -> None:
    """The resume matrix, from what its tests have recorded."""
    found: dict[tuple[int, str], dict[str, str]] = {}
    for report in (r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "resume":
                row, case, program, outcome = value
                found.setdefault((row, case), {})[program] = outcome
    if found:
        programs = sorted({program for outcomes in found.values() for program in outcomes})
        terminalreporter.section("resume matrix")
        terminalreporter.write_line(f"{'':24}" + "".join(f"{program:20}" for program in programs))
        for (_, case), outcomes in sorted(found.items()):
            terminalreporter.write_line(f"{case:24}" + "".join(f"{outcomes.get(p, ''):20}" for p in programs))


def _probes(terminalreporter: Any) -> None:
    """What agents could change under each mode, from what the probes have recorded."""
    found: dict[tuple[str, str], dict[tuple[int, str], str]] = {}
    for report in (r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "probe":
                number, way, program, mode, outcome = value
                found.setdefault((program, mode), {})[number, way] = outcome
    if found:
        ways = sorted({way for outcomes in found.values() for way in outcomes})
        terminalreporter.section("permission probes in local")
        terminalreporter.write_line(f"{'':24}" + "".join(f"{way:21}" for _, way in ways))
        for (program, mode), outcomes in found.items():
            cells = "".join(f"{outcomes.get(way, ''):21}" for way in ways)
            terminalreporter.write_line(f"{program + ' ' + mode:24}{cells}")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine reaches a test."""
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC_", "OPENAI_", "LITELLM_", "CLAUDE", "CODEX_")) or (
            name.startswith("HOSTLER_") and name not in ("HOSTLER_SOAK", "HOSTLER_GUARD")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOSTLER_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def models() -> Iterator[ModelServer]:
    """The scripted model."""
    with ModelServer() as server:
        yield server


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


def deep(path: Path, depth: int, link: Path | None = None) -> None:
    """Folders in each other, as an agent makes them with a loop; each with a file beside the next one. At their end,
    maybe a link."""
    path.mkdir(parents=True)
    fd = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    if link is not None:
        os.symlink(link, "link", dir_fd=fd)
    os.close(fd)


def keepers_of(state_dir: Path) -> list[psutil.Process]:
    """The keepers that the store of this state dir names and that live."""
    if not (state_dir / "store.db").exists():
        return []
    database = sqlite3.connect(state_dir / "store.db")
    try:
        rows = database.execute("select program from sessions where program is not null").fetchall()
    finally:
        database.close()
    pids = [json.loads(program)["address"]["pid"] for (program,) in rows if program != "null"]
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def processes_of(state_dir: Path) -> list[psutil.Process]:
    """Programs and keepers that work for this state dir."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            line = process.cmdline()
        except (psutil.Error, OSError):
            continue
        if process.pid != os.getpid() and (
            str(state_dir) in environment.get("HOME", "")
            or any(str(state_dir) in a for a in line)
            or ("HOSTLER_RUN" in environment and "/".join(state_dir.parts[-3:]) + "/" in _home(process.pid))
        ):
            found.append(process)
    return found


def _home(pid: int) -> str:
    """What lies behind the home of a process in a sandbox, by its path in the file system that it is on."""
    try:
        mounts = [line.split(" ") for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    except OSError:
        return ""
    return next((fields[3] for fields in mounts if fields[4] == "/home/agent"), "")


def wait_until(condition: Any, seconds: float = 10.0) -> bool:
    """Whether ``condition()`` came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture
def nothing_left(state_dir: Path) -> Iterator[None]:
    """After the test no program of its state dir may run."""
    yield
    assert wait_until(lambda: not processes_of(state_dir), 5), [p.cmdline() for p in processes_of(state_dir)]
