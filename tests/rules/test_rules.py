"""Rules that a program would not hold are refused before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sessions.programs import CLAUDE, FAKE_PROGRAM

import hostler
from hostler.harness import CapabilityUnsupported
from hostler.rules import refuse_unheld
from hostler.runtimes import runtime_for
from hostler.testing.model_server import ModelServer
from hostler.types.options import Options

CLAUDE_CODE = runtime_for(hostler.Harness.CLAUDE_CODE)


def bales(feed: str) -> int:
    """How many bales there are."""
    return 7


@pytest.mark.parametrize("option", ["allow", "deny", "disable_tools"])
@pytest.mark.parametrize(
    ("rule", "near"),
    [
        ("bahs", "bash"),
        ("bahs:git *", "bash"),
        ("Bsh(git *)", "Bash"),
        ("websearch", "web_search"),
        ("Web_Fetch", "WebFetch"),
        ("terminal", "bash, "),
        ("", "bash, "),
    ],
)
def test_a_misspelt_tool_is_refused_with_the_near_names(option: str, rule: str, near: str) -> None:
    with pytest.raises(CapabilityUnsupported, match=option) as caught:
        refuse_unheld(CLAUDE_CODE, Options.of({option: [rule]}), confined=False)
    assert repr(rule) in str(caught.value)
    assert near in str(caught.value)


RIGHT = ["bash", "bash:git *", "Bash(git *)", "Bash(a:b)", "edit:src/**", "web_fetch", "TaskCreate", "MultiEdit", "ls"]


@pytest.mark.parametrize("rule", [*RIGHT, " bash ", "mcp__files__read", "mcp__my-server", "Skill"])
def test_what_it_knows_passes(rule: str) -> None:
    refuse_unheld(CLAUDE_CODE, Options.of({"allow": [rule], "deny": [rule], "disable_tools": [rule]}), confined=False)


def test_rules_about_the_apps_own_tools_are_held_by_the_tool_server() -> None:
    for runtime in (CLAUDE_CODE, FAKE_PROGRAM.harness):
        for option in ("allow", "deny", "disable_tools"):
            for rule in ("bales", "bales(hay*)", "mcp__host__bales"):
                refuse_unheld(runtime, Options.of({"tools": [bales], option: [rule]}), confined=False)
            with pytest.raises(CapabilityUnsupported, match="no tool 'bale'"):
                refuse_unheld(CLAUDE_CODE, Options.of({"tools": [bales], option: ["bale"]}), confined=False)
            with pytest.raises(CapabilityUnsupported, match="no tool 'bales'"):
                refuse_unheld(CLAUDE_CODE, Options.of({option: ["bales"]}), confined=False)


@pytest.mark.parametrize("bad", [[7], [None], [["bash"]]])
def test_a_rule_is_text(bad: Any) -> None:
    with pytest.raises(TypeError, match="deny takes a list of strings"):
        Options.of({"deny": bad})


@pytest.mark.real
def test_nothing_is_made_or_started_for_it(models: ModelServer, tmp_path: Path, nothing_left: None) -> None:
    options = CLAUDE.options(models)
    with pytest.raises(CapabilityUnsupported, match="Bash"):
        hostler.agent_session(CLAUDE.harness, deny=["Bahs"], **options)
    host = hostler.local_host(tmp_path / "state")
    with pytest.raises(CapabilityUnsupported, match="bash"):
        hostler.create_harness(host=host, runtime=CLAUDE.harness, deny=["bahs"], **options)
    harness = hostler.create_harness(host=host, runtime=CLAUDE.harness, **options)
    assert harness.sessions.list() == ()
    session = harness.sessions.get_or_create("chat")
    with pytest.raises(CapabilityUnsupported, match="bash"):
        session.run("hi", deny=["bahs"])
    assert models.requests == []
    harness.sessions.delete("chat")
