"""hostler run"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import termios
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from .. import api, sandbox
from ..faces import Session
from ..host.settings import Settings
from ..stream import Stream
from ..types.errors import HarnessError, StateIncompatible
from ..types.events import Approval, Done
from ..types.questions import Question
from ..types.state import State
from .terminal import FAILED, console, harness_named
from .view import View, json_line, printable

_LOOK = 0.5  # s between looks whether a question is still open


@dataclass(frozen=True, slots=True)
class Job:
    """What the command line asks for."""

    harness: str
    prompt: str
    options: dict[str, Any]
    workdir: str | None = None
    resume: str | None = None
    state: str | None = None
    json_lines: bool = False


def run_command(job: Job) -> int:
    """One turn in a new or resumed session; its exit code."""
    prompt = _prompt(job)
    keep = Path(kept) if (kept := job.state or job.resume) else None
    with _open(job) as session:
        if keep is not None:
            _write_state(keep, session.state())  # so that the turn can be found again whatever happens to this process
        with Signals() as signals:
            done = one_turn(session, prompt, signals, job)
        if keep is not None:
            _write_state(keep, session.detach())
    if done.result.stop_reason == "done":
        return 0
    return 128 + signals.got if signals.got else FAILED


def _prompt(job: Job) -> str:
    try:
        prompt = sys.stdin.read() if job.prompt == "-" else job.prompt
        prompt.encode()
    except UnicodeError:
        raise ValueError("The prompt is not UTF-8 text.") from None
    if not prompt.strip():
        raise ValueError("The prompt is empty.")
    return prompt


def _open(job: Job) -> Session:
    harness = harness_named(job.harness)
    options = dict(job.options)
    if job.workdir is not None:
        options["sandbox"] = sandbox.auto(job.workdir)
    if job.resume is None:
        return api.agent_session(harness, **options)
    state = State.loads(Path(job.resume).read_bytes())
    if state.harness != harness.value:
        raise StateIncompatible(f"{job.resume} holds a session of {state.harness}, not of {harness.value}.")
    return api.agent_resume(state, **options)


def one_turn(session: Session, prompt: str, signals: Signals, job: Job) -> Done:
    progress = console(stderr=True)
    view = View(console(), progress, live=sys.stdout.isatty())
    stream = signals.stream = session.stream(prompt)
    for event in stream:
        if job.json_lines:
            sys.stdout.write(json_line(event) + "\n")
            sys.stdout.flush()
        else:
            view.show(event)
        if isinstance(event, Approval):
            _answer(session, event, signals, view)
        if isinstance(event, Done):
            done = event
    if done.result.files and job.workdir is None and not job.json_lines:
        progress.print(f"in {session.workdir}", style="dim", soft_wrap=True)
    return done


def _answer(session: Session, approval: Approval, signals: Signals, view: View) -> None:
    """Ask the person at the terminal; where there is none the answer is no."""
    answers: dict[str, list[str]] | None = None
    allow, reason = False, "Nobody is there to answer."
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is no answer to it
        typed = [
            _typed(asked, session, approval, signals, view)
            for asked in [_asked(question) for question in approval.questions] or ["allow? [y/N] "]
        ]
        said = [text for text in typed if text is not None]
        if len(said) < len(typed):
            return
        reason = "The user said no."
        allow = said[0].lower() in ("y", "yes")
        if approval.questions:
            pairs = zip(approval.questions, said, strict=True)
            answers = {
                q.id: [t.strip() for t in text.split(",")] if q.multiple else [text] for q, text in pairs if text
            }
            allow = bool(answers)
    try:
        session.answer(approval.id, allow, None if allow else reason, answers=answers if allow else None)
    except HarnessError:
        pass  # answered elsewhere, or the turn is over: the stream shows which
    except ValueError as error:
        session.answer(approval.id, False, str(error))


def _asked(question: Question) -> str:
    choices = f" [{' | '.join(choice.label for choice in question.choices)}]" if question.choices else ""
    return printable(f"{question.text}{choices} ")


def _typed(asked: str, session: Session, approval: Approval, signals: Signals, view: View) -> str | None:
    """The line that is typed in answer; None when the question is no longer open."""
    view.ask(asked)
    while not select.select([sys.stdin], [], [], _LOOK)[0]:
        if signals.got or approval.id not in [a.id for a in session.approvals()]:
            return None
    return sys.stdin.readline().strip()


class Signals:
    """The first Ctrl-C (or SIGTERM, SIGHUP) cancels the turn, which then ends with its Done; the second leaves.

    They are taken in a thread, through Python's wake-up descriptor: the main thread waits for the turn in a lock, and a
    signal that comes on the way into it would be noticed only after the wait.
    """

    def __init__(self) -> None:
        self.got = 0
        self.stream: Stream | None = None

    def __enter__(self) -> Signals:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {s: signal.signal(s, _nothing) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        self._thread = threading.Thread(target=self._watch, name="hostler-signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        self._writer.close()
        self._thread.join()
        self._reader.close()

    def _watch(self) -> None:
        while numbers := self._reader.recv(16):
            for number in numbers:
                if number in self._before:
                    self._take(number)

    def _take(self, number: int) -> None:
        if self.got or self.stream is None:
            ttl = Settings.read().orphan_ttl
            _say(f"Left. What may still run of the turn is ended by its keeper within {ttl:g} s.")
            os._exit(128 + number)
        self.got = number
        _say("Cancelling the turn; Ctrl-C again leaves at once.")
        self.stream.cancel_soon()


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal has no other effect."""


def _say(text: str) -> None:
    try:  # not a print, which the main thread may be in the middle of
        os.write(2, f"\n{text}\n".encode())
    except OSError:
        pass  # the terminal is gone


def _write_state(path: Path, state: State) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(state.dumps())
    fresh.replace(path)
