"""hostler demo: the main job, end to end, with a real agent program."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.rule import Rule

from .. import api, sandbox
from ..faces import Session
from ..runtimes import runtime_for
from ..types.errors import HarnessError
from ..types.runtime import Harness
from ..types.state import State
from .terminal import FAILED, console, guarded, harness_named
from .view import View, dollars

CODE_WORD = "CODEWORD-hazel"
FIRST = (
    f"My code word is {CODE_WORD}. Write two kinds of horse feed into report.txt and count its words with the shell."
)
SCRIPT = [{"shell": "printf 'oats, hay\\n' > report.txt && wc report.txt"}]
SECOND = "What is my code word?"
THIRD = "And what was it again?"
_KEY = "HOSTLER_DEMO_KEY"
_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Models:
    """Where the demo's model calls go. ``script`` follows the first prompt, for the model that has to be told."""

    model: str
    base: str | None = None
    key: str | None = field(default=None, repr=False)
    script: str = ""


def demo_command(name: str, model: str | None) -> int:
    """Two turns, detach, and a third turn from a second process. Exit code 0 when the memory held."""
    harness = harness_named(name)
    with _models(harness, model) as models, tempfile.TemporaryDirectory(prefix="hostler-demo-") as folder:
        return _demo(console(), harness, models, Path(folder))


def _demo(out: Console, harness: Harness, models: Models, folder: Path) -> int:
    workspace, state_dir, file = folder / "workspace", folder / "state", folder / "state.json"
    workspace.mkdir()
    out.print(Rule(f"{harness.value}, turns 1 and 2, process {os.getpid()}"))
    if models.base is not None:
        out.print("A scripted model answers; --model takes a real one.", style="dim")
    with api.agent_session(
        harness,
        sandbox=sandbox.local(workspace),
        state_dir=str(state_dir),
        model=models.model,
        api_base=models.base,
        api_key=models.key,
    ) as session:
        _turn(out, session, FIRST, models.script)
        _turn(out, session, SECOND)
        raw = session.detach().dumps()
    file.write_bytes(raw)
    out.print(f"detached; the State to resume with is {len(raw)} bytes of JSON: {raw.decode()}", style="dim")
    second = subprocess.run(
        [sys.executable, "-m", "hostler.cli.demo", str(file), str(workspace), str(state_dir)],
        env={**os.environ, **({_KEY: models.key} if models.key else {})},
        timeout=_SECONDS,
        check=False,
    )
    return second.returncode


def continue_demo(file: str, workspace: str, state_dir: str) -> int:
    """The second process: resume, one turn, close."""
    out = console()
    out.print(Rule(f"turn 3, process {os.getpid()}"))
    state = State.loads(Path(file).read_bytes())
    with api.agent_resume(
        state, sandbox=sandbox.local(workspace), state_dir=state_dir, api_key=os.environ.get(_KEY)
    ) as session:
        text = _turn(out, session, THIRD)
        out.print(f"resumed: {session.resumed}", style="dim")
    if CODE_WORD not in text:
        out.print("The memory was lost.", style="red")
        return FAILED
    out.print("The second process remembered what the first one was told.", style="green")
    return 0


def _turn(out: Console, session: Session, prompt: str, script: str = "") -> str:
    out.print(f"you: {prompt}", style="bold")
    view = View(out, out)
    stream = session.stream(prompt + script)
    for event in stream:
        view.show(event)
    out.print(f"session so far: {session.usage.calls} model calls, cost {dollars(session.cost)}\n", style="dim")
    if (error := stream.result.error) is not None:
        raise HarnessError(f"The turn failed: {error.message}")
    return stream.result.text


@contextlib.contextmanager
def _models(harness: Harness, model: str | None) -> Iterator[Models]:
    """The real model when one is given, else a scripted server on this machine."""
    if model is not None:
        yield Models(model)
        return
    from ..testing.model_server import ModelServer

    named_after = "claude-sonnet-4-5" if runtime_for(harness).wire == "anthropic" else "gpt-5"  # a price is known
    with ModelServer() as server:
        yield Models(named_after, server.url, "scripted", f" @@{json.dumps(SCRIPT)}@@")


if __name__ == "__main__":
    raise SystemExit(guarded(lambda: continue_demo(*sys.argv[1:4])))
