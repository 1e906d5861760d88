"""`hostler doctor` and its self-test say which sandbox there is and what gets out of it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hostler.cli import app, doctor
from hostler.cli import selftest as command
from hostler.testing.escapes import Outcome


@pytest.mark.parametrize(("escaped", "code"), [(False, 0), (True, 1)])
def test_the_selftest_fails_where_a_sandbox_leaks(escaped: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {
        "local": {"host files": Outcome(True, "/etc/shadow can be read")},
        "bubblewrap": {"host files": Outcome(escaped, "through a hole" if escaped else "")},
    }
    monkeypatch.setattr(command, "selftest", lambda: outcomes)
    result = CliRunner().invoke(app, ["doctor", "--selftest"])
    assert result.exit_code == code
    assert "host files" in result.output
    assert "/etc/shadow can be read" in result.output
    assert ("through a hole" in result.output) is escaped


def test_what_a_sandbox_does_not_promise_is_said_and_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {"local": {"disk fill": Outcome(True, "x")}, "docker": {"disk fill": Outcome(False, "its own layer")}}
    monkeypatch.setattr(command, "selftest", lambda: outcomes)
    result = CliRunner().invoke(app, ["doctor", "--selftest"])
    assert result.exit_code == 0
    assert "not held: its own layer" in result.output


def test_a_machine_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "selftest", lambda: {"local": {"host files": Outcome(True, "x")}})
    result = CliRunner().invoke(app, ["doctor", "--selftest"])
    assert result.exit_code == 0
    assert "does not isolate" in result.output


@pytest.mark.parametrize(
    ("programs", "code"),
    [({"tool_loop"}, 1), ({"tool_loop", "codex"}, 0), ({"tool_loop", "qwen"}, 0), (set(), 1)],
    ids=["tool loop", "codex", "an ACP agent", "nothing"],
)
def test_doctor_fails_where_no_agent_program_can_be_run(
    programs: set[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: (name in programs, "1.0"))
    monkeypatch.setattr(doctor, "_found", lambda command: (command[0] in programs, "here"))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code
    assert ("No agent program can be run here" in result.output) is bool(code)


@pytest.mark.parametrize(
    ("kind", "words"), [("local", "does not isolate"), ("bubblewrap", "says so"), ("x", "must be one of")]
)
def test_doctor_says_which_sandbox_and_why(kind: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLER_SANDBOX", kind)
    assert words in doctor._sandbox()
