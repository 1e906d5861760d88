"""Checks of the rules of a session: what an agent may change, what it is asked for, and its limits."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hostler

from ...sandboxes import probe
from ...types.events import Approval, ToolResult
from ...types.runtime import Permissions
from ..model_server import ModelServer
from . import offered
from .bench import RECALL, Bench, Subject, expect, prompt
from .offered import Offered

WAYS = ("write by its tool", "write by shell", "outside by its tool", "outside by shell", "/tmp", "network")
_HELD = frozenset(WAYS[2:])  # what neither "edit" nor "read-only" lets anybody do


@cache
def tools_of(subject: Subject) -> dict[str, Offered]:
    """The tools of the program where it may do everything: what is tried where it may not."""
    with TemporaryDirectory(prefix="hostler-") as folder, ModelServer() as models:
        bench = Bench(subject, Path(folder), models)
        with bench.open() as session:
            session.run("What can you do?")
            return bench.offered()


# ---- permissions ----------------------------------------------------------------------------------------------------


def mode(permissions: Permissions, bench: Bench) -> None:
    """What an agent could change in this mode, by its own tools and by its shell."""
    if permissions in bench.can.permissions:
        _judge(permissions, *attempt(bench, permissions))
        return
    # The mounts of the sandbox hold it, whatever the program can. (Where it has none, only the refusal can be seen.)
    _refused(bench, permissions=permissions)
    if probe.missing() is None:
        _judge(permissions, *attempt(bench, permissions, sandbox=hostler.sandbox.bubblewrap(bench.workspace)))


def _judge(permissions: Permissions, done: set[str], asked: int) -> None:
    inside = set(WAYS) - _HELD
    match permissions:
        case "full":  # everything by some way: the writing tools of some programs know their workspace alone
            missing = set(WAYS) - done - {"outside by its tool"}
            expect(not missing, f"it could not {', '.join(sorted(missing))}")
        case "edit":
            expect(done & inside, "it could not write in the workspace")
            expect(not done & _HELD, f"it could {', '.join(sorted(done & _HELD))}")
        case "read-only":
            expect(not done, f"it could {', '.join(sorted(done))}")
        case "ask":
            expect(not done, f"it could {', '.join(sorted(done))}, though all was denied")
            expect(asked >= 2, f"three attempts to change something were asked for {asked} times")


def attempt(bench: Bench, permissions: Permissions, **options: Any) -> tuple[set[str], int]:
    """Which of the ways came to something where every question is denied, and how many questions there were."""
    asked: list[Approval] = []

    def deny(approval: Approval) -> bool:
        asked.append(approval)
        return False

    known = tools_of(bench.subject)
    outside, temporary = bench.root / "outside", Path("/tmp") / f"probe-{uuid.uuid4().hex}"
    outside.mkdir()
    inside = {name: bench.workspace / name for name in ("by-tool", "by-shell")}
    more = {"on_approval": deny} if permissions == "ask" else {}
    try:
        with _listener() as (port, heard), bench.open(permissions=permissions, **more, **options) as session:
            paths = {"in": "by-shell", "out": str(outside / "by-shell"), "tmp": str(temporary)}
            seen = "/session" if "sandbox" in options else str(bench.workspace)
            steps = [
                offered.write(known, f"{seen}/by-tool", "x"),
                offered.write(known, str(outside / "by-tool"), "x"),
                offered.shell(known, offered.attempts(paths, sys.executable, port)),
                {"text": "done"},
            ]
            expect(all(steps), f"among its tools {sorted(known)} there is none to write with, or no shell")
            result = session.run(prompt(*[step for step in steps if step]))
            expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
            found = {
                "write by its tool": inside["by-tool"].exists(),
                "write by shell": any((bench.workspace / n).exists() for n in ("by-shell", "by-shell-python")),
                "outside by its tool": (outside / "by-tool").exists(),
                "outside by shell": any((outside / n).exists() for n in ("by-shell", "by-shell-python")),
                "/tmp": temporary.exists() or Path(f"{temporary}-python").exists(),
                "network": heard(),
            }
            return {way for way, done in found.items() if done}, len(asked)
    finally:
        for path in (temporary, Path(f"{temporary}-python")):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _listener() -> Iterator[tuple[int, Callable[[], bool]]]:
    """A port of this machine, and whether somebody has connected to it."""
    heard = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()
                    heard.set()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], lambda: heard.wait(0.2)
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def approvals(bench: Bench) -> None:
    asked: list[str] = []

    def answer(approval: Approval) -> bool:
        asked.append(json.dumps(approval.input))
        return "allowed.txt" in asked[-1]

    with bench.open(permissions="ask", on_approval=answer) as session:
        steps = [{"shell": f"echo x > {name}.txt"} for name in ("denied", "allowed")]
        result = session.run(prompt(*steps, {"text": "done"}))
    expect(
        (result.stop_reason, result.text) == ("done", "done"), f"{result.stop_reason}: {result.text!r} {result.error}"
    )
    expect(len(asked) == 2, f"two commands were asked for {len(asked)} times: {asked}")
    expect(not (bench.workspace / "denied.txt").exists(), "what was denied was done")
    expect((bench.workspace / "allowed.txt").exists(), "what was allowed was not done")
    results = [e.is_error for e in result.events if isinstance(e, ToolResult)]
    expect(results == [True, False], f"of the two results, is_error: {results}")
    shown = [e for e in result.events if isinstance(e, Approval)]
    expect(len(shown) == 2 and shown[0].tool == "bash", f"the questions are told as {shown}")


_ASKERS: dict[str, dict[str, Any]] = {  # the tools to ask a person with, and what each wants beside the question
    "AskUserQuestion": {"multiSelect": False},
    "request_user_input": {"id": "1"},
    "question": {},
}


def questions(bench: Bench) -> None:
    heard: list[str] = []

    def answer(approval: Approval) -> str | bool:
        heard.extend(question.text for question in approval.questions)
        return "In the CODEWORD-barn." if approval.questions else True

    with bench.open(on_approval=answer) as session:
        session.run("What can you do?")
        tools = bench.offered()
        found = [(tool, more) for name, more in _ASKERS.items() if (tool := offered.of_app(tools, name))]
        expect(found, f"among {sorted(tools)} there is no tool to ask with")
        tool, more = found[0]
        choices = [{"label": name, "description": name} for name in ("barn", "meadow")]
        asked = {"question": "Where is the mare?", "header": "mare", "options": choices, **more}
        result = session.run(prompt(tool.step(questions=[asked]), {"text": "done"}))
        expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
        expect(heard == ["Where is the mare?"], f"the person was asked {heard}")
        expect("CODEWORD-barn" in json.dumps(bench.models.calls[-1].body), "the model was not told the answer")
        state = session.stop()
    before = len(bench.models.calls)
    with bench.resume(state, on_approval=answer) as session:
        session.run(RECALL)
        expect("CODEWORD-barn" in bench.told(before), "resumed, it does not remember the answer")


def no_questions(bench: Bench) -> None:
    with bench.open(on_approval=bool) as session:
        session.run("What can you do?")
        found = [name for name in _ASKERS if offered.of_app(bench.offered(), name)]
        expect(not found, f"the model is offered {found}")


# ---- further rules --------------------------------------------------------------------------------------------------


def disable_tools(bench: Bench) -> None:
    call = offered.shell(tools_of(bench.subject), "touch ran")
    expect(call, "it has no shell")
    with bench.open(disable_tools=["bash"]) as session:
        session.run("What can you do?")
        expect(bench.models.calls, "the model was not asked")
        left = [name for name in bench.offered() if name == (call or {}).get("tool")]
        expect(not left, f"the model is still offered {left}")
        session.run(prompt(call or {}, {"text": "done"}))
        expect(not (bench.workspace / "ran").exists(), "a tool that is off ran all the same")


def allow_deny(bench: Bench) -> None:
    known = tools_of(bench.subject)
    call = offered.shell(known, "touch ran") or {}
    with bench.open(deny=["bash"]) as session:
        result = session.run(prompt(call, {"text": "done"}))
        expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
        expect(not (bench.workspace / "ran").exists(), "what deny= names ran")
    if "ask" not in bench.can.permissions:
        return
    asked: list[Approval] = []

    def deny(approval: Approval) -> bool:
        asked.append(approval)
        return False

    with bench.open(permissions="ask", allow=["bash"], on_approval=deny) as session:
        result = session.run(prompt(call, {"text": "done"}))
        expect(not asked, f"what allow= names was asked for: {asked}")
        expect((bench.workspace / "ran").exists(), f"what allow= names did not run: {result.events}")


def max_turns(bench: Bench) -> None:
    with bench.open(max_turns=2) as session:
        session.run("Hello.")
        before = len(bench.models.calls)
        result = session.run(prompt(*[{"shell": f"echo {n}"} for n in range(6)]))
        calls = len(bench.models.calls) - before
        expect(result.stop_reason == "max_turns", f"the turn ended with {result.stop_reason}: {result.error}")
        # Where hostler counts, one more may be under way before its stop gets there.
        expect(calls <= 3, f"{calls} model calls were made where two may be")


def effort(bench: Bench) -> None:
    said = []
    for level in ("low", "high"):
        before = len(bench.models.calls)
        with bench.open(effort=level) as session:
            result = session.run("Think.")
        expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
        said.append([_efforts(call.body) for call in bench.models.calls[before:]])
    expect(said[0] != said[1], f"the model is told {said[0]} for low and for high")


def _efforts(value: Any, inside: bool = False) -> list[Any]:
    """All that a model call says of thinking."""
    found: list[Any] = []
    for key, part in value.items() if isinstance(value, dict) else ():
        about = inside or bool(re.search("effort|think|reason", key, re.I))
        found += _efforts(part, about) if isinstance(part, dict) else [(key, part)] if about else []
    return found


# ---- refusals -------------------------------------------------------------------------------------------------------


def _refused(bench: Bench, **options: Any) -> None:
    """Such a session is not made."""
    try:
        bench.open(**options).close()
    except hostler.CapabilityUnsupported:
        expect(not bench.models.calls, "the model was asked before it was refused")
    else:
        expect(False, f"{', '.join(options)} was not refused")


def refusal(**options: Any) -> Callable[[Bench], None]:
    """The check of a no: a session that needs it is refused before anything is started."""
    return partial(_refused, **options)
