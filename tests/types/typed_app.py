"""An app as its type checker sees it; `make lint` checks it and nothing runs it. An ignore that is not needed is an error."""

from __future__ import annotations

from typing import assert_type

import hostler
from hostler import Harness
from hostler.harness import Approval, Record, Result, State


def allowed(approval: Approval) -> bool:
    return approval.tool == "read"


def seen(record: Record) -> None: ...


def prompts() -> None:
    assert_type(hostler.agent(Harness.CODEX, "hi", model="m", timeout=3, on_approval=allowed), Result)
    assert_type(hostler.agent(Harness.CODEX, "hi", stream=True), hostler.Stream)
    hostler.agent(Harness.CODEX, "hi", modle="m")  # type: ignore[call-overload]
    hostler.agent("codex", "hi")  # type: ignore[call-overload]
    with hostler.agent_session(Harness.CODEX, permissions="edit", allow=["bash:git *"], on_event=seen) as s:
        assert_type(s.run("hi", max_cost=1), Result)
        assert_type(s.detach(), State)
        s.run("hi", time_out=3)  # type: ignore[call-arg]
        s.run("hi", timeout="3")  # type: ignore[arg-type]
    hostler.agent_session(Harness.CODEX, permissions="none")  # type: ignore[arg-type]
    hostler.agent_session(Harness.CODEX, on_busy="wait")  # type: ignore[arg-type]


def keys() -> None:
    host = hostler.local_host(".hostler", max_concurrent=4)
    harness = hostler.create_harness(host=host, runtime=Harness.CODEX, model="m", on_approval=allowed, trace=False)
    hostler.create_harness(host=host, runtime=Harness.CODEX, instuctions="x")  # type: ignore[call-arg]
    hostler.create_harness(host=host, runtime=Harness.CODEX, max_turns="many")  # type: ignore[arg-type]
    result = hostler.generate_harness(harness=harness, prompt="hi", session="chat", extra_body={"user": 7}, timeout=3)
    assert_type(result, Result)
    hostler.generate_harness(harness=harness, promt="hi")  # type: ignore[call-arg]
    session = harness.sessions.get_or_create("chat", extra_body={"user": 7})
    assert_type(session, hostler.Session)
    session.files.remove("a")


async def awaited() -> None:
    async with hostler.aagent_session(Harness.CLAUDE_CODE) as s:
        assert_type(await s.arun("hi"), Result)
    assert_type(await hostler.aagent_resume(await s.adetach()), hostler.Session)
