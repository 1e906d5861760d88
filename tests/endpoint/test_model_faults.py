"""A model that refuses, breaks off or falls silent: what the program gets, what the session is told, how long it takes."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import httpx
import pytest
from endpoint_door import KEY, PATHS, TOKEN, WIRES, Door, Run, body, script

from hostler.endpoint.failures import Failure, pause_before, retry_after
from hostler.types.result import Usage

REFUSED = Usage(0, 0, 0, 1, partial=True)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "model_refused", False),
        (401, "model_auth", False),
        (403, "model_auth", False),
        (404, "model_refused", False),
        (413, "model_refused", False),
        (422, "model_refused", False),
        (402, "model_refused", False),
    ],
)
def test_a_refusal_is_final_at_once(run: Run, wire: str, status: int, code: str, retryable: bool) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        answer = await door.ask(wire, script(error=status, message="the reason", type="their_type"))
        assert answer.status_code == (status if wire == "anthropic" else 400)
        assert answer.headers["x-should-retry"] == "false"
        assert "the reason" in error_of(answer)["message"]
        [call] = door.calls
        assert call.error is not None
        assert (call.status, call.http_status, call.cost, call.usage) == ("refused", status, 0.0, REFUSED)
        assert (call.error.code, call.error.retryable) == (code, retryable)
        assert f"HTTP {status}" in call.error.message
        assert "the reason" in call.error.message
        assert len(door.server.calls) == 1

    run(test, patience=8.0)


def test_a_refusal_that_programs_act_on_goes_through_as_it_is(run: Run) -> None:
    async def test(door: Door) -> None:
        for wire, kind in (("anthropic", "invalid_request_error"), ("responses", "context_length_exceeded")):
            door.open(wire)
            answer = await door.ask(wire, script(error=400, type=kind, message="prompt is too long: 9 > 8"))
            assert error_of(answer)["message"] == "prompt is too long: 9 > 8"
            assert error_of(answer)["type"] == kind

    run(test)


@pytest.mark.parametrize("status", [408, 429, 529])
def test_a_passing_fault_is_not_seen_by_the_program(run: Run, status: int) -> None:
    async def test(door: Door) -> None:
        door.open("responses")
        door.server.script([{"error": status, "retry_after": 0.1}, {"drop": "before"}, {"text": "fine"}])
        answer = await door.ask("responses")
        assert "fine" in answer.text
        [call] = door.calls
        # the attempt that broke off may have been answered, and paid, unseen
        assert (call.status, call.cost, call.usage) == ("ok", None, Usage(150, 40, 30, 1, partial=True))
        assert len(door.server.calls) == 3

    run(test, patience=8.0)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("status", "code"), [(429, "model_rate_limited"), (503, "model_unavailable"), (529, "model_unavailable")]
)
def test_a_lasting_fault_ends_in_a_final_error(run: Run, wire: str, status: int, code: str) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        start = time.monotonic()
        answer = await door.ask(wire, script(error=status, message="overloaded"))
        assert time.monotonic() - start < 1.5
        assert answer.status_code == (status if wire == "anthropic" else 400)
        assert answer.headers["x-should-retry"] == "false"
        [call] = door.calls
        assert call.error is not None
        assert "overloaded" in call.error.message
        assert "attempts in" in call.error.message
        if wire == "chat":  # its clients repeat what reads like a passing fault
            assert "overloaded" not in answer.text
            assert not any(character.isdigit() for character in error_of(answer)["message"])
        else:
            assert "attempts in" in error_of(answer)["message"]
        if wire != "anthropic":
            assert error_of(answer)["type"] == "invalid_request_error"
        assert (call.status, call.http_status, call.cost) == ("refused", status, 0.0)
        assert (call.error.code, call.error.retryable) == (code, True)
        assert len(door.server.calls) == 2

    run(test, patience=0.5)


def test_the_provider_says_not_to_try_again(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("chat")
        for step in (
            {"error": 529, "headers": {"x-should-retry": "false"}},
            {"error": 429, "type": "insufficient_quota"},
            {"error": 429, "retry_after": 60},
            {"error": 503, "headers": {"retry-after": "Wed, 01 Jan 2200 00:00:00 GMT"}},
        ):
            door.server.clear()
            await door.ask("chat", script(**step))
            assert len(door.server.calls) == 1

    run(test, patience=8.0)


def test_all_attempts_begin_within_the_patience() -> None:
    failure, spent, attempt = Failure("model_unavailable", "x", again=True), 0.0, 1
    while (pause := pause_before(attempt, failure, spent, 8.0)) is not None:
        spent, attempt = spent + pause, attempt + 1
    assert 5 < spent <= 8.0
    assert 4 <= attempt <= 6
    assert pause_before(1, Failure("model_refused", "x"), 0.0, 8.0) is None


def test_retry_after_in_all_its_forms() -> None:
    assert retry_after({"retry-after": "7"}, 0) == 7
    assert retry_after({"retry-after": "0.5"}, 0) == 0.5
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}, 0) == 0.25
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 50) == 10
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 90) == 0
    for odd in ({}, {"retry-after": ""}, {"retry-after": "soon"}, {"retry-after": "-1"}, {"retry-after-ms": "x"}):
        assert retry_after(odd, 0) == 0


def reason(door: Door, wire: str, answer: httpx.Response) -> str:
    """What the program is told; chat programs, which repeat what reads like a passing fault, are not: the session is."""
    if wire != "chat":
        return str(error_of(answer)["message"])
    error = door.calls[-1].error
    assert error is not None
    return error.message


@pytest.mark.parametrize("wire", WIRES)
def test_a_model_that_cannot_be_reached(run: Run, wire: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def test(door: Door) -> None:
        door.open(wire, base=f"http://127.0.0.1:{port}")
        answer = await door.ask(wire)
        assert answer.status_code == (503 if wire == "anthropic" else 400)
        assert f"127.0.0.1:{port} cannot be reached" in reason(door, wire, answer)
        [call] = door.calls
        assert call.error is not None
        assert (call.status, call.http_status, call.cost, call.error.code) == (
            "refused",
            None,
            0.0,
            "model_unavailable",
        )

    run(test)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", ["drop", "truncate"])
def test_a_stream_that_breaks_off_breaks_off_for_the_program_too(run: Run, wire: str, fault: str) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await door.ask(wire, script(text="half of it", **{fault: True}))
        [call] = door.calls
        assert call.error is not None
        assert (call.status, call.http_status, call.cost, call.error.code) == ("cut", 200, None, "model_cut")
        assert call.usage == Usage(150 if wire == "anthropic" else 0, 0, 30 if wire == "anthropic" else 0, 1, True)
        assert "ANSWER" in (await door.ask(wire)).text  # and the next one is a call like any other

    run(test)


@pytest.mark.parametrize("wire", WIRES)
def test_the_call_after_three_broken_ones_is_refused_once(run: Run, wire: str) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        for _ in range(3):
            with pytest.raises(httpx.RemoteProtocolError):
                await door.ask(wire, script(text="x", drop=True))
        answer = await door.ask(wire)
        assert answer.status_code == (502 if wire == "anthropic" else 400)
        assert answer.headers["x-should-retry"] == "false"
        assert "3 times in a row" in reason(door, wire, answer)
        assert [c.status for c in door.calls] == ["cut", "cut", "cut", "refused"]
        assert door.calls[-1].error is not None
        assert (door.calls[-1].error.code, door.calls[-1].cost) == ("model_cut", 0.0)
        assert [c.usage.calls for c in door.calls] == [1, 1, 1, 0], "the refused one went nowhere"
        assert not door.calls[-1].usage.partial
        assert len(door.server.calls) == 3
        assert (await door.ask(wire)).status_code == 200

    run(test)


def test_a_program_that_waits_long_between_its_attempts_has_two(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostler.endpoint.forwarding.LONG_WAIT", 0.1)

    async def test(door: Door) -> None:
        door.open()
        for _ in range(2):
            with pytest.raises(httpx.RemoteProtocolError):
                await door.ask(prompt=script(text="x", drop=True))
            await asyncio.sleep(0.06)
        assert (await door.ask()).status_code == 502
        assert (await door.ask()).status_code == 200

    run(test)


def test_a_refusal_that_nobody_came_for_is_forgotten(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostler.endpoint.forwarding.REFUSAL_TTL", 0.05)

    async def test(door: Door) -> None:
        door.open()
        for _ in range(3):
            with pytest.raises(httpx.RemoteProtocolError):
                await door.ask(prompt=script(text="x", drop=True))
        await asyncio.sleep(0.1)
        assert (await door.ask()).status_code == 200

    run(test)


def test_a_whole_answer_or_a_new_turn_forgets_broken_ones(run: Run) -> None:
    async def test(door: Door) -> None:
        async def cut(times: int) -> None:
            for _ in range(times):
                with pytest.raises(httpx.RemoteProtocolError):
                    await door.ask(prompt=script(text="x", drop=True))

        door.open()
        await cut(2)
        assert (await door.ask()).status_code == 200
        await cut(2)
        assert (await door.ask()).status_code == 200
        await cut(3)
        door.open()
        assert (await door.ask()).status_code == 200

    run(test)


def test_streams_that_break_together_count_once(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open()
        prompt = script(text="x", hang=0.1, drop=True)
        broken = await asyncio.gather(*(door.ask(prompt=prompt) for _ in range(6)), return_exceptions=True)
        assert all(isinstance(b, httpx.RemoteProtocolError) for b in broken)
        assert (await door.ask()).status_code == 200

    run(test)


def test_an_answer_that_is_not_streamed_and_breaks_is_asked_for_again(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open("responses")
        door.server.script([{"drop": True, "text": "x"}])
        assert "ANSWER" in (await door.ask("responses", stream=False)).text
        [call] = door.calls
        assert (call.status, call.cost, call.usage.partial) == ("ok", None, True)

    run(test, patience=2.0)


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_told_at_the_start_of_a_stream_is_tried_again(run: Run, wire: str) -> None:
    """Seen by a raw upstream: the error is the stream's first event."""
    errors = {
        "anthropic": b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n',
        "responses": b'data: {"type":"response.failed","response":{"error":{"code":"server_error","message":"busy"}}}\n\n',
        "chat": b'data: {"error":{"message":"busy","type":"server_error"}}\n\n',
    }

    async def test(door: Door) -> None:
        async with raw_upstream(sse(errors[wire])) as (base, seen):
            door.open(wire, base=base)
            answer = await door.ask(wire)
        assert answer.status_code == (503 if wire == "anthropic" else 400)
        assert "busy" in reason(door, wire, answer)
        assert len(seen) == 2
        assert [c.error.code for c in door.calls if c.error] == ["model_unavailable"]

    run(test, patience=0.5)


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_told_in_mid_stream(run: Run, wire: str) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        seen = b""
        prompt = body(wire, script(text="x y", chunk_delay=0.05, stream_error="overloaded_error"))
        with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012
            async with door.http.stream("POST", PATHS[wire], json=prompt, headers={"x-api-key": TOKEN}) as answer:
                async for piece in answer.aiter_bytes():
                    seen += piece
        assert b"overloaded_error" in seen
        [call] = door.calls
        assert call.error is not None
        assert (call.status, call.error.code) == ("cut", "model_cut")

        door.calls.clear()
        final = await door.ask(wire, script(text="x", chunk_delay=0.05, stream_error="context_length_exceeded"))
        assert "context_length_exceeded" in final.text
        [call] = door.calls
        assert call.error is not None
        assert (call.status, call.error.code, call.cost) == ("refused", "model_refused", None)

    run(test)


@pytest.mark.parametrize("wire", WIRES)
def test_silence_before_an_answer(run: Run, wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLER_MODEL_SILENCE", "0.3")

    async def test(door: Door) -> None:
        door.open(wire)
        start = time.monotonic()
        answer = await door.ask(wire, script(text="x", delay=5))
        assert 0.25 < time.monotonic() - start < 2
        assert answer.status_code == (504 if wire == "anthropic" else 400)
        assert "sent nothing for 0.3 s" in error_of(answer)["message"]
        [call] = door.calls
        assert call.error is not None
        assert (call.status, call.error.code, call.cost) == ("silent", "model_silent", None)
        assert len(door.server.calls) == 1

    run(test, silence=None, patience=8.0)


@pytest.mark.parametrize("wire", WIRES)
def test_silence_in_mid_stream(run: Run, wire: str) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        with pytest.raises(httpx.RemoteProtocolError):
            await door.ask(wire, script(text="x", hang=5))
        again = await door.ask(wire)
        assert again.status_code == (504 if wire == "anthropic" else 400)
        assert [c.status for c in door.calls] == ["silent", "refused"]
        assert [c.error.code for c in door.calls if c.error] == ["model_silent"] * 2
        assert [c.cost for c in door.calls] == [None, 0.0]
        assert len(door.server.calls) == 1
        assert (await door.ask(wire)).status_code == 200

    run(test, silence=0.3)


def test_a_program_that_leaves(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open()
        for step in ({"delay": 10}, {"hang": 10}):
            door.calls.clear()
            door.server.clear()
            leaving = asyncio.create_task(door.ask(prompt=script(text="x", **step)))
            while not door.server.calls:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            leaving.cancel()
            for _ in range(100):
                if door.calls:
                    break
                await asyncio.sleep(0.01)
            [call] = door.calls
            assert (call.status, call.usage.calls, call.usage.partial) == ("cut", 1, True)
            assert (call.cost, call.error) == (None, None)
        assert (await door.ask()).status_code == 200

    run(test)


def test_a_program_that_leaves_ends_the_call_upstream(run: Run) -> None:
    async def test(door: Door) -> None:
        ended = asyncio.Event()

        async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n")
            while await reader.read(65536):
                pass
            ended.set()
            writer.close()

        server = await asyncio.start_server(upstream, "127.0.0.1", 0)
        door.open(base=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        leaving = asyncio.create_task(door.ask())
        await asyncio.sleep(0.2)
        leaving.cancel()
        await asyncio.wait_for(ended.wait(), 2)
        server.close()

    run(test)


def test_a_session_that_cannot_take_the_report_gets_no_end(run: Run) -> None:
    async def test(door: Door) -> None:
        def broken(call: object) -> None:
            raise OSError("disk full")

        door.open(on_call=broken)
        with pytest.raises(httpx.RemoteProtocolError):
            await door.ask(prompt=script(text="x", chunk_delay=0.02))

    run(test)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("status", "kind", "content"),
    [
        (200, "text/html", b"<html>log in</html>"),
        (200, "application/json", b"[1]"),
        (204, "", b""),
        (302, "text/plain", b""),
        (418, "text/plain", b"\xff\xfe odd"),
        (400, "application/json", b"{"),
        (400, "application/json", b'{"detail": "told elsewhere"}'),
        (400, "application/json", b'{"error": "told as text"}'),
        (400, "application/json", b'{"error": null}'),
    ],
)
def test_answers_that_make_no_sense(run: Run, wire: str, status: int, kind: str, content: bytes) -> None:
    async def test(door: Door) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nlocation: http://127.0.0.1:1/\r\n"
        async with raw_upstream(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content) as (base, seen):
            door.open(wire, base=base)
            answer = await door.ask(wire)
        assert 400 <= answer.status_code < 600
        assert answer.headers["content-type"] == "application/json"
        assert isinstance(answer.json(), dict)
        assert len(seen) == 1
        assert [c.error.code for c in door.calls if c.error] == ["model_refused"]

    run(test, patience=2.0)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
def test_the_key_never_reaches_the_program(run: Run, wire: str, stream: bool) -> None:
    async def test(door: Door) -> None:
        door.open(wire)
        leaks = {"set-cookie": f"k={KEY}", "x-request-id": KEY, "x-other": KEY, "request-id": f"a{KEY}b"}
        for step in (
            {"text": f"your key is {KEY}.", "chunks": 30, "chunk_delay": 0.001, "headers": leaks},
            {"error": 401, "message": f"bad key {KEY}", "headers": leaks},
            {"error": 400, "message": f"bad key {KEY}" + "x" * 3000},
            {"error": 400, "message": "y" * 1980 + KEY},
            {"error": 503, "message": f"bad key {KEY}"},
            {"text": "x", "stream_error": "invalid_prompt", "message": f"bad key {KEY}"},
        ):
            answer = await door.ask(wire, script(**step), stream=stream)
            shown = answer.text + repr(answer.headers)
            assert KEY not in shown
            assert KEY[:-1] not in shown
            assert "set-cookie" not in answer.headers
        assert KEY not in repr(door.calls)
        assert KEY[:12] not in repr(door.calls)
        assert KEY not in repr(door.open(wire))

    run(test)


def test_cookies_of_a_provider_stay_with_nobody(run: Run) -> None:
    async def test(door: Door) -> None:
        door.open()
        await door.ask(prompt=script(text="x", headers={"set-cookie": "sticky=1; Path=/"}))
        await door.ask()
        assert "cookie" not in door.server.calls[-1].headers

    run(test)


# ---- an upstream of raw bytes ---------------------------------------------------------------------------------------


def sse(data: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


class raw_upstream:
    """A server that gives the same bytes to every request."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.seen: list[bytes] = []

    async def __aenter__(self) -> tuple[str, list[bytes]]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}", self.seen

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length"))
        await reader.readexactly(length)
        self.seen.append(head)
        writer.write(self._answer)
        await writer.drain()
        writer.close()
