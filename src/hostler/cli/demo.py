"""hostler demo: the main job, end to end, with a real agent program."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule

from .. import api, sandbox
from ..faces import Session
from ..types.errors import HarnessError
from ..types.state import State
from .run import harness_named
from .view import View

SCRIPTED = "claude-sonnet-4-5"
FIRST = 'My code word is CODEWORD-hazel. Write a small report. @@[{"shell": "printf \'oats, hay\\\\n\' > report.txt && wc report.txt"}]@@'
SECOND = "What is my code word?"
THIRD = "And what was it again?"


def demo_command(harness: str, model: str | None) -> int:
    """Two turns, detach, and a third turn from a second process. Exit code 0 when the memory held."""
    console = Console(highlight=False)
    try:
        with _models(model) as options, tempfile.TemporaryDirectory(prefix="hostler-demo-") as folder:
            return _demo(console, harness, options, Path(folder))
    except HarnessError as error:
        console.print(f"hostler: {error}", style="red", markup=False)
        return 2


def _demo(console: Console, harness: str, options: dict[str, Any], folder: Path) -> int:
    workspace = folder / "workspace"
    workspace.mkdir()
    console.print(Rule(f"{harness}, turn 1 and 2, process {os.getpid()}"))
    session = api.agent_session(
        harness_named(harness), sandbox=sandbox.local(workspace), state_dir=str(folder / "state"), **options
    )
    with session:
        for prompt in (FIRST, SECOND):
            _turn(console, session, prompt)
        state = session.detach()
    console.print(f"[dim]detached; State: {len(state.dumps())} bytes of JSON, no secret in it[/]")
    file = folder / "state.json"
    file.write_bytes(state.dumps())
    second = subprocess.run(
        [sys.executable, "-m", "hostler.cli.demo", str(file), str(workspace), str(folder / "state")],
        env={**os.environ, **{k: str(v) for k, v in _environment(options).items()}},
        timeout=300,
        check=False,
    )
    return second.returncode


def continue_demo(file: str, workspace: str, state_dir: str) -> int:
    """The second process: resume, one turn, close."""
    console = Console(highlight=False)
    console.print(Rule(f"turn 3, process {os.getpid()}"))
    session = api.agent_resume(
        State.loads(Path(file).read_bytes()),
        sandbox=sandbox.local(workspace),
        state_dir=state_dir,
        api_key=os.environ.get("HOSTLER_DEMO_KEY"),
    )
    with session:
        text = _turn(console, session, THIRD)
        console.print(f"[dim]resumed: {session.resumed}[/]")
    scripted = "HOSTLER_DEMO_KEY" in os.environ
    if scripted and "CODEWORD-hazel" not in text:
        console.print("[red]the memory was lost[/]")
        return 1
    console.print("[green]the second process remembered what the first one was told[/]")
    return 0


def _turn(console: Console, session: Session, prompt: str) -> str:
    console.print(f"[bold]you:[/] {prompt.split(' @@')[0]}")
    view = View(console)
    stream = session.stream(prompt)
    for event in stream:
        view.show(event)
    cost = session.cost
    console.print(f"[dim]session so far: {'cost unknown' if cost is None else f'${cost:.4f}'}, {session.usage.calls} model calls[/]")
    if stream.result.error is not None:
        raise HarnessError(f"The turn failed: {stream.result.error.message}")
    return stream.result.text


@contextlib.contextmanager
def _models(model: str | None) -> Iterator[dict[str, Any]]:
    """Options that reach a model: the real one when given, else a scripted server on this machine."""
    if model is not None:
        yield {"model": model}
        return
    from ..testing.model_server import ModelServer

    with ModelServer() as server:
        yield {"model": SCRIPTED, "api_base": server.url, "api_key": "scripted"}


def _environment(options: dict[str, Any]) -> dict[str, str]:
    return {"HOSTLER_DEMO_KEY": options["api_key"]} if "api_key" in options else {}


if __name__ == "__main__":
    raise SystemExit(continue_demo(*sys.argv[1:4]))
