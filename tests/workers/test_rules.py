"""Whether a worker's tool call may run: by mode, by rule, by where a path leads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hostler.workers.rules import judge, offered
from hostler.workers.settings import KEY, Settings

BUILTIN = ("read", "glob", "grep", "ls", "write", "edit", "bash")
MODES: dict[tuple[str, bool], dict[str, str]] = {
    ("full", False): dict.fromkeys(BUILTIN, "allow"),
    ("ask", False): dict.fromkeys(BUILTIN[:4], "allow") | dict.fromkeys(BUILTIN[4:], "ask"),
    ("ask", True): dict.fromkeys(BUILTIN[:4], "allow") | dict.fromkeys(BUILTIN[4:], "ask"),
    ("edit", False): dict.fromkeys(BUILTIN[:6], "allow") | {"bash": "deny"},
    ("edit", True): dict.fromkeys(BUILTIN, "allow"),
    ("read-only", False): dict.fromkeys(BUILTIN[:4], "allow") | dict.fromkeys(BUILTIN[4:], "deny"),
    ("read-only", True): dict.fromkeys(BUILTIN[:4], "allow") | {"write": "deny", "edit": "deny", "bash": "allow"},
}


def settings(folder: Path, **given: Any) -> Settings:
    return Settings("m", "http://m", str(folder), f"{folder}/.s", writable=(str(folder),), **given)


def choice(held: Settings, tool: str, **given: Any) -> str:
    return judge(held, tool, given).choice


@pytest.mark.parametrize(("mode", "confined"), MODES)
def test_each_mode(mode: str, confined: bool, tmp_path: Path) -> None:
    held = settings(tmp_path, permissions=mode, confined=confined)
    given = {"path": "a.txt", "command": "ls"}
    assert {tool: judge(held, tool, given).choice for tool in BUILTIN} == MODES[mode, confined]
    assert choice(held, "mcp__host__pay") == "allow"  # its own server asks and refuses
    assert choice(held, "mcp__shop__pay") == {"full": "allow", "ask": "ask"}.get(mode, "deny")
    assert [tool for tool in BUILTIN if not offered(held, tool)] == [
        tool for tool, outcome in MODES[mode, confined].items() if outcome == "deny"
    ]


@pytest.mark.parametrize("path", ["../b", "/etc/b", "out/b", "sub/../../b", "link"])
def test_what_may_edit_edits_the_workspace_alone(path: str, tmp_path: Path) -> None:
    outside, work = tmp_path / "outside", tmp_path / "work"
    outside.mkdir()
    work.mkdir()
    (work / "out").symlink_to(outside)
    (work / "link").symlink_to(outside / "file")
    held = settings(work, permissions="edit")
    assert choice(held, "write", path="sub/b") == "allow"
    assert choice(held, "write", path=path) == "deny"
    # A rule that allows a tool allows it no more than that.
    assert choice(settings(work, permissions="edit", allow=("write",)), "write", path=path) == "deny"
    assert choice(settings(work, permissions="ask", allow=("write",)), "write", path=path) == "ask"
    assert choice(settings(work, permissions="ask", allow=("write",)), "write", path="sub/b") == "allow"


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("git status", "allow"),
        ("git push origin main", "deny"),
        ("git status; rm -rf x", "ask"),
        ("git status && git push", "deny"),
        ("git log $(touch x)", "ask"),
        ("git log > x", "ask"),
        ("git log\ntouch x", "ask"),
        ("ls", "ask"),
        ("true; git push", "deny"),
    ],
)
def test_a_pattern_allows_one_command_and_denies_it_wherever_it_is(command: str, outcome: str, tmp_path: Path) -> None:
    held = settings(tmp_path, permissions="ask", allow=("bash:git *",), deny=("bash(git push*)",))
    assert choice(held, "bash", command=command) == outcome


def test_patterns_about_files_look_at_where_they_are(tmp_path: Path) -> None:
    held = settings(tmp_path, permissions="ask", allow=("write:src/*",), deny=("write:src/secret*",))
    assert choice(held, "write", path="src/a") == "allow"
    assert choice(held, "write", path=str(tmp_path / "src" / "a")) == "allow"
    assert choice(held, "write", path="src/../a") == "ask"
    assert choice(held, "write", path="src/x/../secret.txt") == "deny"


def test_what_is_off_is_not_offered_and_not_run(tmp_path: Path) -> None:
    held = settings(tmp_path, disabled=("bash", "mcp__shop"), deny=("grep",))
    assert [tool for tool in BUILTIN if not offered(held, tool)] == ["grep", "bash"]
    assert not offered(held, "mcp__shop__pay")
    assert offered(held, "mcp__shopping__pay")
    assert choice(held, "bash", command="ls") == "deny"
    assert choice(held, "mcp__shop__pay") == "deny"


def test_the_key_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv(KEY, "k")
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"model": "m", "url": "u", "workdir": "/w", "folder": "/f", "allow": ["a"], "later": 1}))
    held = Settings.read(str(file))
    assert (held.key, held.allow, held.workdir) == ("k", ("a",), "/w")
    assert KEY not in os.environ
    assert "'k'" not in repr(held)
