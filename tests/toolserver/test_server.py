"""The tool server over HTTP: calls, failures, deadlines, clients that leave."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import httpx
import pytest
from tests.toolserver.client import ACCEPT, client


def double(n: int) -> int:
    """Doubles."""
    return 2 * n


def test_a_client_may_shake_hands_list_and_call() -> None:
    async def check() -> None:
        async with client(double) as c:
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            told = await c.ask("initialize", **hello)
            assert told["serverInfo"]["name"] == "host"
            assert told["protocolVersion"] == "2025-06-18"
            said = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            assert (await c.http.post("/", json=said, headers=ACCEPT)).status_code == 202
            (tool,) = (await c.ask("tools/list"))["tools"]
            assert (tool["name"], tool["description"]) == ("double", "Doubles.")
            assert tool["inputSchema"]["properties"]["n"]["type"] == "integer"
            assert await c.call("double", n=4) == ("8", False)

    asyncio.run(check())


@pytest.mark.parametrize("objects", [True, False])
def test_a_result_is_an_object_too_for_a_client_that_would_make_one_of_it(objects: bool) -> None:
    async def check() -> None:
        async with client(double, objects=objects) as c:
            result = await c.ask("tools/call", name="double", arguments={"n": 4})
            assert result["content"] == [{"type": "text", "text": "8"}]
            assert result.get("structuredContent") == ({"result": "8"} if objects else None)
            failed = await c.ask("tools/call", name="double", arguments={"n": "x"})
            assert failed["isError"]
            assert "structuredContent" not in failed  # it is in words

    asyncio.run(check())


def test_nothing_but_post_is_answered() -> None:
    async def check() -> None:
        async with client(double) as c:
            for method in ("GET", "DELETE", "PUT"):
                assert (await c.http.request(method, "/", headers=ACCEPT)).status_code == 405

    asyncio.run(check())


def test_the_models_mistakes_are_its_to_correct_and_no_failure_of_the_app() -> None:
    async def check() -> None:
        async with client(double) as c:
            text, bad = await c.call("double", n="x")
            assert bad
            assert "n:" in text
            text, bad = await c.call("treble", n=1)
            assert bad
            assert "double" in text
            assert c.failures == []

    asyncio.run(check())


def test_what_a_function_raises_is_told_to_the_model_and_to_the_session() -> None:
    def broken(how: str) -> None:
        if how == "exit":
            sys.exit(3)
        raise {"key": KeyError("k"), "cancel": asyncio.CancelledError(), "stop": KeyboardInterrupt()}[how]

    async def broken_async(how: str) -> None:
        raise {"key": KeyError("k"), "cancel": asyncio.CancelledError()}[how]

    async def check() -> None:
        async with client(broken, broken_async, double) as c:
            for how, name in (
                ("key", "KeyError"),
                ("exit", "SystemExit"),
                ("stop", "KeyboardInterrupt"),
                ("cancel", "Cancelled"),
            ):
                text, bad = await c.call("broken", how=how)
                assert bad
                assert name in text
            for how, name in (("key", "KeyError"), ("cancel", "Cancelled")):
                text, bad = await c.call("broken_async", how=how)
                assert bad
                assert name in text
            assert [f.callback for f in c.failures] == ["tool broken"] * 4 + ["tool broken_async"] * 2
            assert await c.call("double", n=1) == ("2", False)

    asyncio.run(check())


def test_sync_functions_run_in_threads_and_async_ones_on_the_callers_loop() -> None:
    def where() -> int:
        return threading.get_ident()

    async def where_async() -> int:
        return threading.get_ident()

    theirs = asyncio.new_event_loop()
    thread = threading.Thread(target=theirs.run_forever)
    thread.start()

    async def check() -> None:
        async with client(where, where_async, loop=theirs) as c:
            assert (await c.call("where"))[0] not in (str(threading.get_ident()), str(thread.ident))
            assert (await c.call("where_async"))[0] == str(thread.ident)

    try:
        asyncio.run(check())
    finally:
        theirs.call_soon_threadsafe(theirs.stop)
        thread.join()
        theirs.close()


def test_calls_run_side_by_side_and_a_blocking_one_holds_nobody_up() -> None:
    free = threading.Event()

    def blocked() -> str:
        free.wait(5)
        return "free"

    async def check() -> None:
        async with client(blocked, double) as c:
            waiting = asyncio.create_task(c.call("blocked"))
            assert await asyncio.gather(*(c.call("double", n=n) for n in range(8))) == [
                (str(2 * n), False) for n in range(8)
            ]
            assert not waiting.done()
            free.set()
            assert await waiting == ("free", False)

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_function_has_a_deadline(kind: str) -> None:
    ended = threading.Event()

    def sync() -> None:
        ended.wait(5)

    async def wait() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    async def own() -> None:
        raise TimeoutError("of its own")

    wait.__name__ = "sync" if kind == "sync" else "wait"

    async def check() -> None:
        async with client(sync if kind == "sync" else wait, own, timeout=0.2) as c:
            text, bad = await c.call("sync" if kind == "sync" else "wait")
            assert bad
            assert "longer than 0.2 s" in text
            assert "of its own" in (await c.call("own"))[0]
            assert len(c.failures) == 2
        if kind == "async":
            assert ended.is_set()
        ended.set()

    asyncio.run(check())


def test_a_client_that_leaves_ends_its_call() -> None:
    began, ended = threading.Event(), threading.Event()

    async def long() -> None:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    async def check() -> None:
        async with client(long) as c:
            asking = asyncio.create_task(c.call("long"))
            assert await asyncio.to_thread(began.wait, 5)
            asking.cancel()
            assert await asyncio.to_thread(ended.wait, 5)
            assert c.failures == []  # nobody failed

    asyncio.run(check())


def test_closing_cuts_the_calls_under_way_and_the_next_request_starts_anew() -> None:
    began, ended = threading.Event(), threading.Event()

    async def long() -> None:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    async def check() -> None:
        async with client(long, double) as c:
            asking = asyncio.create_task(c.call("long"))
            assert await asyncio.to_thread(began.wait, 5)
            start = time.monotonic()
            await c.server.aclose()
            with pytest.raises(httpx.RemoteProtocolError):  # no answer at all, so that the next host is asked
                await asking
            assert await asyncio.to_thread(ended.wait, 5)
            assert time.monotonic() - start < 2
            assert await c.call("double", n=2) == ("4", False)

    asyncio.run(check())


def test_a_request_that_is_too_large_or_no_json_is_refused() -> None:
    async def check() -> None:
        async with client(double) as c:
            headers = {**ACCEPT, "content-type": "application/json"}
            assert (await c.http.post("/", content=b"x" * (17 << 20), headers=headers)).status_code == 413
            assert (await c.http.post("/", content=b"{", headers=headers)).status_code == 400

    asyncio.run(check())
