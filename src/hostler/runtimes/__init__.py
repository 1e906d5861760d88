"""Which module describes which agent program; each is imported when it is used."""

from __future__ import annotations

import importlib
import importlib.metadata

from ..types.errors import CapabilityUnsupported
from ..types.runtime import AcpAgent, Harness, Runtime

_MODULES = {
    "claude_code": "hostler.runtimes.claude_code",
    "codex": "hostler.runtimes.codex",
    "opencode": "hostler.runtimes.opencode",
    "pi": "hostler.runtimes.pi",
    "gemini_cli": "hostler.runtimes.gemini_cli",
    "tool_loop": "hostler.runtimes.tool_loop",
    "deep_agents": "hostler.runtimes.deep_agents",
    "fake": "hostler.testing.fake_runtime",
}
"""Name to module; the module holds the Runtime as ``RUNTIME``."""
ENTRY_POINTS = "hostler.runtimes"
"""The group in which an installed package names a Runtime of its own: ``my_agent = "my_package.my_module:RUNTIME"``."""
_given: dict[str, Runtime] = {}  # those of the caller's own that this process was given; sessions name them


def runtime_for(harness: Harness | AcpAgent | Runtime | str) -> Runtime:
    """The Runtime of a harness, or of a stored harness's name. Raises CapabilityUnsupported for one that this hostler
    cannot run."""
    if isinstance(harness, AcpAgent):
        acp = importlib.import_module("hostler.runtimes.acp")
        return acp.runtime(harness.command)  # type: ignore[no-any-return]
    if not isinstance(harness, str):
        if harness.name not in _MODULES:
            _given[harness.name] = harness
        return harness
    name = harness.value if isinstance(harness, Harness) else harness
    if name not in _MODULES:
        if own := _own(name):
            return own
        known = ", ".join(n for n in available() if n != "fake")
        raise CapabilityUnsupported(
            f"This hostler cannot run {name!r}. It runs {known} and any program that speaks ACP: "
            f"acp_agent(command=[...]). A Runtime of your own is given as it is, or named by an entry point {ENTRY_POINTS!r}."
        )
    return importlib.import_module(_MODULES[name]).RUNTIME  # type: ignore[no-any-return]


def _own(name: str) -> Runtime | None:
    """A Runtime that is not hostler's: one that this process was given, or that an installed package names."""
    if name not in _given:
        for found in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
            _given[name] = found.load()
    return _given.get(name)


def available() -> tuple[str, ...]:
    """The names of the programs that this hostler can run; they need not be installed."""
    return tuple(_MODULES)
