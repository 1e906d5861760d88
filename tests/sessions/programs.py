"""The programs that the session tests run with, and how to have each of them do the same things."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from hostler.harness import Harness, acp_agent
from hostler.sandboxes import probe
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer

KEY = "planted-gateway-key-7f3a"


@dataclass(frozen=True)
class Program:
    """One program under test; ``fake`` ones take their script in the prompt, real ones from the scripted model."""

    name: str
    harness: Any
    model: str

    @property
    def fake(self) -> bool:
        return self.harness is FAKE

    def options(self, models: ModelServer) -> dict[str, Any]:
        return {"model": self.model, "api_base": models.url, "api_key": KEY}

    def shell(self, command: str, word: str = "") -> str:
        """A prompt that has the agent run a shell command, then answer."""
        if self.fake:
            return f"{word}\n" + json.dumps([{"model": word or "go"}, {"shell": command}, {"text": "done"}])
        return f"{word} @@" + json.dumps([{"shell": command}]) + "@@"

    def say(self, word: str) -> str:
        """A prompt that tells the agent a word and gets an answer."""
        return (
            f"Remember {word}.\n" + json.dumps([{"model": word}, {"say": "memory"}])
            if self.fake
            else f"Remember {word}."
        )

    def recall(self) -> str:
        """A prompt whose answer holds all words that the agent was told."""
        if self.harness is Harness.GEMINI_CLI:  # of a prompt without an answer and the next it makes one message
            return "What do you remember? @@{}@@"  # nothing of that one's script is to be played any more
        return json.dumps([{"say": "memory"}]) if self.fake else "What do you remember?"


FAKE_PROGRAM = Program("fake", FAKE, "claude-sonnet-4-5")
CLAUDE = Program("claude_code", Harness.CLAUDE_CODE, "claude-sonnet-4-5")
CODEX = Program("codex", Harness.CODEX, "gpt-5")
OPENCODE = Program("opencode", Harness.OPENCODE, "gpt-5")
TOOL_LOOP = Program("tool_loop", Harness.TOOL_LOOP, "gpt-5")
PI = Program("pi", Harness.PI, "gpt-5")
GEMINI = Program("gemini_cli", Harness.GEMINI_CLI, "gemini-2.5-flash")
DEEP_AGENTS = Program("deep_agents", Harness.DEEP_AGENTS, "gpt-5")

# Agents that are known by their command; `make` installs them where conftest.py puts them on PATH.
CLAUDE_ACP = Program("claude_acp", acp_agent(["claude-agent-acp"]), "claude-sonnet-4-5")
CODEX_ACP = Program("codex_acp", acp_agent(["codex-acp"]), "gpt-5")
QWEN = Program("qwen", acp_agent(["qwen", "--acp"]), "coder")
ACP = (CLAUDE_ACP, CODEX_ACP, QWEN)

_QUICK = [pytest.param(p, marks=pytest.mark.real) for p in (CLAUDE, CODEX)]
# OpenCode takes seconds of CPU to start: the resume matrix, the faults and the cases run it each time, the rest in soak.
# The programs after it are run in soak, too; `make test` has some rows of the conformance suite for each.
_SLOW = [pytest.param(p, marks=[pytest.mark.real, pytest.mark.soak]) for p in (OPENCODE, TOOL_LOOP, PI, GEMINI)]
ALL = [FAKE_PROGRAM, *_QUICK, *_SLOW]
REAL = [*_QUICK, *_SLOW]
IN_SOAK = [pytest.param(p, marks=pytest.mark.soak) for p in (TOOL_LOOP, DEEP_AGENTS, PI, GEMINI)]
"""Added to lists of programs whose other members are run each time."""


BUBBLEWRAP = pytest.param("bubblewrap", marks=pytest.mark.bubblewrap, id="bubblewrap")
KINDS = [BUBBLEWRAP, pytest.param("local", marks=pytest.mark.soak, id="local")]


def seen_as(path: object) -> str:
    """How the agent of a session without ``sandbox=`` knows a path of its workspace."""
    folder, _, inside = f"{path}/".rpartition("/session/")
    return f"/session/{inside}".rstrip("/") if folder and probe.missing() is None else str(path)


def ids(program: Any) -> str:
    return program.name if isinstance(program, Program) else str(program)
