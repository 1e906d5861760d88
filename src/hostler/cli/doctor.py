"""hostler doctor"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import httpx
from rich.console import Console
from rich.table import Table

from .. import __version__, sandbox
from ..host.settings import state_dir
from ..runtimes import BUILT, runtime_for
from ..types.errors import HarnessError

_SECONDS = 20


def doctor_command() -> int:
    """Prints what works; exit code 0 when at least one program does."""
    console = Console(highlight=False)
    console.print(f"hostler {__version__}, Python {sys.version.split()[0]}, {platform.system()} {platform.release()}")
    console.print(f"state dir: {state_dir()}")
    table = Table("program", "found", "version", "how to install")
    works = 0
    box = sandbox.local(os.getcwd())
    for harness in BUILT:
        runtime = runtime_for(harness)
        try:
            command = runtime.find({}, box.which)
        except HarnessError as error:
            table.add_row(harness.value, "[yellow]no[/]", "", str(error))
            continue
        works += 1
        table.add_row(harness.value, "[green]yes[/]", _version(command), "")
    console.print(table)
    console.print("sandbox: local (does not isolate the agent: it runs with your user's rights)")
    console.print(_gateway())
    return 0 if works else 1


def _version(command: tuple[str, ...]) -> str:
    try:
        said = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not start: {error}"
    return (said.stdout or said.stderr).strip().split("\n")[0][:60]


def _gateway() -> str:
    base = os.environ.get("LITELLM_PROXY_API_BASE")
    if not base:
        return "gateway: none (set LITELLM_PROXY_API_BASE and LITELLM_PROXY_API_KEY, or give model= and a provider's key)"
    try:
        answer = httpx.get(
            base.rstrip("/") + "/v1/models",
            headers={"Authorization": f"Bearer {os.environ.get('LITELLM_PROXY_API_KEY', '')}"},
            timeout=5,
        )
    except httpx.HTTPError as error:
        return f"gateway: {base} does not answer ({type(error).__name__})"
    if answer.status_code == 200:
        try:
            names = [m.get("id", "?") for m in answer.json().get("data", [])]
        except ValueError:
            return f"gateway: {base} answers, but not as a gateway does"
        return f"gateway: {base} answers, models: {', '.join(names) or 'none'}"
    return f"gateway: {base} answers with status {answer.status_code}"
