"""What a check works with: one program, a scripted model, folders of its own, and looks at what the model was told."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hostler

from ...faces import Session
from ...types.events import Done, Record
from ...types.runtime import Capabilities
from ...types.state import State
from ..model_server import ModelServer
from .offered import Offered, offered

KEY = "scripted"
PATIENCE = 60.0  # seconds that a busy machine may take for what takes one or two
RECALL = "What do you remember? CODEWORD-now"  # answered with every word that the model was told in the conversation
LEAVING = 10.0  # seconds in which all that a check has started must be gone when it is over


class Unmet(AssertionError):
    """What a row promises was not seen; the message says what was."""


def expect(met: object, saw: str) -> None:
    """Raise Unmet, with what was seen, unless it is ``met``."""
    if not met:
        raise Unmet(saw)


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.03)
    return bool(condition())


def prompt(*steps: Mapping[str, Any], say: str = "") -> str:
    """A prompt that has the scripted model take these steps."""
    return f"{say} @@{json.dumps(list(steps))}@@".strip()


@dataclass(frozen=True, eq=False)
class Subject:
    """One program to be tried: ``harness`` as every verb takes it, ``title`` for people, a ``model`` that the program has
    no rules of its own for, and further ``options`` of every session (``options={"program": ...}``)."""

    name: str
    title: str
    harness: Any
    model: str = "gpt-5"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def capabilities(self) -> Capabilities:
        return hostler.agent_capabilities(self.harness)


class Bench:
    """One program on the bench. All that it leaves is below ``root``."""

    def __init__(self, subject: Subject, root: Path, models: ModelServer) -> None:
        self.subject, self.root, self.models = subject, root, models
        self.can = subject.capabilities
        self.state_dir, self.workspace = root / "state", root / "workspace"
        self.workspace.mkdir()

    # ---- sessions

    def options(self, **more: Any) -> dict[str, Any]:
        """The options of a session in ``local``, in the bench's workspace."""
        return {
            "model": self.subject.model,
            "api_base": self.models.url,
            "api_key": KEY,
            "state_dir": str(self.state_dir),
            "sandbox": hostler.sandbox.local(self.workspace),
            **self.subject.options,
            **more,
        }

    def open(self, **more: Any) -> Session:
        return hostler.agent_session(self.subject.harness, **self.options(**more))

    def resume(self, state: State, **more: Any) -> Session:
        return hostler.agent_resume(state, **self.options(**more))

    @contextlib.contextmanager
    def chat(self, **more: Any) -> Iterator[Callable[..., hostler.harness.Result]]:
        """A session under a key, whose caller owns the transcript: ``say(messages)`` is one turn."""
        options = self.options(**more)
        host = hostler.local_host(data_dir=options.pop("state_dir"))
        harness = hostler.create_harness(host=host, runtime=self.subject.harness, **options)
        try:
            yield lambda messages: hostler.generate_harness(harness=harness, messages=messages, session="chat")
        finally:
            harness.sessions.delete("chat")

    def app(self, *prompts: str, cwd: Path | None = None, env: Mapping[str, str] = {}, **options: Any) -> App:
        """An app in a process of its own that takes these prompts in one session. Its options must be picklable."""
        given = {**self.options(), **options}
        if "sandbox" not in options:
            given["sandbox"] = ("local", str(self.workspace))
        return App({"harness": self.subject.harness, "options": given, "prompts": prompts}, cwd=cwd, env=env)

    # ---- what the model was told

    def told(self, since: int = 0) -> str:
        """The model calls after the first ``since`` of them, as JSON."""
        return json.dumps([call.body for call in self.models.calls[since:]], ensure_ascii=False)

    def settle(self) -> None:
        """Wait until no model call has come for a second."""
        before = -1
        while before != (before := len(self.models.calls)):
            time.sleep(1.0)

    def offered(self) -> dict[str, Offered]:
        """The tools that the last model call which offered any did offer."""
        for call in reversed(self.models.calls):
            if tools := offered(call.body):
                return tools
        return {}


class App:
    """An app in a process of its own (see `child`), read line by line, that can be killed."""

    def __init__(self, job: Mapping[str, Any], *, cwd: Path | None, env: Mapping[str, str]) -> None:
        path = os.pathsep.join(p for p in (*sys.path, os.getcwd()) if p)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hostler.testing.conformance.child", base64.b64encode(pickle.dumps(job)).decode()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path, **env},
        )
        self.lines: list[str] = []

    def until(self, start: str, count: int = 1) -> str:
        """The rest of the line that is the ``count``-th to begin with this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(start) and sum(seen.startswith(start) for seen in self.lines) >= count:
                return line[len(start) :].strip()
        assert self.process.stderr is not None
        words = (self.process.stderr.read().strip() or "nothing").splitlines()[-1]
        raise Unmet(f"the app ended before it said {start!r}: its last words are {words}")

    def state(self) -> State:
        """The last State that it has said."""
        return State.loads(next(line[6:] for line in reversed(self.lines) if line.startswith("state ")))

    def end(self) -> State:
        """Wait for its end; the State that it left."""
        self.until("left")
        return self.state()

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)

    def __enter__(self) -> App:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def records(session: Session, last: str) -> list[Record]:
    """The journal up to the `Done` of this turn."""
    found: list[Record] = []
    for record in session.follow(0):
        found.append(record)
        if isinstance(record.event, Done) and record.turn == last:
            break
    return found


def of_turn(found: list[Record], number: int) -> list[Any]:
    """The events of the session's turn with this number, from 0."""
    turns = list(dict.fromkeys(record.turn for record in found if record.turn))
    expect(len(turns) > number, f"the journal has {len(turns)} turns")
    return [record.event for record in found if record.turn == turns[number]]


class Tails:
    """Two processes of a tool, one with a session of its own, that never end by themselves."""

    def __init__(self, workspace: Path) -> None:
        self.mark = f"tail-{uuid.uuid4().hex}"
        self.begun = workspace / "begun"
        (workspace / self.mark).touch()
        hold = f"echo >> begun; exec tail -f {self.mark}"
        self.command = f"setsid sh -c '{hold}' & sh -c '{hold}'"

    def run(self) -> bool:
        """Whether both were started."""
        return self.begun.exists() and len(self.begun.read_text().splitlines()) == 2

    def alive(self) -> list[int]:
        return naming(self.mark.encode())


def naming(word: bytes) -> list[int]:
    """The processes of this machine that have the word in their arguments or environment and are no zombies; this one
    and the apps that it runs left out."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid, folder = int(name), Path("/proc", name)
            if pid == os.getpid() or folder.joinpath("stat").read_bytes().rsplit(b")", 1)[1].split()[0] in b"ZX":
                continue
            if word in folder.joinpath("cmdline").read_bytes() or word in folder.joinpath("environ").read_bytes():
                found.append(pid)
    return found


def clear(root: Path) -> list[int]:
    """End what still names this folder, and remove it; the processes that had been left."""
    word = os.fsencode(root)
    left = [] if until(lambda: not naming(word), LEAVING) else naming(word)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(root, ignore_errors=True)
    return left
