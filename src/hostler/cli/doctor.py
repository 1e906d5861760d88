"""hostler doctor"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from rich.table import Table
from rich.text import Text

from .. import __version__, keeper, sandbox
from ..endpoint.routes import Route, route_for
from ..runtimes import available, runtime_for
from ..runtimes.acp import COMMANDS
from ..sandboxes.choice import chosen
from ..store import Store
from ..types.errors import HarnessError
from ..types.places import state_dir
from ..types.runtime import Harness, acp_agent
from ..workspace import holds_sessions
from .terminal import FAILED, console
from .view import printable

_VERSION_TIMEOUT = 20.0
_GATEWAY_TIMEOUT = 5.0
_PROVIDER_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")


def doctor_command() -> int:
    """Prints what works; exit code 0 when at least one program does besides the tool loop, which needs nothing."""
    out = console()
    out.print(f"hostler {__version__}, Python {sys.version.split()[0]}, {platform.system()} {platform.release()}\n")
    names = [name for name in available() if name != "fake"]
    with ThreadPoolExecutor(max_workers=4) as pool:
        found = dict(zip(names, pool.map(_version, names), strict=True))
    acp = {f"{command[0]} (ACP)": _found(command) for command in COMMANDS}
    table = Table("program", "version, or how to get it", box=None, pad_edge=False)
    for name, (works, words) in {**found, **acp}.items():
        table.add_row(Text(name, style="green" if works else "yellow"), Text(printable(words)))
    out.print(table)
    out.print("any program that speaks ACP: acp_agent(command=[...])\n")
    agents = [name for name, (works, _) in {**found, **acp}.items() if works and name != Harness.TOOL_LOOP]
    if not agents:
        out.print("No agent program can be run here, only hostler's own tool loop.\n", style="red")
    for title, words in (
        ("sandbox", _sandbox()),
        ("process trees", _guard()),
        ("state dir", _state_dir(Path(state_dir()))),
        ("gateway", _gateway()),
        ("provider keys", ", ".join(name for name in _PROVIDER_KEYS if os.environ.get(name)) or "none set"),
    ):
        out.print(f"{title}: {printable(words)}", soft_wrap=True)
    return 0 if agents else FAILED


def _sandbox() -> str:
    """Which sandbox a session gets that is given none, and why."""
    try:
        kind, why = chosen()
    except HarnessError as error:
        return str(error)
    if kind == "bubblewrap":
        return f"bubblewrap ({why}; `hostler doctor --selftest` tries to get out of it)"
    return f"local, which does not isolate: the agent has your user's rights ({why})"


def _found(command: tuple[str, ...]) -> tuple[bool, str]:
    """Whether an ACP agent is there, and where; else how to install it."""
    which = sandbox.local(os.sep).which
    try:
        runtime_for(acp_agent(command)).find({}, which)
    except HarnessError as error:
        return False, str(error)
    return True, f"{which(command[0])}; acp_agent(command={list(command)})"


def _version(name: str) -> tuple[bool, str]:
    """Whether a program starts, and the version that it says; else how to install it."""
    try:
        command = runtime_for(name).find({}, sandbox.local(os.sep).which)
    except HarnessError as error:
        return False, str(error)
    try:
        said = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"{command[0]} does not start: {error}"
    words = (said.stdout or said.stderr).strip().split("\n")[0][:60]
    if said.returncode != 0:
        return False, f"{command[0]} --version ends with exit code {said.returncode}: {words}"
    return True, words


_GUARDS = {
    "pidns": "ended by the kernel together with their keeper (process namespaces work here)",
    "guardian": "ended by a guardian process and by a mark in their environment (no process namespaces here: what hides "
    "from both survives when keeper and guardian are killed at once)",
}


def _guard() -> str:
    """How all that an agent starts is ended here, found out with a program that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        nothing = [sys.executable, "-I", "-S", "-c", "input()"]
        spec = keeper.KeeperSpec(argv=nothing, env={}, cwd=os.sep, dir=folder, mark=secrets.token_hex(16))
        try:
            address = asyncio.run(keeper.start(spec, None))
        except HarnessError as error:
            return f"not kept: {error}"
        keeper.destroy(address)
        return _GUARDS[address.guard]


def _state_dir(path: Path) -> str:
    database = path / "store.db"
    try:
        if database.exists():
            Store.open(str(database), make=not holds_sessions(str(path))).close()
            return f"{path} (usable)"
    except HarnessError as error:
        return f"{path}: {error}"
    above = next(p for p in (path, *path.parents) if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        return f"{path} cannot be made: {above} is not a directory that you may write; set HOSTLER_STATE_DIR"
    return f"{path} (made when first used)"


def _gateway() -> str:
    if not os.environ.get("LITELLM_PROXY_API_BASE"):
        return "none; for models named litellm_proxy/<group> set LITELLM_PROXY_API_BASE and LITELLM_PROXY_API_KEY"
    try:
        route = route_for("litellm_proxy/any", wire="chat", api_base=None, api_key=None, environ=os.environ)
    except HarnessError as error:
        return str(error)
    try:
        answer = httpx.get(f"{route.root}/models", headers=route.credentials(), timeout=_GATEWAY_TIMEOUT)
    except httpx.HTTPError as error:
        return f"{route.host} does not answer ({type(error).__name__})"
    return _models(route, answer)


def _models(route: Route, answer: httpx.Response) -> str:
    if answer.status_code in (401, 403):
        return f"{route.host} refuses the key in LITELLM_PROXY_API_KEY (status {answer.status_code})"
    try:
        names = [str(model["id"]) for model in answer.json()["data"]]
    except (ValueError, TypeError, KeyError):
        return f"{route.host} answers with status {answer.status_code}, and not as a gateway does"
    return f"{route.host} answers; models: {', '.join(names) or 'none'}"
