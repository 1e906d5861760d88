"""Sessions through a real LiteLLM proxy, written as its users write them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.conftest import Gateway

import hostler
from hostler import Harness, sandbox
from hostler.harness import State

pytestmark = [
    pytest.mark.real,
    pytest.mark.xdist_group("gateway"),
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("nothing_left"),
]

GROUPS = ["coder", "coder-openai"]  # a group is any model behind the proxy, which translates between the wires
HARNESSES = [Harness.CLAUDE_CODE, Harness.CODEX]
# What one scripted answer costs by LiteLLM's own price list: 100 tokens, 20 written to and 30 read from the cache, 40 out.
PRICES = {"coder": 0.000984, "coder-openai": 0.00055375}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("harness", HARNESSES, ids=lambda h: h.value)
def test_a_session_of_three_turns(
    harness: Harness, group: str, gateway: Gateway, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = sandbox.local(workspace)
    with hostler.agent_session(harness, sandbox=box, model=f"litellm_proxy/{group}") as s:
        s.run("Install dev deps. CODEWORD-one")
        s.run("Run the router unit tests and summarize failures. CODEWORD-two")
        r = s.run("Fix the first failure. Keep the diff small.")
        print(s.cost)
    assert r.stop_reason == "done", r.error
    assert r.text.endswith("memo=CODEWORD-one,CODEWORD-two")
    calls = gateway.models.calls
    assert {c.api for c in calls} == {"anthropic" if group == "coder" else "responses"}
    booked = gateway.booked(s.key, len(calls))
    assert len(booked) == len(calls)
    assert {b["group"] for b in booked} == {group}
    printed = float(capsys.readouterr().out)
    assert printed > 0
    assert printed == pytest.approx(sum(b["cost"] for b in booked), rel=1e-6)


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda h: h.value)
def test_a_chat_of_several_requests(harness: Harness, gateway: Gateway, workspace: Path) -> None:
    redis: dict[str, bytes] = {}
    group = "coder" if harness is Harness.CLAUDE_CODE else "coder-openai"

    async def chat(chat_id: str, msg: str) -> dict[str, Any]:
        raw = redis.get(f"harness:{chat_id}")
        box = sandbox.local(workspace)
        if raw:
            s = await hostler.aagent_resume(State.loads(raw), sandbox=box)
        else:
            s = await hostler.aagent_session(harness, sandbox=box, model=f"litellm_proxy/{group}")
        async with s:
            r = await s.arun(msg)
            redis[f"harness:{chat_id}"] = (await s.adetach()).dumps()
        return {"text": r.text, "cost": r.cost, "resumed": s.resumed}

    async def end(chat_id: str) -> None:
        s = await hostler.aagent_resume(State.loads(redis[f"harness:{chat_id}"]))
        assert s.cost == pytest.approx(sum(a["cost"] for a in answers))
        await s.aclose()

    answers = [asyncio.run(chat("7", f"Remember CODEWORD-{n}.")) for n in range(4)]
    assert answers[3]["text"].endswith("memo=CODEWORD-0,CODEWORD-1,CODEWORD-2,CODEWORD-3")
    assert [a["resumed"] for a in answers] == [None, "attached", "attached", "attached"]
    assert all(a["cost"] is not None and a["cost"] > 0 for a in answers)
    asyncio.run(end("7"))


def test_the_proxy_books_tags_and_metadata(gateway: Gateway, workspace: Path) -> None:
    with hostler.agent_session(
        Harness.CLAUDE_CODE,
        sandbox=sandbox.local(workspace),
        model="litellm_proxy/coder",
        metadata={"team": "payments", "job": "x, y"},
    ) as s:
        s.run("Hello.")
        key = s.key
    (booked,) = gateway.booked(key, 1)
    assert booked["metadata"] == {"session": key, "team": "payments", "job": "x, y"}
    assert {f"session:{key}", "team:payments"} <= set(booked["tags"])
    assert not any("x, y" in tag for tag in booked["tags"])  # tags are parted by commas


def test_the_proxys_own_price_holds_a_budget(gateway: Gateway, workspace: Path) -> None:
    with hostler.agent_session(
        Harness.CLAUDE_CODE,
        sandbox=sandbox.local(workspace),
        model="litellm_proxy/coder",
        max_cost=PRICES["coder"] * 2.5,
    ) as s:
        result = s.run('@@[{"shell": "true"}, {"shell": "true"}, {"shell": "true"}, {"shell": "true"}]@@')
    assert result.stop_reason == "max_cost"
    assert result.cost == pytest.approx(PRICES["coder"] * 3)


@pytest.mark.parametrize(
    ("model", "key", "code"),
    [("coder", "sk-wrong-key-1", "model_auth"), ("no-such-group", None, "model_refused")],
)
def test_what_the_proxy_refuses_ends_the_turn(
    model: str, key: str | None, code: str, gateway: Gateway, workspace: Path
) -> None:
    result = hostler.agent(
        Harness.CLAUDE_CODE, "Hello.", sandbox=sandbox.local(workspace), model=f"litellm_proxy/{model}", api_key=key
    )
    assert result.stop_reason == "error"
    assert result.error is not None
    assert result.error.code == code
    assert gateway.models.calls == []
