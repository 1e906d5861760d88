"""The command line: run, ps, kill, gc, doctor, demo."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

app = typer.Typer(
    name="hostler",
    help="Runs complete agent programs in durable sessions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_RUN_HELP = """Run one turn of an agent program.

The answer goes to standard output, all else to standard error. Ctrl-C cancels the turn, which still ends properly; a
second Ctrl-C leaves at once.

Exit code: 0 the turn is done, 1 it failed, 2 it could not begin, 130 cancelled by Ctrl-C.
"""


@app.command("run", help=_RUN_HELP)
def run_(
    harness: Annotated[str, typer.Argument(help="claude_code, codex, ... (`hostler doctor` lists them).")],
    prompt: Annotated[str, typer.Argument(help="What to say; - reads it from standard input.")],
    model: Annotated[str | None, typer.Option(help="litellm_proxy/<group>, or a provider's model name.")] = None,
    workdir: Annotated[
        str | None, typer.Option(help="Work in this directory; without it in a new one of the session's own.")
    ] = None,
    state: Annotated[str | None, typer.Option(help="Keep the session: write its State into this file.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with the session of this State file, and write the new State back.")
    ] = None,
    permissions: Annotated[str | None, typer.Option(help="full, read-only, edit or ask.")] = None,
    instructions: Annotated[str | None, typer.Option(help="Added to the program's own system prompt.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for the turn.")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Model calls of the main agent.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="US dollars for the turn.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One event a line on standard output.")] = False,
) -> None:
    from .run import Job, run_command
    from .terminal import guarded

    given = {
        "model": model,
        "permissions": permissions,
        "instructions": instructions,
        "timeout": timeout,
        "max_turns": max_turns,
        "max_cost": max_cost,
    }
    options = {name: value for name, value in given.items() if value is not None}
    job = Job(harness, prompt, options, workdir=workdir, resume=resume, state=state, json_lines=json)
    raise typer.Exit(guarded(lambda: run_command(job)))


@app.command("ps")
def ps_() -> None:
    """List the agent programs that live for the state dir, with the pid of their keeper.

    State: running (a turn with its app), orphaned (a turn whose app is gone), idle (an app holds it), parked (nobody
    does). Memory is that of all its processes.
    """
    from .ps import ps_command
    from .terminal import guarded

    raise typer.Exit(guarded(ps_command))


@app.command("kill")
def kill_(key: Annotated[str, typer.Argument(help="The session, as `hostler ps` names it.")]) -> None:
    """End the turn and the program of a session, whichever app has them. The session can be resumed."""
    from .ps import kill_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: kill_command(key)))


@app.command("gc")
def gc_(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove what nobody owns: programs of deleted sessions, processes, sockets and folders of dead apps."""
    from .ps import gc_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: gc_command(dry_run)))


@app.command("doctor")
def doctor_() -> None:
    """Say which programs, sandboxes and gateways work here, and how to get the others."""
    from .doctor import doctor_command
    from .terminal import guarded

    raise typer.Exit(guarded(doctor_command))


@app.command("demo")
def demo_(
    harness: Annotated[str, typer.Option(help="The program to show.")] = "claude_code",
    model: Annotated[str | None, typer.Option(help="A real model; without one a scripted model answers.")] = None,
) -> None:
    """A real agent program in a durable session: two turns, detach, resume from a second process."""
    from .demo import demo_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: demo_command(harness, model)))


def main() -> None:
    """Entry point of the ``hostler`` command."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us; the next file would get its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a question mark, not a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    app()
