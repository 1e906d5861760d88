"""The public verbs: options and input to the host, no logic."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Unpack, overload

from . import portal
from .faces import Session
from .incoming import Context, checked
from .opening import open_session, resume_session
from .profile import HarnessProfile, begin
from .session import SessionCore, TurnSource
from .stream import Stream, open_stream
from .types.options import OptionsDict
from .types.result import Result
from .types.runtime import AcpAgent, Capabilities, Harness, check_harness
from .types.state import State


@overload
def agent(
    harness: Harness | AcpAgent, prompt: str, *, stream: Literal[True], **options: Unpack[OptionsDict]
) -> Stream: ...
@overload
def agent(
    harness: Harness | AcpAgent, prompt: str, *, stream: Literal[False] = False, **options: Unpack[OptionsDict]
) -> Result: ...
def agent(
    harness: Harness | AcpAgent, prompt: str, *, stream: bool = False, **options: Unpack[OptionsDict]
) -> Result | Stream:
    """One prompt to a program in a session of one turn; gives the Result (with ``stream=True`` a `Stream`).

    Raises set-up errors (`HarnessInstallFailed`, `CapabilityUnsupported`, `SandboxError`, ...) and TypeError or ValueError
    for bad options; what happens inside the turn is in the Result.
    """
    if stream:
        return agent_stream(harness, prompt, **options)
    return portal.run(_one_turn(harness, prompt, portal.caller_loop(), options))


async def aagent(harness: Harness | AcpAgent, prompt: str, **options: Unpack[OptionsDict]) -> Result:
    """The async twin of `agent`."""
    return await portal.arun(_one_turn(harness, prompt, portal.caller_loop(), options))


def agent_stream(harness: Harness | AcpAgent, prompt: str, **options: Unpack[OptionsDict]) -> Stream:
    """`agent` as a `Stream` of events; dropping it cancels the turn."""
    loop = portal.caller_loop()
    return open_stream(lambda: _one_stream(harness, prompt, loop, options))


aagent_stream = agent_stream


def agent_session(harness: Harness | AcpAgent, **options: Unpack[OptionsDict]) -> Session:
    """A new durable session: a conversation with one program that keeps its workspace and memory.

    Use it as a context manager; leaving the block calls ``close()`` unless ``detach()`` or ``stop()`` was called.
    """
    return Session(portal.run(open_session(harness, options)))


def aagent_session(harness: Harness | AcpAgent, **options: Unpack[OptionsDict]) -> Opening:
    """The async twin of `agent_session`: await it, or enter it with ``async with``."""
    return Opening(open_session(harness, options))


def agent_resume(state: State, **options: Unpack[OptionsDict]) -> Session:
    """The session that ``state`` (from ``detach()``, ``stop()`` or ``state()``) names, in any process on the same store.

    Its rules (permissions, model, instructions, ...) are stored with it; what is given here replaces them. Raises
    `StateIncompatible`, `SessionLost`, `OptionsMismatch`, `SandboxError` before anything is started.
    """
    return Session(portal.run(resume_session(state, options)))


def aagent_resume(state: State, **options: Unpack[OptionsDict]) -> Opening:
    """The async twin of `agent_resume`: await it, or enter it with ``async with``."""
    return Opening(resume_session(state, options))


def agent_capabilities(harness: Harness | AcpAgent) -> Capabilities:
    """What a program can do under hostler."""
    from .runtimes import runtime_for

    return runtime_for(check_harness(harness)).capabilities


class HarnessCall(OptionsDict, total=False):
    """What a call of a harness may say, beside the options that it overrides."""

    messages: Sequence[Mapping[str, Any]]
    type: str
    input: Any
    prompt: str
    session: str | None
    extra_body: Any
    context: Context
    run_id: str | None
    restage: bool


def stream_harness(*, harness: HarnessProfile, **call: Unpack[HarnessCall]) -> Stream:
    """One turn of the session under the app's key ``session`` (made when there is none), as a `Stream`.

    What to say is ``messages``, the whole transcript (OpenAI chat messages or AI SDK messages) of which the session's
    program is told what it does not hold yet; or ``type`` with ``input``, of one of the harness's input types; or ``prompt``.
    ``context`` is ``"auto"``, ``"replay"`` (tell all of it to a fresh conversation) or ``"native"`` (tell the last message
    only); `Result.context` says what was done. Files of messages are put into the workspace once; ``restage=True`` puts
    them there again. ``extra_body`` (JSON) is the app's own context, on the turn's first record. The same ``run_id`` again
    gives the recorded turn, or joins the running one; with other content it raises OptionsMismatch. Without ``session``
    the turn is in a session of its own, closed behind it. Further options override the harness's for this call.

    Raises TypeError or ValueError that names the message or field that is wrong, before anything is started.
    """
    given: dict[str, Any] = dict(call)
    said = {name: given.pop(name, None) for name in ("messages", "type", "input", "prompt", "context")}
    incoming = checked(said, harness.input_types, harness.fetch)
    session, extra_body, run_id = (given.pop(name, None) for name in ("session", "extra_body", "run_id"))
    restage, loop = bool(given.pop("restage", False)), portal.caller_loop()
    return open_stream(
        lambda: begin(
            harness,
            incoming=incoming,
            session=session,
            extra_body=extra_body,
            run_id=run_id,
            restage=restage,
            loop=loop,
            overrides=given,
        )
    )


astream_harness = stream_harness


def generate_harness(*, harness: HarnessProfile, **call: Unpack[HarnessCall]) -> Result:
    """`stream_harness` to its end: the Result."""
    return stream_harness(harness=harness, **call).wait()


async def agenerate_harness(*, harness: HarnessProfile, **call: Unpack[HarnessCall]) -> Result:
    """The async twin of `generate_harness`."""
    return await stream_harness(harness=harness, **call).finished


class Opening(Awaitable[Session]):
    """A session that is being opened: ``await`` it or enter it with ``async with``."""

    def __init__(self, work: Coroutine[Any, Any, SessionCore]) -> None:
        self._work: Coroutine[Any, Any, SessionCore] | None = work
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._open().__await__()

    async def __aenter__(self) -> Session:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.aclose()

    def __del__(self) -> None:
        if self._work is not None:
            self._work.close()

    async def _open(self) -> Session:
        if self._session is None:
            if self._work is None:
                raise RuntimeError("This session failed to open; call the verb again.")
            work, self._work = self._work, None
            self._session = Session(await portal.arun(work))
        return self._session


async def _one_turn(harness: Harness | AcpAgent, prompt: str, loop: Any, options: OptionsDict) -> Result:
    session = await open_session(harness, options, ephemeral=True)
    try:
        return await session.run(prompt, loop=loop)
    finally:
        await session.close()


async def _one_stream(harness: Harness | AcpAgent, prompt: str, loop: Any, options: OptionsDict) -> TurnSource:
    session = await open_session(harness, options, ephemeral=True)
    try:
        return await session.begin(prompt, loop=loop)
    except BaseException:
        await session.close()
        raise
