"""Several handles and calls of one session in one process: each leaves for itself."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import hostler
from hostler.harness import Done, Text
from hostler.testing.model_server import ModelServer
from hostler.workspace import Watch
from tests.conftest import keepers_of, wait_until
from tests.sessions.programs import FAKE_PROGRAM as FAKE

pytestmark = pytest.mark.usefixtures("nothing_left")

PAUSED = json.dumps([{"text": "one "}, {"sleep": 1}, {"text": "two"}])
LONG = json.dumps([{"text": "begun"}, {"sleep": 60}])


@pytest.fixture
def options(models: ModelServer) -> dict[str, Any]:
    return FAKE.options(models)


@pytest.fixture
def harness(options: dict[str, Any], state_dir: Any) -> Any:
    return hostler.create_harness(host=hostler.local_host(data_dir=state_dir), runtime=FAKE.harness, **options)


@pytest.mark.parametrize("after", ["before it begins", "while it runs"])
def test_who_detaches_leaves_the_others_their_turns(after: str, options: dict[str, Any], state_dir: Any) -> None:
    """As two requests to one chat do that the same worker of a web app gets."""
    first = hostler.agent_session(FAKE.harness, **options)
    state = first.state()
    second = hostler.agent_resume(state, **options)
    stream = first.stream(json.dumps([{"sleep": 0.5}, {"text": "one"}]))
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(second.run, json.dumps([{"sleep": 1}, {"text": "two"}]))
        for _ in stream:
            pass
        if after == "while it runs":
            assert wait_until(lambda: second.status == "running" and stream.result is not None)
        state = first.detach()
        assert waits.result(timeout=60).text == "two"
    with pytest.raises(hostler.SessionClosed):
        first.run("x")
    second.detach()
    assert len(keepers_of(state_dir)) == 1
    with hostler.agent_resume(state, **options) as third:
        assert third.resumed == "attached"
        assert "You said: x" in third.run("x").text


@pytest.mark.parametrize("other", [False, True], ids=["alone", "behind another"])
def test_a_run_that_its_own_handle_leaves_to_the_keeper_is_not_waited_for(other: bool, options: dict[str, Any]) -> None:
    async def main() -> None:
        session = await hostler.aagent_session(FAKE.harness, **options)
        state = await session.astate()
        running = asyncio.create_task(session.arun(LONG))
        while session.status != "running":
            await asyncio.sleep(0.01)
        if other:
            second = await hostler.aagent_resume(state, **options)
            await session.adetach()
            await asyncio.sleep(0.2)
            assert not running.done()  # it goes on here
            await second.adetach()
        else:
            await session.adetach()
        with pytest.raises(hostler.SessionClosed, match="Resume the session"):
            await asyncio.wait_for(running, 10)
        async with hostler.aagent_resume(state, **options) as again:
            await again.acancel()
            assert (await again.arun("x")).stop_reason == "done"

    asyncio.run(main())


def ask(harness: Any) -> Any:
    return hostler.stream_harness(harness=harness, session="chat", prompt=PAUSED)


@pytest.mark.parametrize("how", ["detach", "stop", "close"])
def test_a_call_by_key_is_not_another_handles_to_end(how: str, harness: Any, state_dir: Any) -> None:
    stream = ask(harness)
    assert isinstance(next(stream), Text)
    getattr(harness.sessions.get("chat"), how)()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(stream.wait).result(timeout=60).text == "one two"
    # The last who had it in hand has left: what the other one wanted is done.
    assert wait_until(lambda: len(keepers_of(state_dir)) == (how == "detach"))
    again = hostler.generate_harness(harness=harness, session="chat", prompt="x")
    assert again.stop_reason == "done"
    harness.sessions.get("chat").close()


@pytest.mark.parametrize("how", ["adetach", "astop", "aclose"])
def test_a_call_by_key_is_not_another_handles_to_end_async(how: str, harness: Any, state_dir: Any) -> None:
    async def main() -> None:
        stream = hostler.astream_harness(harness=harness, session="chat", prompt=PAUSED)
        assert isinstance(await anext(stream), Text)
        await getattr(await harness.sessions.aget("chat"), how)()
        assert (await asyncio.wait_for(stream.finished, 60)).text == "one two"
        assert wait_until(lambda: len(keepers_of(state_dir)) == (how == "adetach"))
        again = await hostler.agenerate_harness(harness=harness, session="chat", prompt="x")
        assert again.stop_reason == "done"
        await (await harness.sessions.aget("chat")).aclose()

    asyncio.run(main())


def test_who_comes_after_one_that_detached_has_the_session_in_hand(harness: Any, state_dir: Any) -> None:
    stream = ask(harness)
    next(stream)
    harness.sessions.get("chat").detach()
    session = harness.sessions.get("chat")
    assert stream.wait().text == "one two"
    assert session.run(PAUSED).text == "one two"
    with hostler.agent_resume(session.detach(), state_dir=str(state_dir), api_key="any") as again:
        assert again.resumed == "attached"


@pytest.mark.parametrize("how", ["close", "stop"])
def test_who_ends_a_session_ends_his_own_turns(how: str, options: dict[str, Any], state_dir: Any) -> None:
    first = hostler.agent_session(FAKE.harness, **options)
    second = hostler.agent_resume(first.state(), **options)
    with ThreadPoolExecutor(1) as pool:
        running = first.stream(LONG)
        next(running)
        waiting = second.stream(PAUSED)
        queued = first.stream("never said")
        assert wait_until(lambda: len(first._core.live.holders.turns) == 3)
        getattr(first, how)()
        assert pool.submit(running.wait).result(timeout=5).stop_reason == "cancelled"  # it was over before
        assert pool.submit(waiting.wait).result(timeout=60).text == "one two"
        assert pool.submit(queued.wait).result(timeout=60).stop_reason == "cancelled"
    assert first.status == {"close": "closed", "stop": "stopped"}[how]
    assert second.run("x").stop_reason == "done"
    second.close()
    assert keepers_of(state_dir) == []


def test_a_turn_that_is_done_is_nobodys(harness: Any, state_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has it in hand still, and while it is tidied up behind it."""
    save = Watch.save
    monkeypatch.setattr(Watch, "save", lambda watch: (time.sleep(0.5), save(watch)))
    session = harness.sessions.get_or_create("chat")
    for how in ("close", "stop", "detach"):
        assert session.run("x").stop_reason == "done"
        getattr(harness.sessions.get("chat"), how)()
        assert session._core.live.hold.program is None
        assert len(keepers_of(state_dir)) == (how == "detach")
    session.close()


def test_what_is_deleted_is_taken_from_all(harness: Any, state_dir: Any) -> None:
    stream = harness.sessions.get_or_create("chat").stream(LONG)
    next(stream)
    harness.sessions.delete("chat")
    assert keepers_of(state_dir) == []
    assert harness.sessions.list() == ()
    assert not list((state_dir / "sessions").iterdir())


def test_who_speaks_to_anothers_turn_waits_for_it_too(harness: Any) -> None:
    session = harness.sessions.get_or_create("chat")
    stream = session.stream(json.dumps([{"text": "begun "}, {"steered": True}, {"sleep": 1}, {"text": " end"}]))
    next(stream)
    joined = hostler.stream_harness(harness=harness, session="chat", prompt="word", on_busy="steer")
    with ThreadPoolExecutor(1) as pool:
        assert "begun" in next(joined).delta
        session.detach()
        assert pool.submit(joined.wait).result(timeout=60).text.endswith(" end")
    harness.sessions.get("chat").close()


def test_one_of_two_who_joined_a_run_leaves_it_to_the_other(harness: Any) -> None:
    """A session without a key ends with its call; with a run_id there may be two of them."""
    first, second = (hostler.stream_harness(harness=harness, run_id="once", prompt=PAUSED) for _ in range(2))
    assert isinstance(next(first), Text)
    assert isinstance(next(second), Text)
    first.close()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(second.wait).result(timeout=60).text == "one two"


@pytest.mark.parametrize("together", [False, True])
def test_a_run_that_all_who_joined_it_leave_is_over(together: bool, harness: Any, state_dir: Any) -> None:
    """As one is that only one had begun."""

    async def main() -> None:
        first, second = (hostler.astream_harness(harness=harness, run_id="once", prompt=LONG) for _ in range(2))
        assert isinstance(await anext(first), Text)
        assert isinstance(await anext(second), Text)
        if together:
            await asyncio.gather(first.aclose(), second.aclose())
        else:
            await first.aclose()
            assert keepers_of(state_dir)
            await second.aclose()

    asyncio.run(main())
    assert wait_until(lambda: not keepers_of(state_dir))
    (info,) = harness.sessions.list()
    assert info.status == "closed"
    assert hostler.generate_harness(harness=harness, run_id="once", prompt=LONG).stop_reason == "cancelled"


JOINED = """
import json, sys
import hostler
from hostler.testing.fake_runtime import FAKE
options = json.loads(sys.argv[1])
host = hostler.local_host(data_dir=options.pop("state_dir"))
harness = hostler.create_harness(host=host, runtime=FAKE, **options)
stream = hostler.stream_harness(harness=harness, run_id="once", prompt=sys.argv[2])
print(next(stream).delta, flush=True)
print(stream.wait().text, flush=True)
"""


def test_one_who_joined_a_run_of_another_process_leaves_it_there(
    harness: Any, options: dict[str, Any], state_dir: Any
) -> None:
    prompt = json.dumps([{"text": "one "}, {"sleep": 2}, {"text": "two"}])
    job = json.dumps({**options, "state_dir": str(state_dir)})
    with subprocess.Popen([sys.executable, "-c", JOINED, job, prompt], stdout=subprocess.PIPE, text=True) as app:
        assert app.stdout is not None
        assert app.stdout.readline() == "one \n"
        stream = hostler.stream_harness(harness=harness, run_id="once", prompt=prompt)
        assert isinstance(next(stream), Text)
        stream.close()
        assert app.stdout.readline() == "one two\n"


EXIT = """
import json, sys
import hostler
from hostler.testing.fake_runtime import FAKE
options = json.loads(sys.argv[1])
first = hostler.agent_session(FAKE, **options)
second = hostler.agent_resume(first.state(), **options)
next(first.stream(sys.argv[2]))
print(first.detach().dumps().decode())
"""


def test_a_turn_that_was_left_outlives_the_other_handles_and_the_process(options: dict[str, Any]) -> None:
    state_dir = os.environ["HOSTLER_STATE_DIR"]
    prompt = json.dumps([{"text": "one "}, {"sleep": 3}, {"text": "two"}])
    app = subprocess.run(
        [sys.executable, "-c", EXIT, json.dumps({**options, "state_dir": state_dir}), prompt],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    with hostler.agent_resume(hostler.harness.State.loads(app.stdout.encode()), **options) as session:
        done = [record.event for record in followed(session) if isinstance(record.event, Done)]
        assert [event.result.text for event in done] == ["one two"]
        assert done[0].result.stop_reason == "done"
        assert session.resumed == "attached"


def followed(session: Any) -> Any:
    """The session's records up to the first `Done`."""
    for record in session.follow(0):
        yield record
        if isinstance(record.event, Done):
            return
