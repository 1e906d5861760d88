"""Which module describes which agent program; each is imported when it is used."""

from __future__ import annotations

import importlib

from ..types.errors import CapabilityUnsupported
from ..types.runtime import AcpAgent, Harness, Runtime

_MODULES = {
    "claude_code": "hostler.runtimes.claude_code",
    "codex": "hostler.runtimes.codex",
    "opencode": "hostler.runtimes.opencode",
    "pi": "hostler.runtimes.pi",
    "gemini_cli": "hostler.runtimes.gemini_cli",
    "fake": "hostler.testing.fake_runtime",
}
"""Name to module; the module holds the Runtime as ``RUNTIME``."""


def runtime_for(harness: Harness | AcpAgent | Runtime | str) -> Runtime:
    """The Runtime of a harness, or of a stored harness's name. Raises CapabilityUnsupported for one that this hostler
    cannot run."""
    if isinstance(harness, AcpAgent):
        acp = importlib.import_module("hostler.runtimes.acp")
        return acp.AcpRuntime(harness.command)  # type: ignore[no-any-return]
    if not isinstance(harness, str):
        return harness
    name = harness.value if isinstance(harness, Harness) else harness
    if name not in available():
        known = ", ".join(n for n in available() if n != "fake")
        raise CapabilityUnsupported(
            f"This hostler cannot run {name!r}. It runs {known} and any program that speaks ACP: "
            "acp_agent(command=[...])."
        )
    return importlib.import_module(_MODULES[name]).RUNTIME  # type: ignore[no-any-return]


def available() -> tuple[str, ...]:
    """The names of the programs that this hostler can run; they need not be installed."""
    return tuple(_MODULES)
