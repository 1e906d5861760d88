"""Odd bytes: what programs send that they should not, through each codec and through the whole stack."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import hostler
from hostler import portal
from hostler.harness import Done, Notice, Text, acp_agent
from hostler.outcome import result_of
from hostler.progress import Progress, advance, begun
from hostler.runtimes import runtime_for
from hostler.telemetry.redaction import Masker
from hostler.testing.model_server import ModelServer
from hostler.types import runtime as seam
from hostler.types.events import event_from_dict, event_to_dict
from hostler.types.runtime import Codec, Ended, Frame, Harness, Interrupt, LaunchContext, Prompt
from tests.conftest import SOAK, keepers_of, processes_of, wait_until
from tests.runtimes import recorded
from tests.sessions.programs import (
    ACP,
    CLAUDE,
    CODEX,
    DEEP_AGENTS,
    FAKE_PROGRAM,
    IN_SOAK,
    OPENCODE,
    TOOL_LOOP,
    Program,
    ids,
)

pytestmark = pytest.mark.usefixtures("nothing_left")
FAKE = FAKE_PROGRAM.harness

# ---- the codecs, on recorded streams that were tampered with --------------------------------------------------------

CODECS: dict[str, Any] = {
    "claude": Harness.CLAUDE_CODE,
    "codex": Harness.CODEX,
    "opencode": Harness.OPENCODE,
    "pi": Harness.PI,
    "gemini": Harness.GEMINI_CLI,
    **{program.name: program.harness for program in (TOOL_LOOP, DEEP_AGENTS, *ACP)},
}
STREAMS = sorted(path.stem for path in recorded.STREAMS.glob("*.jsonl"))
SMALL = 200_000  # bytes that the state of a codec may have after any recording
ODD = [
    None,
    True,
    0,
    -1,
    0.5,
    1e308,
    10**400,
    "",
    "x",
    "\u2028",
    "\0",
    "\ud83d",
    [],
    {},
    [[]],
    [None],
    [{}],
    {"a": [1]},
]
NOISE = [
    b"npm warn deprecated",
    b"\xff\xfe\x00\x80",
    "\ufeffUTF-16?".encode("utf-16"),
    "编码".encode("gbk"),
    b"\0" * 50,
    b"{" * 2000,
    b'{"type": "result"',
    b'{"a": ' + b"9" * 5000 + b"}",
    b"[1, 2]",
    b"null",
    b"",
]


@cache
def stream(name: str) -> tuple[Codec, LaunchContext, list[Any]]:
    codec = runtime_for(CODECS[name.split("-")[0]]).codec
    if not name.startswith("claude-"):
        return codec, *recorded.load(name)
    items: list[Any] = []
    for number, line in enumerate((recorded.STREAMS / f"{name}.jsonl").read_text().splitlines(), 1):
        entry = json.loads(line)
        if "out" in entry:
            items.append(Frame(number, "out", entry["out"].encode()))
        else:
            kind, fields = entry["do"]
            images = {"images": tuple(map(tuple, fields["images"]))} if kind == "Prompt" else {}
            items.append(getattr(seam, kind)(**{**fields, **images}))
    return codec, recorded.context(new_id="00000000-0000-4000-8000-000000000001"), items


def frames_of(items: list[Any]) -> list[int]:
    return [at for at, item in enumerate(items) if isinstance(item, Frame) and item.kind == "out"]


def fold(codec: Codec, ctx: LaunchContext, items: list[Any]) -> tuple[list[Any], list[Ended]]:
    """Fold as a turn does and check that all of it can be stored, shown and ended."""
    progress, masker = begun(codec, codec.start(ctx)), Masker([])
    journal: list[Any] = []
    ends: list[Ended] = []
    for item in items:
        step = advance(codec, progress, item)
        progress = step.progress
        for event, parent in step.events:
            assert event_to_dict(event_from_dict(json.loads(json.dumps(event_to_dict(event))))) == event_to_dict(event)
            journal += masker.events(event, parent)
        ends += [step.end] if step.end else []
    stored = json.dumps(progress.to_dict(), allow_nan=False)
    assert len(stored.encode()) < SMALL
    assert json.dumps(Progress.from_dict(json.loads(stored)).to_dict()) == stored
    json.dumps(event_to_dict(Done(result_of((ends or [Ended()])[-1], journal, (), session="s", turn="t"))))
    # And whatever state it is in, it can be interrupted, spoken to again, and be seen to end.
    progress = advance(codec, progress, Interrupt()).progress
    progress = advance(codec, progress, Prompt("last", "again")).progress
    last = advance(codec, progress, Frame(1 << 40, "exit", b"1"))
    assert last.end or last.unfit
    return journal, ends


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a JSON value something is, itself left out."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield (*path, key)
        yield from paths(part, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> bytes:
    """The value as JSON with ``new`` in this place; Ellipsis takes the place out."""
    value = copy.deepcopy(value)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    if new is ...:
        del inside[path[-1]]
    else:
        inside[path[-1]] = new
    return json.dumps(value).encode()


@st.composite
def tampered(draw: st.DrawFn, name: str) -> list[Any]:
    """A recording in which one to three lines are not what they were."""
    items = list(stream(name)[2])
    for _ in range(draw(st.integers(1, 3))):
        if not (places := frames_of(items)):
            break
        at = draw(st.sampled_from(places))
        frame: Frame = items[at]
        data = frame.data
        where = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["cut", "in two", "noise", "joined", "bytes", "frame", "again", "gone", "field"]))
        lines: list[bytes]
        match how:
            case "cut":
                lines = [data[:where]]
            case "in two":
                lines = [data[:where], draw(st.sampled_from(NOISE)), data[where:]]
            case "noise":
                lines = [draw(st.sampled_from(NOISE) | st.binary(max_size=60)).replace(b"\n", b""), data]
            case "joined":
                lines = [data + draw(st.sampled_from([b"", b" ", b"x", b"\0"])) + data]
            case "bytes":
                odd = draw(st.sampled_from([b"\xff", b"\xe2\x80", "\u2028".encode(), b"\0", b"\\ud83d", b"\r", b'"']))
                lines = [data[:where] + odd + data[where:]]
            case "frame":
                lines = [b"\xef\xbb\xbf" + data + b"\r"]
            case "again":
                lines = [data, data]
            case "gone":
                lines = []
            case _:
                try:
                    value = json.loads(data)
                except ValueError:
                    continue
                if not (fields := list(paths(value))):
                    continue
                lines = [put(value, draw(st.sampled_from(fields)), draw(st.sampled_from([..., *ODD])))]
        items[at : at + 1] = [Frame(frame.no, "out", line) for line in lines]
    return items


@pytest.mark.longer
@pytest.mark.parametrize("name", STREAMS)
def test_a_tampered_stream_is_folded(name: str) -> None:
    """Cases D04, D05, D13, D14, D16, A13."""
    codec, ctx, _ = stream(name)

    @settings(
        max_examples=400 if SOAK else 25,
        deadline=None,
        derandomize=not SOAK,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(tampered(name))
    def check(items: list[Any]) -> None:
        fold(codec, ctx, items)

    check()


@pytest.mark.parametrize("name", ["claude-tool", "codex-turns", "opencode-turns", "pi-turns", "gemini-turns"])
def test_noise_between_the_lines_changes_nothing(name: str) -> None:
    """Foreign lines around every line, two objects on one line, BOM and CR: the same events, and notices of the noise."""
    codec, ctx, items = stream(name)
    plain, ends = fold(codec, ctx, items)
    assert not any(isinstance(event, Notice) and event.code == "not_understood" for event, _ in plain)
    noisy: list[Any] = []
    for number, item in enumerate(items):
        if isinstance(item, Frame) and item.kind == "out":
            noisy.append(Frame(item.no, "out", b"warn: [%d] \xff" % number))
            item = Frame(item.no, "out", b"\xef\xbb\xbf" + item.data + b' {"unknown": true}\r')
        noisy.append(item)
    seen, noisy_ends = fold(codec, ctx, noisy)
    assert [e for e in seen if not (isinstance(e[0], Notice) and e[0].code == "noise")] == plain
    assert noisy_ends == ends
    assert len(seen) > len(plain)


@pytest.mark.parametrize("name", ["claude-cut-always", "claude-tool", "codex-turns", "opencode-turns", "pi-turns"])
def test_a_turn_ends_whatever_the_fields_of_its_last_message_hold(name: str) -> None:
    """Nobody waits for ever: only what makes a message the end of this turn must be right."""
    needed = {"type", "method", "id", "user_message_uuids", "threadId", "params", "turn"}
    codec, ctx, items = stream(name)
    progress = begun(codec, codec.start(ctx))
    found = 0
    for item in items:
        step = advance(codec, progress, item)
        if step.end and isinstance(item, Frame) and item.kind == "out":
            value = json.loads(item.data)
            for path in paths(value):
                if path[-1] in needed or needed & {"user_message_uuids"} & set(path):
                    continue
                for odd in (..., *ODD):
                    found += 1
                    assert advance(codec, progress, Frame(item.no, "out", put(value, path, odd))).end, (path, odd)
        progress = step.progress
    assert found > 20


@pytest.mark.longer
@given(st.lists(st.binary(max_size=80) | st.sampled_from(NOISE), max_size=6))
@example([b"\xe2\x80", b"\xa8"])
@settings(deadline=None, database=None, derandomize=not SOAK)
def test_bytes_of_any_kind_before_the_first_word(lines: list[bytes]) -> None:
    for harness in CODECS.values():
        codec = runtime_for(harness).codec
        items = [Prompt("t", "x"), *(Frame(n, "out", line) for n, line in enumerate(lines, 1))]
        fold(codec, recorded.context(new_id="n"), items)


# ---- the whole stack, with a program that says what it is told to ---------------------------------------------------


@pytest.fixture
def session(models: ModelServer) -> Iterator[Any]:
    with hostler.agent_session(FAKE, timeout=60, **FAKE_PROGRAM.options(models)) as session:
        yield session


def steps(*steps: dict[str, Any]) -> str:
    return json.dumps(list(steps))


def line(text: str) -> str:
    return json.dumps({"ev": "text", "item": "i", "delta": text}, ensure_ascii=False)


def streamed(result: Any) -> str:
    return "".join(e.delta for e in result.events if isinstance(e, Text))


@pytest.mark.parametrize(
    "size", [(64 << 10) - 1, 64 << 10, 1 << 20, 20_000_000, pytest.param(64 << 20, marks=pytest.mark.soak)]
)
def test_long_lines(session: Any, size: int) -> None:
    """Case D01: the exact text."""
    result = session.run(steps({"deltas": 1, "size": size}))
    assert (result.stop_reason, len(result.text), len(streamed(result))) == ("done", size, size)
    assert result.text.strip("x") == "0 "
    assert session.run("next").stop_reason == "done"


def test_a_line_of_emoji_and_a_byte_at_a_time(session: Any) -> None:
    """Cases D05, A13, D16: characters on the edges of chunks; every exotic line separator."""
    emoji = "é漢😀" * 40_000
    assert streamed(session.run(steps({"raw": line(emoji)}))) == emoji
    text = "é漢😀 \u2028\u2029\x85\x0b\x0c \\u2028 \t end"
    result = session.run(steps({"raw": line(text), "slow": 0.001}, {"text": text}))
    assert streamed(result) == text + text
    assert result.text == text
    assert not result.warnings


def test_the_prompt_comes_back_as_it_was(session: Any) -> None:
    """Case A13: on the way in, and in the history after a resume."""
    text = "CODEWORD \u2028\u2029\x85\x0b\x0c\r\n\ttab é漢😀 \x00 \x7f"
    assert session.run(text).text == f"You said: {text}"
    assert session.history()[-2:] == [
        {"role": "user", "content": text},
        {"role": "assistant", "content": f"You said: {text}"},
    ]


def test_a_prompt_that_is_none_is_refused(session: Any, models: ModelServer) -> None:
    for prompt, why in (("", "is empty"), (" \n\u2003\t", "is empty"), ("ab\ud83dc", r"'\\ud83d' at index 2.*replace")):
        for call in (
            session.run,
            lambda prompt: list(session.stream(prompt)),
            lambda prompt: hostler.agent(FAKE, prompt, **FAKE_PROGRAM.options(models)),
            lambda prompt: list(hostler.agent_stream(FAKE, prompt, **FAKE_PROGRAM.options(models))),
        ):
            with pytest.raises(ValueError, match=why) as raised:
                call(prompt)
            assert type(raised.value) is ValueError
    assert models.calls == []


def test_noise_around_json(session: Any) -> None:
    """Cases D04, D13, D14: a notice says what was seen; the turn goes on."""
    half = "漢".encode()
    b64 = [base64.b64encode(data).decode() for data in ("编码错误".encode("gbk"), "x".encode("utf-16"), b"\0\xff\xfe")]
    result = session.run(
        steps(
            {"raw": "npm warn " + line("one")},
            {"raw": line("two") + line("three") + " " + line("four")},
            {"base64": base64.b64encode(b'{"ev": "text", "delta": "' + half[:2]).decode(), "newline": False},
            {"raw": "a foreign line in the middle of a character"},
            {"base64": base64.b64encode(half[2:] + b'"}').decode()},
            *({"base64": data} for data in b64),
            {"raw": "\ufeff" + line("five") + "\r"},
            {"raw": "{" * 100_000},
            {"raw": ""},
            {"text": "end"},
        )
    )
    assert (result.stop_reason, result.error) == ("done", None)
    assert streamed(result) == "onetwothreefourfiveend"
    warnings = "\n".join(result.warnings)
    assert "npm warn" in warnings
    assert "foreign line" in warnings
    assert len(warnings) < 5000
    assert session.run("next").warnings == ()


def test_what_is_not_understood_is_said(session: Any) -> None:
    odd = [
        {"ev": "text"},
        {"ev": "tool_call", "id": [], "name": {}},
        {"ev": ["text"]},
        {"ev": "text", "item": 1, "delta": 2},
    ]
    result = session.run(steps(*({"raw": json.dumps(message)} for message in odd), {"text": "end"}))
    assert (result.stop_reason, result.text) == ("done", "end")
    assert "delta" in "\n".join(result.warnings)


@pytest.mark.parametrize(
    "stderr",
    [1000, 65536, 65537, 10_000_000, ("e" * 79 + "\n") * 2000],
    ids=lambda stderr: str(stderr) if isinstance(stderr, int) else "lines",
)
def test_stderr_of_any_size(session: Any, stderr: int | str) -> None:
    """Case D07: it is always read, and of its end a little is kept for the error."""
    result = session.run(steps({"text": "before"}, {"stderr": stderr}, {"text": " after"}))
    assert (result.stop_reason, result.text) == ("done", "before after")
    result = session.run(steps({"stderr": stderr}, {"stderr": "\nthe last words"}, {"exit": 3}))
    assert result.error is not None
    assert result.error.code == "program_exited"
    assert "code 3" in result.error.message
    assert "the last words" in result.error.message
    assert len(result.error.message) < 5000
    assert session.run("next").stop_reason == "done"


def test_the_last_words_are_plain_text(session: Any) -> None:
    """Colours, titles, a cursor that moves, a NUL, a progress bar."""
    said = "\x1b[1;31mError\x1b[0m: \x1b]0;title\x07no\x1b[2K\x00 \x1b(Bkey\x9b\r\n10%\r20%\x1b]8;;open\nlast é"
    result = session.run(steps({"stderr": said}, {"exit": 3}))
    assert result.error is not None
    assert result.error.message.endswith("Its last words: Error: no key\n10%\n20%\nlast é")


def test_a_chatty_program_is_heard_for_its_whole_life(session: Any) -> None:
    """Case D08."""
    for turn in range(10):
        assert session.run(steps({"stderr": 1_000_000}, {"text": f"{turn}"}, {"stderr": 1000})).text == f"{turn}"


@pytest.mark.parametrize("size", [100_000, 131_072, 2_000_000, 10_000_000])
def test_long_prompts(session: Any, size: int) -> None:
    """Case D10: they go by stdin."""
    result = session.run("p" * size)
    assert len(result.text) == size + len("You said: ")
    assert max(map(len, session.run(steps({"say": "argv"})).text.split())) < 4000


@pytest.mark.real
def test_long_instructions(models: ModelServer) -> None:
    """Case D10: instructions of 100 KB are in no argument."""
    with hostler.agent_session(CLAUDE.harness, instructions="i" * 100_000, **CLAUDE.options(models)) as session:
        assert session.run("hello").stop_reason == "done"
    assert any("i" * 100_000 in json.dumps(r.body) for r in models.calls)


def test_a_program_that_closes_stdout_but_lives(session: Any) -> None:
    session.run("CODEWORD-one")
    for more in ({"hang": True}, {"deaf": True}):
        start = time.monotonic()
        result = session.run(steps({"text": "a"}, {"close": "stdout"}, more, {"hang": True}))
        assert time.monotonic() - start < 10
        assert result.error is not None
        assert result.error.code == "program_exited"
        assert "closed its stdout" in result.error.message
    assert "CODEWORD-one" in session.run(steps({"say": "memory"})).text


def test_a_program_that_ends_without_a_result(session: Any) -> None:
    result = session.run(steps({"text": "half an answer"}, {"exit": 0}))
    assert (result.stop_reason, result.text) == ("error", "half an answer")
    assert result.error is not None
    assert "code 0" in result.error.message
    result = session.run(steps({"raw": '{"ev": "text", "item": "i", "del', "newline": False}, {"exit": 0}))
    assert "del" in "\n".join(result.warnings)  # what it was about to say
    assert session.run("next").stop_reason == "done"


def test_a_program_that_never_answers(models: ModelServer, tmp_path: Path) -> None:
    """Not even hello: the turn has its limit, close is bounded, and what it said is told."""
    silent = tmp_path / "silent.py"
    silent.write_text("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n")
    options = {**FAKE_PROGRAM.options(models), "options": {"program": [sys.executable, str(silent)]}}
    with hostler.agent_session(FAKE, **options) as session:
        start = time.monotonic()
        assert session.run("x", timeout=0.5).stop_reason == "timeout"
        assert time.monotonic() - start < 8


def test_a_program_that_never_exits(models: ModelServer, state_dir: Path) -> None:
    session = hostler.agent_session(FAKE, **FAKE_PROGRAM.options(models))
    turn = session.stream(steps({"text": "a"}, {"spawn": "setsid", "stubborn": True}, {"deaf": True}, {"hang": True}))
    next(turn)
    start = time.monotonic()
    session.close()
    assert time.monotonic() - start < 10
    assert turn.wait().stop_reason == "cancelled"
    assert wait_until(lambda: not processes_of(state_dir), 5)


@pytest.mark.longer
def test_many_short_events(session: Any, state_dir: Path) -> None:
    """Case D02: in order, and neither keeper nor host grows with what has been read."""
    count = 200_000 if SOAK else 20_000
    session.run("warm up")
    (keeper,) = keepers_of(state_dir)
    me = psutil.Process()
    before, peak = me.memory_info().rss, 0
    turn = session.stream(steps({"deltas": count, "size": 340 if SOAK else 0}), timeout=110)
    seen = 0
    for event in turn:
        if isinstance(event, Text):
            assert event.delta.split()[0] == str(seen)
            seen += 1
            if seen % 5000 == 0:
                peak = max(peak, keeper.memory_info().rss)
    assert seen == count
    assert turn.result.stop_reason == "done"
    print(
        f"{count} events: keeper {peak >> 20} MB at most, this process grew by {(me.memory_info().rss - before) >> 20} MB"
    )
    assert peak < 64 << 20
    # A Result holds all events of its turn: about 300 bytes each, besides what they say.
    assert me.memory_info().rss - before < count * 4000 + (64 << 20)


def test_a_prompt_that_is_cancelled_while_it_is_written(session: Any) -> None:
    """Case D17: frames go out whole or not at all."""
    session.run("CODEWORD-one")
    session.run(steps({"deaf": True}, {"text": "hears no more"}))
    turn = session.stream("p" * 10_000_000)
    time.sleep(0.3)
    session.cancel()
    assert turn.wait().stop_reason == "cancelled"
    assert "CODEWORD-one" in session.run(steps({"say": "memory"})).text


# ---- odd prompts, to the real programs ------------------------------------------------------------------------------

ODD_PROMPTS = (
    "-p --version",
    "--help",
    "@README.md what is in it?",
    "@",
    "/help",
    "/compact",
    "/clear all",
    "/init",
    "!ls -la",
    "#remember this",
    "$HOME `id` $(id)",
    "\u2028line\u2029separators\x85 é漢😀",
    "  spaces around  ",
)


def texts(body: Any) -> Iterator[str]:
    """Every string in a request."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, (dict, list)):
        for part in body.values() if isinstance(body, dict) else body:
            yield from texts(part)


@pytest.mark.real
@pytest.mark.parametrize("program", [CLAUDE, CODEX, OPENCODE, *IN_SOAK], ids=ids)
def test_the_model_gets_the_prompt_as_it_was(program: Program, models: ModelServer, workspace: Path) -> None:
    """Case D10: nothing of a prompt is an option, a command or a file name to the program."""
    (workspace / "README.md").write_text("SECRET CONTENT")
    box = hostler.sandbox.local(workspace)
    with hostler.agent_session(program.harness, sandbox=box, **program.options(models)) as session:
        for prompt in (*ODD_PROMPTS, "long " * 40_000):
            before = len(models.calls)
            result = session.run(prompt, timeout=30)
            assert (result.stop_reason, result.error) == ("done", None), prompt[:50]
            bodies = [request.body for request in models.calls[before:]]
            assert any(prompt in text for body in bodies for text in texts(body)), prompt[:50]
            assert not any("SECRET CONTENT" in text for body in bodies for text in texts(body))
        told = [m["content"] for m in session.history() if m["role"] == "user"]
    assert [text for text in told if text in ODD_PROMPTS] == list(ODD_PROMPTS)
    assert os.listdir(workspace) == ["README.md"]


def test_the_log_of_a_program_that_is_over_is_gone(models: ModelServer, state_dir: Path) -> None:
    def logs() -> list[Path]:
        return [*state_dir.glob("sessions/*/private/keeper/*/spool")]

    options = FAKE_PROGRAM.options(models)
    with hostler.agent_session(FAKE, **options) as session:
        session.run(steps({"text": "one"}))
        assert len(logs()) == 1
        state = session.detach()
    assert len(logs()) == 1, "whoever attaches reads on in it"
    with hostler.agent_resume(state, **options) as session:
        assert session.run(steps({"text": "two"})).text == "two"
        assert session.resumed == "attached"
        session.stop()
    assert logs() == []
    assert len([*state_dir.glob("sessions/*/private/keeper/*/keeper.log")]) == 1
    with hostler.agent_resume(state, **options) as session:
        assert session.run(steps({"text": "three"})).text == "three"
        assert session.run(steps({"exit": 3})).stop_reason == "error"
        assert wait_until(lambda: logs() == [], 5), "its turn is stored, and it has ended"


@pytest.mark.longer
def test_a_flood_of_tiny_lines_holds_up_neither_the_end_nor_the_loop(tmp_path: Path, models: ModelServer) -> None:
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\nexec yes '{\"a\":1}'\n")
    agent.chmod(0o755)
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    with hostler.agent_session(acp_agent([str(agent)]), **FAKE_PROGRAM.options(models)) as session:
        beating = portal.engine().submit(beat())
        start = time.monotonic()
        result = session.run("hello", timeout=4)
        took = time.monotonic() - start
        beating.cancel()
    assert result.stop_reason == "timeout"
    assert took < 4 + 4
    assert longest < 2
    assert time.monotonic() - start < 4 + 8
