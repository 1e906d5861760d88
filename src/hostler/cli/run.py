"""hostler run"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import api, sandbox
from ..faces import Session
from ..stream import Stream
from ..types.errors import HarnessError
from ..types.events import Done
from ..types.runtime import Harness, check_harness
from ..types.state import State
from .view import View, json_line


def run_command(
    harness: str,
    prompt: str,
    options: dict[str, Any],
    *,
    workdir: str | None,
    resume: str | None,
    state: str | None,
    json_lines: bool,
) -> int:
    """One turn in a new or resumed session. Exit code 0 when it is done, 1 when it failed, 2 for bad usage."""
    console = Console(stderr=False, highlight=False)
    errors = Console(stderr=True, highlight=False)
    if prompt == "-":
        prompt = sys.stdin.read()
    if workdir is not None:
        options["sandbox"] = sandbox.local(workdir)
    keep = state or resume
    try:
        member = harness_named(harness)
        session = (
            api.agent_resume(State.loads(Path(resume).read_bytes()), **options)
            if resume is not None
            else api.agent_session(member, **options)
        )
        with session:
            done = _one_turn(session, prompt, console, json_lines)
            if keep is not None:
                _write_state(Path(keep), session.detach())
    except (HarnessError, TypeError, ValueError, OSError) as error:
        errors.print(f"hostler: {error}", style="red", markup=False)
        return 2
    return 0 if done.result.stop_reason == "done" else 1


def harness_named(name: str) -> Harness:
    """The member with this value; TypeError that names the one probably meant."""
    try:
        return Harness(name.replace("-", "_"))
    except ValueError:
        check_harness(name)
        raise


def _one_turn(session: Session, prompt: str, console: Console, json_lines: bool) -> Done:
    stream = session.stream(prompt)
    view = View(console)
    done: Done | None = None
    with _CancelOnInterrupt(stream):
        for event in stream:
            if json_lines:
                sys.stdout.write(json_line(event) + "\n")
                sys.stdout.flush()
            else:
                view.show(event)
            if isinstance(event, Done):
                done = event
    assert done is not None
    return done


class _CancelOnInterrupt:
    """The first Ctrl-C cancels the turn, which then ends with its Done; the second leaves at once."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._asked = False

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, *_: object) -> None:
        if self._asked:
            os._exit(130)
        self._asked = True
        sys.stderr.write("\nCancelling the turn; Ctrl-C again leaves at once.\n")
        self._stream.cancel_soon()


def _write_state(path: Path, state: State) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(state.dumps())
    fresh.replace(path)
