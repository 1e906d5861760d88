"""Slots: never more programs than allowed, first come first served, idle ones make room."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import keepers_of

import hostler
from hostler.host.slots import Slots
from hostler.testing.fake_runtime import FAKE
from hostler.testing.model_server import ModelServer


class Session:
    def __init__(self, slots: Slots, running: set[Session]) -> None:
        self.slots, self.running, self.evicted = slots, running, 0

    async def evict(self) -> None:
        await asyncio.sleep(0.001)
        self.evicted += 1
        self.running.discard(self)


@pytest.mark.parametrize("seed", range(5))
def test_never_more_than_the_limit_and_nobody_starves(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        slots, running = Slots(3), set[Session]()
        sessions = [Session(slots, running) for _ in range(9)]
        busy: set[Session] = set()

        async def turns(session: Session) -> None:
            for _ in range(12):
                await slots.take(session)
                assert session not in busy
                busy.add(session)
                running.add(session)
                assert len(running) <= 3
                await asyncio.sleep(rng.random() / 500)
                busy.discard(session)
                if rng.random() < 0.3:
                    running.discard(session)
                    slots.leave(session)
                else:
                    slots.rest(session)
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.random() / 500)

        await asyncio.wait_for(asyncio.gather(*(turns(s) for s in sessions)), 20)
        assert sum(s.evicted for s in sessions)

    asyncio.run(main())


def test_waiting_turns_are_served_in_order() -> None:
    async def main() -> None:
        slots, running = Slots(1), set[Session]()
        sessions = [Session(slots, running) for _ in range(6)]
        served: list[int] = []

        async def turn(n: int) -> None:
            await slots.take(sessions[n])
            served.append(n)
            await asyncio.sleep(0.002)
            slots.rest(sessions[n])

        tasks = []
        for n in range(6):
            tasks.append(asyncio.create_task(turn(n)))
            await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [0, 1, 3, 4, 5]

    asyncio.run(main())


def test_more_sessions_than_programs(
    models: ModelServer, state_dir: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    monkeypatch.setenv("HOSTLER_MAX_RUNTIMES", "2")
    options: dict[str, Any] = {"model": "claude-sonnet-4-5", "api_base": models.url, "api_key": "planted-gateway-key"}
    sessions = [hostler.agent_session(FAKE, **options) for _ in range(4)]
    most = 0
    failed: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for turn in range(3):
                assert f"{n}-{turn}" in sessions[n].run(json.dumps([{"sleep": 0.05}, {"text": f"{n}-{turn}"}])).text
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        most = max(most, len(keepers_of(state_dir)))
        threads[0].join(0.02)
        for thread in threads:
            thread.join(0.02)
    assert failed == []
    assert most <= 2
    for n, session in enumerate(sessions):
        assert f"{n}-0" in session.run(json.dumps([{"say": "memory"}])).text
        session.close()
