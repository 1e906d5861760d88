"""The command line: run, doctor, demo."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="hostler",
    help="Runs complete agent programs in durable sessions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

HarnessName = Annotated[str, typer.Argument(help="claude_code, codex, opencode, ...")]


@app.command()
def run(
    harness: HarnessName,
    prompt: Annotated[str, typer.Argument(help="What to say; - reads it from standard input.")],
    model: Annotated[str | None, typer.Option(help="litellm_proxy/<group>, or a provider's model name.")] = None,
    workdir: Annotated[str | None, typer.Option(help="Work in this directory; else in a new one of the session's own.")] = None,
    resume: Annotated[str | None, typer.Option(help="A file with a State: resume it, and write the new one back.")] = None,
    state: Annotated[str | None, typer.Option(help="Write the session's State into this file and park the program.")] = None,
    permissions: Annotated[str | None, typer.Option(help="full, read-only, edit or ask.")] = None,
    instructions: Annotated[str | None, typer.Option(help="Added to the program's own system prompt.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for the turn.")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Model calls of the main agent.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="US dollars for the turn.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One event a line.")] = False,
) -> None:
    """Run one turn. Ctrl-C cancels it, a second Ctrl-C leaves at once."""
    from .run import run_command

    given = {
        "model": model,
        "permissions": permissions,
        "instructions": instructions,
        "timeout": timeout,
        "max_turns": max_turns,
        "max_cost": max_cost,
    }
    options = {name: value for name, value in given.items() if value is not None}
    raise typer.Exit(run_command(harness, prompt, options, workdir=workdir, resume=resume, state=state, json_lines=json))


@app.command()
def doctor() -> None:
    """Say which programs, sandboxes and gateways work here, and how to get the others."""
    from .doctor import doctor_command

    raise typer.Exit(doctor_command())


@app.command()
def demo(
    harness: Annotated[str, typer.Option(help="The program to show.")] = "claude_code",
    model: Annotated[str | None, typer.Option(help="A real model; without one a scripted model answers.")] = None,
) -> None:
    """A real agent program in a durable session: two turns, detach, resume from a second process."""
    from .demo import demo_command

    raise typer.Exit(demo_command(harness, model))


def main() -> None:
    """Entry point of the ``hostler`` command."""
    app()
