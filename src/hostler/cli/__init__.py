"""The command line: run, chat, sessions, show, trace, approvals, answer, files, artifacts, cat, diff, commit, rm, ps,
kill, gc, doctor, demo."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

app = typer.Typer(
    name="hostler",
    help="Runs complete agent programs in durable sessions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Key = Annotated[str, typer.Argument(help="The session's key, or its beginning.")]
DataDir = Annotated[str | None, typer.Option(help="Where the sessions are; without it HOSTLER_STATE_DIR or your own.")]

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


@app.command("chat")
def chat_(
    key: Key,
    harness: Annotated[str | None, typer.Option(help="The program, for a new session: claude_code, codex, ...")] = None,
    model: Annotated[str | None, typer.Option(help="litellm_proxy/<group>, or a provider's model name.")] = None,
    workdir: Annotated[str | None, typer.Option(help="Work in this directory.")] = None,
    permissions: Annotated[str | None, typer.Option(help="full, read-only, edit or ask.")] = None,
    instructions: Annotated[str | None, typer.Option(help="Added to the program's own system prompt.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Talk with an agent program under a key; the same key goes on with the conversation later."""
    from .chat import chat_command
    from .terminal import guarded

    given = {"model": model, "permissions": permissions, "instructions": instructions}
    options = {name: value for name, value in given.items() if value is not None}
    raise typer.Exit(guarded(lambda: chat_command(key, data_dir, harness=harness, workdir=workdir, options=options)))


@app.command("sessions")
def sessions_(data_dir: DataDir = None) -> None:
    """List the sessions, the last used first."""
    from .sessions import sessions_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: sessions_command(data_dir)))


@app.command("show")
def show_(key: Key, data_dir: DataDir = None) -> None:
    """Show a session: its rules, its usage, its turns."""
    from .sessions import show_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: show_command(key, data_dir)))


@app.command("trace")
def trace_(
    key: Key,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as records come, until Ctrl-C.")] = False,
    after: Annotated[int, typer.Option(help="Only records with greater numbers.")] = 0,
    format: Annotated[Literal["pretty", "json"], typer.Option(help="For people, or a record a line.")] = "pretty",
    data_dir: DataDir = None,
) -> None:
    """Show what happened in a session: its journal."""
    from .terminal import guarded
    from .trace import trace_command

    raise typer.Exit(
        guarded(lambda: trace_command(key, data_dir, follow=follow, pretty=format == "pretty", after=after))
    )


@app.command("approvals")
def approvals_(
    key: Annotated[str | None, typer.Argument(help="The session's key, or its beginning; without it, all.")] = None,
    data_dir: DataDir = None,
) -> None:
    """List the questions of agents that wait for an answer, whichever app runs them."""
    from .approvals import approvals_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: approvals_command(key, data_dir)))


@app.command("answer")
def answer_(
    key: Key,
    id: Annotated[str, typer.Argument(help="Which question, as `hostler approvals` names it.")],
    allow: Annotated[bool | None, typer.Option("--allow/--deny", help="The answer.")] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text", help="The answer to a question that asks for more; id=text when it asks several things."
        ),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Told to the agent with a no.")] = None,
    always: Annotated[bool, typer.Option("--always", help="Answer all questions like this one so, for good.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Answer a question of an agent. The app that runs the turn gives it on; when that is gone, the next one does."""
    from .approvals import answer_command
    from .terminal import guarded

    raise typer.Exit(
        guarded(lambda: answer_command(key, id, data_dir, allow=allow, reason=reason, always=always, texts=text or []))
    )


@app.command("files")
def files_(
    key: Key,
    path: Annotated[str | None, typer.Argument(help="As in /session/src or src; without it, every folder.")] = None,
    data_dir: DataDir = None,
) -> None:
    """List files of a session."""
    from .browse import files_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: files_command(key, path, data_dir)))


@app.command("artifacts")
def artifacts_(key: Key, data_dir: DataDir = None) -> None:
    """List the artifacts of a session, every version of them."""
    from .browse import artifacts_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: artifacts_command(key, data_dir)))


@app.command("cat")
def cat_(
    key: Key,
    path: Annotated[str, typer.Argument(help="A path, or the SHA-256 of an artifact (8 digits are enough).")],
    data_dir: DataDir = None,
) -> None:
    """Write a file or an artifact of a session to standard output."""
    from .browse import cat_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: cat_command(key, path, data_dir)))


@app.command("diff")
def diff_(
    key: Key,
    path: Annotated[
        str | None, typer.Argument(help="A persistent dir: what is changed in it and not committed.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Show what the last finished turn changed in the workspace, or the uncommitted changes of a persistent dir; `git
    apply` takes it."""
    from .browse import diff_command
    from .persistent import diff_dir_command
    from .terminal import guarded

    raise typer.Exit(
        guarded(lambda: diff_command(key, data_dir) if path is None else diff_dir_command(key, path, data_dir))
    )


@app.command("commit")
def commit_(
    key: Key,
    path: Annotated[str | None, typer.Argument(help="The persistent dir; without it, all of the session.")] = None,
    merge: Annotated[
        Literal["fail", "ours", "theirs"] | None, typer.Option(help="For files that both sides have changed.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Store the uncommitted changes of a session's persistent dirs.

    Of dirs that hostler itself can reach: local_dir, project_dir, fsspec_dir. Those with functions of your app are
    committed in the app, with session.commit(). Exit code: 1 when something is not committed.
    """
    from .persistent import commit_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: commit_command(key, path, merge, data_dir)))


@app.command("rm")
def rm_(
    key: Key,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Remove a session for good: its program, its journal, its files."""
    from .sessions import rm_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: rm_command(key, data_dir, yes)))


@app.command("ps")
def ps_(data_dir: DataDir = None) -> None:
    """List the agent programs that live for the sessions here, with the pid of their keeper.

    State: running (a turn with its app), orphaned (a turn whose app is gone), idle (an app holds it), parked (nobody
    does). Memory is that of all its processes.
    """
    from .ps import ps_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: ps_command(data_dir)))


@app.command("kill")
def kill_(key: Key, data_dir: DataDir = None) -> None:
    """End the turn and the program of a session, whichever app has them. The session can be resumed."""
    from .ps import kill_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: kill_command(key, data_dir)))


@app.command("gc")
def gc_(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Remove what nobody owns: programs of deleted sessions, processes, sockets and folders of dead apps."""
    from .ps import gc_command
    from .terminal import guarded

    raise typer.Exit(guarded(lambda: gc_command(dry_run, data_dir)))


@app.command("doctor")
def doctor_(
    session: Annotated[str | None, typer.Argument(help="Examine this session instead.")] = None,
    data_dir: DataDir = None,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Have an agent try to get out of each sandbox; takes some seconds.")
    ] = False,
) -> None:
    """Say which programs, sandboxes and gateways work here, and how to get the others; or how a session is.

    Exit code: 0 when at least one program can be run besides the tool loop, which needs nothing.
    """
    from .doctor import doctor_command
    from .examine import examine_command
    from .selftest import selftest_command
    from .terminal import guarded

    if session is not None:
        raise typer.Exit(guarded(lambda: examine_command(session, data_dir)))
    raise typer.Exit(guarded(selftest_command if selftest else doctor_command))


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
