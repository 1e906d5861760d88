"""Calls at the tool server: run once, permitted, cancelled, given up; what tools are told and what comes of results."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import httpx
import pytest
from tests.toolserver.client import ACCEPT, client

from hostler.toolserver.results import LIMIT
from hostler.types.tools import ToolCallAsked, ToolContext, Verdict

META = {"claudecode/toolUseId": "toolu_1"}


class Counter:
    """A tool that counts its runs and ends when it is let."""

    def __init__(self) -> None:
        self.runs = 0
        self.began, self.go = threading.Event(), threading.Event()
        self.cancelled = threading.Event()

    def pay(self, amount: int = 1) -> str:
        self.runs += 1
        self.began.set()
        assert self.go.wait(10)
        return f"paid {amount}"


def double(n: int) -> int:
    return 2 * n


# ---- once -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("meta", [META, {"callId": "call_1"}, None])
def test_a_call_that_is_delivered_again_runs_once(meta: Any) -> None:
    counter = Counter()

    async def check() -> None:
        async with client(counter.pay) as c:
            first = asyncio.create_task(c.called("pay", {"amount": 3}, id=5, meta=meta))
            assert await asyncio.to_thread(counter.began.wait, 5)
            second = asyncio.create_task(c.called("pay", {"amount": 3}, id=5, meta=meta))  # while it runs
            await asyncio.sleep(0.05)
            counter.go.set()
            assert await asyncio.gather(first, second) == [("paid 3", False)] * 2
            assert await c.called("pay", {"amount": 3}, id=5, meta=meta) == ("paid 3", False)  # when it is over
            assert counter.runs == 1

    asyncio.run(check())


def test_what_differs_is_another_call() -> None:
    counter = Counter()
    counter.go.set()

    async def check() -> None:
        async with client(counter.pay) as c:
            for number, (amount, id, meta) in enumerate(
                [(3, 5, META), (4, 5, META), (3, 5, {"callId": "other"}), (3, 5, None), (3, 6, None)], 1
            ):
                assert await c.called("pay", {"amount": amount}, id=id, meta=meta) == (f"paid {amount}", False)
                assert counter.runs == number
            c.desk.turn = "t2"
            assert await c.called("pay", {"amount": 3}, id=5, meta=META) == ("paid 3", False)
            assert counter.runs == 6
            assert len({call.key for call in c.desk.calls}) == 6
            assert [call.call for call in c.desk.calls[:3]] == ["toolu_1", "toolu_1", "other"]

    asyncio.run(check())


def test_models_that_give_one_id_to_many_calls_are_understood() -> None:
    counter = Counter()
    counter.go.set()

    async def check() -> None:
        async with client(counter.pay) as c:
            for id in (1, 2, 3):
                await c.called("pay", {}, id=id, meta={"callId": "call_0"})
            assert counter.runs == 3

    asyncio.run(check())


def test_an_unknown_outcome_is_not_repeated() -> None:
    counter = Counter()
    counter.go.set()

    async def check() -> None:
        async with client(counter.pay) as c:
            await c.called("pay", {}, id=1, meta=META)
            (key,) = c.desk.begun
            c.desk.begun[key] = None  # as a host that died in the middle leaves it
            assert await c.called("pay", {}, id=1, meta=META) == ("unknown", True)
            assert counter.runs == 1

    asyncio.run(check())


def test_fifty_calls_at_once() -> None:
    together = threading.Barrier(10)  # nobody comes back before ten have come

    def slow(n: int) -> int:
        together.wait(30)
        return n

    async def check() -> None:
        async with client(slow) as c:
            answers = await asyncio.gather(*(c.call("slow", n=n) for n in range(50)))
            assert answers == [(str(n), False) for n in range(50)]

    asyncio.run(check())


# ---- may it? --------------------------------------------------------------------------------------------------------


def test_what_is_not_permitted_does_not_run() -> None:
    counter = Counter()
    counter.go.set()

    async def verdict(call: ToolCallAsked) -> Verdict:
        return Verdict(call.about == "7", "Not that much.")

    async def check() -> None:
        async with client(counter.pay) as c:
            c.desk.verdict = verdict
            assert await c.call("pay", amount=8) == ("Not allowed: Not that much.", True)
            assert await c.call("pay") == ("Not allowed: Not that much.", True)
            assert counter.runs == 0
            assert c.desk.begun == {}
            assert await c.call("pay", amount=7) == ("paid 7", False)
            assert [call.about for call in c.desk.calls] == ["8", "1", "7"]  # a default is an argument, too

    asyncio.run(check())


def test_hidden_tools_are_not_told() -> None:
    async def check() -> None:
        async with client(double, Counter().pay) as c:
            c.desk.hidden = {"pay"}
            assert [tool["name"] for tool in (await c.ask("tools/list"))["tools"]] == ["double"]
            assert (await c.call("pey"))[0] == "There is no tool 'pey'; there are double."

    asyncio.run(check())


def test_nothing_runs_between_turns() -> None:
    counter = Counter()

    async def check() -> None:
        async with client(counter.pay) as c:
            c.desk.turn = None
            text, bad = await c.call("pay")
            assert bad
            assert "No turn" in text
            assert counter.runs == 0

    asyncio.run(check())


# ---- its end --------------------------------------------------------------------------------------------------------


def test_a_slow_tool_hears_of_the_end_of_the_turn() -> None:
    began, heard = threading.Event(), threading.Event()

    def slow(context: ToolContext) -> None:
        began.set()
        if context.cancel.wait(10):
            heard.set()

    async def slow_async() -> None:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            heard.set()

    async def check() -> None:
        for function in (slow, slow_async):
            began.clear(), heard.clear()
            async with client(function) as c:
                asking = asyncio.create_task(c.call(function.__name__))
                assert await asyncio.to_thread(began.wait, 5)
                start = time.monotonic()
                c.desk.stopping.set()
                assert await asyncio.to_thread(heard.wait, 5)
                assert time.monotonic() - start < 1
                assert c.failures == []
                await asyncio.sleep(0.3)
                assert not asking.done()  # the program is interrupted first: with an answer it would go on
                if function is slow:
                    c.desk.over.set()  # it was interrupted: nothing is left for the next turn
                text, bad = await asking
                assert bad
                assert "turn has ended" in text
                assert (time.monotonic() - start < 2.5) == (function is slow)

    asyncio.run(check())


def test_a_client_that_comes_back_at_once_finds_its_call_under_way() -> None:
    counter = Counter()

    async def check() -> None:
        async with client(counter.pay) as c:
            asking = asyncio.create_task(c.called("pay", {}, id=1))
            assert await asyncio.to_thread(counter.began.wait, 5)
            asking.cancel()
            await asyncio.sleep(0.2)
            again = asyncio.create_task(c.called("pay", {}, id=1))
            await asyncio.sleep(1.2)
            counter.go.set()
            assert await again == ("paid 1", False)
            assert counter.runs == 1

    asyncio.run(check())


def test_when_the_program_goes_to_another_host_what_runs_goes_on_and_the_rest_is_given_up() -> None:
    counter = Counter()
    asked, wait = asyncio.Event(), asyncio.Event()

    async def verdict(call: ToolCallAsked) -> Verdict:
        if call.tool == "double":
            asked.set()
            await wait.wait()
        return Verdict(True)

    async def check() -> None:
        async with client(counter.pay, double) as c:
            c.desk.verdict = verdict
            running = asyncio.create_task(c.call("pay"))
            assert await asyncio.to_thread(counter.began.wait, 5)
            waiting = asyncio.create_task(c.call("double", n=1))
            await asked.wait()
            leaving = asyncio.create_task(c.server.leave())
            with pytest.raises(httpx.RemoteProtocolError):
                await waiting
            assert not leaving.done()
            running.cancel()  # the other host puts this one out
            await asyncio.sleep(1.3)
            counter.go.set()
            await asyncio.wait_for(leaving, 5)
            assert [answer and answer.text for answer in c.desk.begun.values()] == ["paid 1"]
            c.desk.verdict = None
            assert await c.call("double", n=1) == ("2", False)  # and it may come back

    asyncio.run(check())


# ---- what a tool is given and gives ---------------------------------------------------------------------------------


def test_a_tool_gets_its_context() -> None:
    def who(context: ToolContext, word: str) -> list[Any]:
        return [context.session, context.turn, context.call, context.extra_body, context.cancel.is_set(), word]

    async def check() -> None:
        async with client(who) as c:
            (tool,) = (await c.ask("tools/list"))["tools"]
            assert list(tool["inputSchema"]["properties"]) == ["word"]
            text, _ = await c.called("who", {"word": "w"}, meta=META)
            assert json.loads(text) == ["key", "t1", "toolu_1", {"user": 7}, False, "w"]
            text, bad = await c.called("who", {"word": "w", "context": {}})
            assert bad
            assert "context" in text

    asyncio.run(check())


def test_an_argument_of_ten_megabytes() -> None:
    def size(text: str) -> int:
        return len(text)

    async def check() -> None:
        async with client(size) as c:
            assert await c.call("size", text="ä" * 5_000_000 + "x") == ("5000001", False)

    asyncio.run(check())


def test_large_results_are_files_and_the_model_is_told_what_is_in_them() -> None:
    rows = [{"id": n, "name": f"row {n}", "price": n / 2, "tags": ["a"]} for n in range(3000)]
    lines = "\n".join(f"line {n}" for n in range(5000))

    def table() -> Any:
        return {"rows": rows, "next": None}

    def log() -> str:
        return lines

    def exact() -> str:
        return "x" * LIMIT

    async def check() -> None:
        async with client(table, log, exact) as c:
            text, bad = await c.called("table", {}, meta=META)
            assert not bad
            assert text.startswith("The result was put into the file /artifacts/tool-results/table/toolu_1.json\n")
            assert (
                '{"rows": 3000 of {"id": integer, "name": string, "price": number, "tags": 1 of string}, "next": null}'
                in text
            )
            assert '"name":"row 1"' in text
            assert len(text) < 4000
            assert json.loads(c.desk.files["/artifacts/tool-results/table/toolu_1.json"]) == table()
            text, _ = await c.called("log", {}, meta=META)
            assert "5000 lines of text" in text
            assert "line 1\nline 2" in text
            assert c.desk.files["/artifacts/tool-results/log/toolu_1.txt"].decode() == lines
            assert await c.call("exact") == ("x" * LIMIT, False)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("data", "ext", "word"),
    [
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 20, "png", "28 bytes"),
        (b"%PDF-1.7 ...", "pdf", "12 bytes"),
        (b"\xff\xfe\x00", "bin", "3 bytes"),
        (b"", "txt", "0 bytes"),
        ("grüße\n".encode(), "txt", "grüße"),
    ],
)
def test_bytes_are_files(data: bytes, ext: str, word: str) -> None:
    def make() -> bytes:
        return data

    async def check() -> None:
        async with client(make) as c:
            text, bad = await c.called("make", {}, meta=META)
            assert not bad
            assert word in text
            assert c.desk.files == {f"/artifacts/tool-results/make/toolu_1.{ext}": data}
            assert f"/make/toolu_1.{ext}" in text

    asyncio.run(check())


def test_a_result_that_cannot_be_kept_is_told_in_part() -> None:
    def log() -> str:
        return "begin " + "x" * LIMIT

    async def check() -> None:
        async with client(log) as c:
            c.desk.full = True
            text, bad = await c.call("log")
            assert not bad  # it ran
            assert "No space left" in text
            assert "begin xxx" in text
            assert len(text) < LIMIT

    asyncio.run(check())


def test_a_result_that_cannot_be_told_is_a_failure_of_the_tool() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise ValueError("no words")

    def bad() -> Any:
        return [Bad()]

    async def check() -> None:
        async with client(bad) as c:
            text, failed = await c.call("bad")
            assert failed
            assert "no words" in text
            assert [f.callback for f in c.failures] == ["tool bad"]

    asyncio.run(check())


def test_requests_in_odd_forms_are_answered() -> None:
    async def check() -> None:
        async with client(double) as c:
            for params in ({"name": "double"}, {"name": "double", "arguments": None}, {"name": "double", "_meta": {}}):
                body = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params}
                answer = (await c.http.post("/", json=body, headers=ACCEPT)).json()
                assert "Field required" in answer["result"]["content"][0]["text"]

    asyncio.run(check())
