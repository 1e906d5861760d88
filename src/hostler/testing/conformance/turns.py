"""Checks of a turn: what the model says, what the app is told of it, and how it ends."""

from __future__ import annotations

import json
import time
from typing import Any

from ...types.errors import CapabilityUnsupported
from ...types.events import Done, FileChange, ModelCall, Retract, Text, ToolCall, ToolResult
from .bench import PATIENCE, RECALL, Bench, Tails, expect, prompt, records, until

ODD = 'hay \N{HORSE FACE} Æ مرحبا \u2028 \ufeff \x1b[31m \\ud83d {"type": "result"} 中文'


def turn(bench: Bench) -> None:
    with bench.open() as session:
        stream = session.stream(prompt({"text": "Neigh, said the horse."}, say="Speak, CODEWORD-first."))
        events = list(stream)
        result = stream.result
        expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
        expect(result.text == "Neigh, said the horse.", f"the answer is {result.text!r}")
        dones = [isinstance(event, Done) for event in events]
        expect(dones[-1] and sum(dones) == 1, f"{sum(dones)} Done among {len(events)} events, the last is {events[-1]}")
        again = session.run(RECALL)
        expect("CODEWORD-first" in again.text, f"in its second turn the model was told {again.text!r}")


def deltas(bench: Bench) -> None:
    at = _pieces(bench)
    expect(len(at) >= 3, f"an answer in 12 pieces came in {len(at)}")
    expect(at[-1] - at[0] > 0.4, f"pieces that were said over 2 s all came within {at[-1] - at[0]:.2f} s")


def deltas_denied(bench: Bench) -> None:
    at = _pieces(bench)
    expect(len(at) == 1, f"an answer came in {len(at)} pieces: say so in the sheet")


def _pieces(bench: Bench) -> list[float]:
    """When the pieces of an answer came that the model said over two seconds."""
    said = " ".join(f"word{n}" for n in range(12))
    with bench.open() as session:
        session.run("Hello.")  # a program that has just been started may be too busy to say anything
        stream = session.stream(prompt({"text": said, "chunks": 12, "chunk_delay": 0.2}))
        at = [time.monotonic() for event in stream if isinstance(event, Text)]
        expect(stream.result.text == said, f"the answer is {stream.result.text!r}")
    return at


def shell(bench: Bench) -> None:
    with bench.open() as session:
        result = session.run(prompt({"shell": "echo oats > feed.txt; cat feed.txt"}, {"text": "fed"}))
    expect(
        (result.stop_reason, result.text) == ("done", "fed"), f"{result.stop_reason}: {result.text!r} {result.error}"
    )
    calls = [(e.name, e.builtin) for e in result.events if isinstance(e, ToolCall)]
    expect(calls == [("bash", True)], f"the calls were {calls}")
    outputs = [e for e in result.events if isinstance(e, ToolResult)]
    expect(len(outputs) == 1 and "oats" in outputs[0].output and not outputs[0].is_error, f"its results: {outputs}")
    changes = [(e.kind, e.path) for e in result.events if isinstance(e, FileChange)]
    expect(changes == [("created", "feed.txt")], f"the changes were {changes}")
    expect((bench.workspace / "feed.txt").read_text() == "oats\n", "it ran elsewhere than in the workspace")


def steer(bench: Bench) -> None:
    # The tool ends when it is let, so that the word comes while it runs.
    wait = "for n in $(seq 600); do [ -e go ] && break; sleep 0.1; done; echo went"
    with bench.open() as session:
        stream = session.stream(prompt({"shell": f"touch began; {wait}"}, {"text": "on my way"}))
        expect(until((bench.workspace / "began").exists), "the tool did not begin")
        joined = session.stream("Take CODEWORD-left here.", on_busy="steer")
        time.sleep(1.0)  # until it has been told
        (bench.workspace / "go").touch()
        result = stream.wait()
        expect(joined.wait().turn_id == result.turn_id, "it became a turn of its own")
        expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
        expect("CODEWORD-left" in bench.told(), "the model was not told of it in this turn")


def steer_refused(bench: Bench) -> None:
    with bench.open() as session:
        stream = session.stream(prompt({"text": "slow", "chunks": 2, "chunk_delay": 2.0}))
        next(stream)
        try:
            session.run("Left.", on_busy="steer")
        except CapabilityUnsupported:
            stream.wait()
        else:
            expect(False, "it was steered all the same")


def images(bench: Bench) -> None:
    expect(PIXEL in _shown(bench), "the picture did not reach the model")


def images_refused(bench: Bench) -> None:
    told = _shown(bench)
    expect(PIXEL not in told, "the picture reached the model: say so in the sheet")
    expect("pixel.png" in told, "the model was not told the path of the picture")


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def _shown(bench: Bench) -> str:
    url = f"data:image/png;base64,{PIXEL}"
    picture = {"type": "file", "mediaType": "image/png", "filename": "pixel.png", "url": url}
    parts: list[Any] = [{"type": "text", "text": "What is this?"}, picture]
    with bench.chat() as say:
        result = say([{"id": "m1", "role": "user", "parts": parts}])
        expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
    return bench.told()


def cancel(bench: Bench) -> None:
    tails = Tails(bench.workspace)
    with bench.open() as session:
        session.run("Remember CODEWORD-one.")
        stream = session.stream(prompt({"shell": tails.command}))
        expect(until(tails.run), "the tool did not begin")
        expect(len(tails.alive()) >= 2, "its processes are not seen")
        start = time.monotonic()
        session.cancel()
        reason = stream.wait().stop_reason
        expect(reason == "cancelled", f"the turn ended with {reason}")
        gone = until(lambda: not tails.alive(), 5 - (time.monotonic() - start))
        expect(gone, f"5 s after the cancel {len(tails.alive())} of its processes are left")
        after = session.run(RECALL)
        expect("CODEWORD-one" in after.text, f"the next turn gave {after.text!r} {after.error}")


def usage(bench: Bench) -> None:
    ordinary = (150, 40, 30)  # what the scripted model says of a call without a word on it, on every wire
    given = [(1000, 7, 100), (2000, 11, 0), (3000, 13, 2500)]
    used = [{"usage": {"input": i, "output": o, "cached": c}} for i, o, c in given]
    with bench.open() as session:
        first = session.run("Hello.")
        steps = [{"shell": "echo 1", **used[0]}, {"shell": "echo 2", **used[1]}, {"text": "done", **used[2]}]
        result = session.run(prompt(*steps))
        # The program's own, for titles and the like.
        side = len(bench.models.calls) - first.usage.calls - len(given)
        bench.settle()
        known = len(bench.models.calls)
        last = session.run("Bye.")  # what is asked for behind a turn is counted with the next one
        calls = [r.event for r in records(session, last.turn_id) if isinstance(r.event, ModelCall)]
        total = session.usage
    within = result.usage.calls - len(given)
    expect(0 <= within <= side, f"{result.usage.calls} calls, of {side + len(given)} that the model had")
    wire = [sum(column) + within * each for column, each in zip(zip(*given, strict=True), ordinary, strict=True)]
    got = [result.usage.input_tokens, result.usage.output_tokens, result.usage.cached_tokens]
    expect(got == wire, f"input, output, cached: {got}, the wire said {wire}")
    expect(total == first.usage + result.usage + last.usage, f"the session has {total}")
    expect(total.calls > known, f"of {known} calls and one more only {total.calls} are counted")
    expect(len(calls) == total.calls, f"{len(calls)} calls in the journal, {total.calls} in the sum")


def cut(bench: Bench) -> None:
    with bench.open() as session:
        session.run("Hello.")
        bench.settle()  # titles and the like are made with, or behind, the first turn
        broken = {"text": "one two three four", "chunks": 4, "chunk_delay": 0.1, "drop": True}
        bench.models.script([broken, *[{"text": "whole"}] * 3])
        result = session.run("Go on.")
        calls = [r.event.status for r in records(session, result.turn_id) if isinstance(r.event, ModelCall)]
        expect("cut" in calls, f"no call was cut: {calls}")
        expect((result.stop_reason, result.text) == ("done", "whole"), f"{result.text!r}, {result.error}")
        shown: dict[str, str] = {}
        for event in result.events:
            if isinstance(event, Text):
                shown[event.item] = shown.get(event.item, "") + event.delta
            elif isinstance(event, Retract):
                shown.pop(event.item, None)
        expect("".join(shown.values()) == "whole", f"what was shown and not taken back is {shown}")


def cut_ends(bench: Bench) -> None:
    with bench.open() as session:
        session.run("Remember CODEWORD-one.")
        step = {"text": "one two three four", "chunks": 4, "chunk_delay": 0.1, "drop": True}
        start = time.monotonic()
        result = session.run(prompt(step, say="Go on."))
        expect(result.stop_reason == "error", f"the turn ended with {result.stop_reason}")
        expect(time.monotonic() - start < PATIENCE, "the turn took more than a minute to end")
        bench.models.script([{"text": "again"}] * 3)
        after = session.run("Again, CODEWORD-again.")
        expect(after.stop_reason == "done", f"the turn after it ended with {after.stop_reason}: {after.error}")


def refused_model(bench: Bench) -> None:
    with bench.open() as session:
        session.run("Hello.")
        start = time.monotonic()
        result = session.run(prompt({"error": 401, "message": "no such key"}))
        took = time.monotonic() - start
        code = result.error.code if result.error else None
        expect((result.stop_reason, code) == ("error", "model_auth"), f"{result.stop_reason}, {result.error}")
        expect(took < PATIENCE / 2, f"it took {took:.0f} s to say so")
        bench.models.script([{"text": "again"}] * 3)
        after = session.run("Again, CODEWORD-again.")
        expect(after.stop_reason == "done", f"the turn after it ended with {after.stop_reason}: {after.error}")


def odd_bytes(bench: Bench) -> None:
    noise = r"printf 'a\377\376\000\033[31m\033]0;t\007\r\n\342\200\250b'; yes x | head -c 70000 | tr -d '\n'; printf '\360\237'"
    names = r"printf 'n\351\377 \"' | xargs -0 touch; printf y > '{\"a\": 1}'"
    with bench.open() as session:
        result = session.run(prompt({"shell": f"{noise}; {names.replace(chr(92) + chr(34), chr(34))}"}, {"text": ODD}))
        expect(result.stop_reason == "done", f"the turn ended with {result.stop_reason}: {result.error}")
        expect(result.text == ODD, f"the answer {ODD!r} came as {result.text!r}")
        expect(len(result.files) == 2, f"the files of odd names are {[change.path for change in result.files]}")
        told = session.run(f"Say it: {ODD} \x07 CODEWORD-odd")
        expect("CODEWORD-odd" in told.text, f"a prompt of odd characters was answered with {told.text!r}, {told.error}")
        missing = [word for word in ("\N{HORSE FACE}", "مرحبا", "\u2028", "中文") if word not in bench.told()]
        expect(not missing, f"the model was not told {missing}")
        json.dumps([str(record.event) for record in records(session, told.turn_id)])
