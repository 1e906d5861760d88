"""Checks of a session that outlives its program, its app and its folders."""

from __future__ import annotations

import json
import shutil
from typing import Any

import hostler

from ...types.errors import CapabilityUnsupported, SessionLost, StateIncompatible
from ...types.events import Done, Retract, Text, ToolCall, ToolResult
from .bench import RECALL, App, Bench, Tails, expect, naming, of_turn, prompt, records, until

ANSWER = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu"


def new_process(bench: Bench) -> None:
    with bench.app("Remember CODEWORD-one.") as app:
        state = app.end()
    with bench.resume(state) as session:
        result = session.run(RECALL)
        expect("CODEWORD-one" in result.text, f"it remembers {result.text!r}, {result.error}")
        expect(session.resumed == "native", f"it was resumed as {session.resumed}")


def other_cwd(bench: Bench) -> None:
    """The app's directory is another one, and the data dir, with the workspace in it, was moved."""
    elsewhere, there = bench.root / "elsewhere", bench.root / "moved" / "state"
    elsewhere.mkdir()
    keep = prompt({"shell": "echo kept > kept.txt"}, {"text": "kept"}, say="CODEWORD-one")
    with bench.app(keep, cwd=elsewhere, sandbox="local") as app:
        state = app.end()
    there.parent.mkdir()
    shutil.move(bench.state_dir, there)
    with bench.resume(state, state_dir=str(there), sandbox=None) as session:
        result = session.run(prompt({"shell": "cat kept.txt; pwd"}, {"text": "done"}))
        outputs = [e.output for e in result.events if isinstance(e, ToolResult)]
        expect(outputs and "kept" in outputs[0] and session.workdir in outputs[0], f"the shell there said {outputs}")
        expect("CODEWORD-one" in bench.told(), "it does not remember")
        expect(session.resumed == "native", f"it was resumed as {session.resumed}")
    expect(not any(elsewhere.iterdir()), "it wrote into the directory of the app")


def _without_home(bench: Bench) -> tuple[hostler.State, int]:
    with bench.open() as session:
        session.run("Remember CODEWORD-one.")
        state = session.stop()
    for home in bench.state_dir.glob("sessions/*/home"):
        shutil.rmtree(home)
    return state, len(bench.models.calls)


def lost_home(bench: Bench) -> None:
    state, _ = _without_home(bench)
    with bench.resume(state) as session:
        result = session.run(RECALL)
        expect("CODEWORD-one" in result.text, f"it remembers {result.text!r}, {result.error}")
        expect(session.resumed == "native", f"it was resumed as {session.resumed}")


def home_is_needed(bench: Bench) -> None:
    state, before = _without_home(bench)
    try:
        with bench.resume(state) as session:
            result = session.run(RECALL)
    except (SessionLost, StateIncompatible):  # who knows where its history is says so: hostler, or the program
        expect(len(bench.models.calls) == before, "the model was asked in a session that is lost")
    else:
        expect(False, f"the session went on without its home: {result.text!r}")


def fork_session(bench: Bench) -> None:
    with bench.open() as session:
        session.run(prompt({"shell": "echo kept > kept.txt"}, {"text": "kept"}, say="CODEWORD-one"))
        with session.fork("fork") as other:
            result = other.run(prompt({"shell": "cat kept.txt; echo new > new.txt"}, {"text": "x"}, say="CODEWORD-two"))
            outputs = [e.output for e in result.events if isinstance(e, ToolResult)]
            expect(outputs and "kept" in outputs[0], f"the shell of the fork said {outputs}, {result.error}")
            expect("CODEWORD-one" in bench.told(), "the fork does not remember")
        before = len(bench.models.calls)
        session.run("Go on.")
        expect("CODEWORD-two" not in bench.told(before), "the original knows what was said in the fork")
        expect(not (bench.workspace / "new.txt").exists(), "the fork works in the original's workspace")


def fork_is_refused(bench: Bench) -> None:
    with bench.open() as session:
        session.run("Remember CODEWORD-one.")
        try:
            session.fork("fork").close()
        except CapabilityUnsupported:
            return
        expect(False, "the session was forked")


def edited(bench: Bench) -> str:
    """What became of an edited transcript; the model must know what is in it, and nothing else."""

    def user(word: str) -> dict[str, Any]:
        return {"role": "user", "content": f"Remember CODEWORD-{word}."}

    with bench.chat() as say:
        first = [user("one")]
        second = [*first, {"role": "assistant", "content": say(first).text}, user("two")]
        say(second)
        before = len(bench.models.calls)
        result = say([*second[:2], user("three")])
        expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
        told = bench.told(before)
        expect("CODEWORD-one" in told and "CODEWORD-three" in told, "the model was not told all of the transcript")
        expect("CODEWORD-two" not in told, "the model was told what was edited away")
        return result.context


def fork(bench: Bench) -> None:
    context = edited(bench)
    expect(context == "forked", f"the edited transcript was {context}")


def fork_is_told(bench: Bench) -> None:
    context = edited(bench)
    expect(context == "seeded", f"the edited transcript was {context}: say in the sheet that it can fork")


def restart(bench: Bench) -> None:
    """The app is killed while an answer streams; the next one brings that turn to its one `Done`."""
    slow = prompt({"text": ANSWER, "chunks": 12, "chunk_delay": 0.15}, say="CODEWORD-two")
    with bench.app("Remember CODEWORD-one.", slow) as app:
        app.until("result")
        app.until("event Text", 2)
        app.kill()
        state = _state(app)
    with bench.resume(state) as session:
        before = len(bench.models.calls)
        result = session.run(RECALL)
        found = records(session, result.turn_id)
        expect(session.resumed == "attached", f"it was resumed as {session.resumed}")
    told = bench.told(before)
    expect("CODEWORD-one" in told and "CODEWORD-two" in told, f"it does not remember, and answers {result.text!r}")
    events = of_turn(found, 1)
    dones = [event.result for event in events if isinstance(event, Done)]
    expect(len(dones) == 1 and isinstance(events[-1], Done), f"the turn has {len(dones)} Done")
    if not bench.can.repeats_cut_calls:
        expect(dones[0].error or dones[0].text == ANSWER, f"the turn ended well, with {dones[0].text!r}")
        return
    expect(dones[0].text == ANSWER, f"the answer is {dones[0].text!r}, {dones[0].error}")
    shown: dict[str, str] = {}
    for event in events:
        if isinstance(event, Text):
            shown[event.item] = shown.get(event.item, "") + event.delta
        elif isinstance(event, Retract):
            shown.pop(event.item, None)
    expect("".join(shown.values()) == ANSWER, f"what was shown and not taken back is {shown}")
    numbers = [record.seq for record in found]
    expect(numbers == list(range(1, len(numbers) + 1)), f"the journal's numbers are {numbers}")


def restart_in_tool(bench: Bench) -> None:
    """The app is killed while a tool runs, which runs once."""
    wait = "timeout 60 sh -c 'until [ -e go ]; do sleep 0.1; done'"  # one program refuses "$(...)"
    command = f"echo begun >> log.txt; {wait}; echo ended >> log.txt"
    log = bench.workspace / "log.txt"
    with bench.app("Remember CODEWORD-one.", prompt({"shell": command}, {"text": "ran"}, say="CODEWORD-two")) as app:
        app.until("result")
        expect(until(log.exists), "the tool did not begin")
        app.kill()
        state = _state(app)
    with bench.resume(state) as session:
        (bench.workspace / "go").touch()
        result = session.run(RECALL)
        events = of_turn(records(session, result.turn_id), 1)
    expect(log.read_text() == "begun\nended\n", f"the tool left {json.dumps(log.read_text())}")
    calls = [event.id for event in events if isinstance(event, ToolCall)]
    results = [event.id for event in events if isinstance(event, ToolResult)]
    expect(len(calls) == 1 and results == calls, f"its calls {calls} have the results {results}")
    ended = [event.result for event in events if isinstance(event, Done)]
    expect([r.stop_reason for r in ended] == ["done"], f"the turn ended with {ended}")


def sweep(bench: Bench) -> None:
    """The app is killed while a tool runs, and nobody comes."""
    tails = Tails(bench.workspace)
    with bench.app(prompt({"shell": tails.command}), env={"HOSTLER_ORPHAN_TTL": "1"}) as app:
        expect(until(tails.run), "the tool did not begin")
        expect(len(tails.alive()) >= 2, "its processes are not seen")
        app.kill()
    home = str(bench.state_dir).encode()
    gone = until(lambda: not tails.alive() and not naming(home))
    expect(gone, f"{len(tails.alive())} processes of the tool are left, {len(naming(home))} of the program")


def _state(app: App) -> hostler.State:
    app.process.wait(30)
    return app.state()
