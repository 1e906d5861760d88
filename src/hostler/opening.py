"""How a session comes to be: made under a new key, or found again from its State."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row

from . import ladder, portal, skills
from .artifacts import ArtifactsCore
from .files import FilesCore
from .host import Host, implicit_host, retention
from .host.hold import stored_of
from .host.live import LiveSession, route_of
from .options import read_options
from .persistent.memory import remember_tool
from .persistent.rules import completed
from .rules import refuse_unheld
from .runtimes import runtime_for
from .sandboxes import choice
from .session import SessionCore
from .store import queries
from .types.errors import OptionsMismatch, SandboxError, SessionLost, StateIncompatible
from .types.options import Options
from .types.runtime import AcpAgent, Harness, Runtime, acp_agent, check_harness
from .types.sandbox import Sandbox
from .types.state import State
from .workspace import SessionDirs, Workspace, check_apart, check_there, snapshots
from .workspace.blobs import Blobs

if TYPE_CHECKING:
    from .faces import Artifacts, Files
    from .toolserver import HostTool


async def open_session(
    harness: Harness | AcpAgent | Runtime, given: Mapping[str, Any], *, ephemeral: bool = False
) -> SessionCore:
    """A new session with a generated key on the implicit host."""
    options = await read_options(given)
    host = await implicit_host(options.state_dir)
    live = await make(host, f"s-{uuid.uuid4().hex}", check_harness(harness), options, ephemeral=ephemeral)
    return SessionCore(live, ephemeral=ephemeral)


async def resume_session(state: State, given: Mapping[str, Any]) -> SessionCore:
    """The session that ``state`` names. Raises StateIncompatible, SessionLost, OptionsMismatch; starts nothing."""
    if not isinstance(state, State):
        raise TypeError(f"agent_resume takes a State (State.loads(bytes) reads one), not {type(state).__name__}.")
    try:
        state = State.loads(state.dumps())  # one that was put together by hand is no better than one that was read
    except (TypeError, UnicodeEncodeError) as error:
        raise StateIncompatible(f"This is not a hostler state: {error}.") from None
    options = await read_options(given)
    host = await implicit_host(options.state_dir)
    row = await host.store.read(lambda conn: queries.find_session(conn, state.session))
    if row is None:
        raise SessionLost(
            f"Session {state.session!r} is not in the store {host.data_dir}. "
            "Resume it with the state_dir that it was made with."
        )
    if state.harness != row.harness:
        raise StateIncompatible(
            f"Session {state.session!r} is one of {row.harness!r}, this state says {state.harness!r}."
        )
    if state.native_id is not None and state.native_id not in row.native_ids:
        raise StateIncompatible(
            f"Session {state.session!r} never had the native id {state.native_id!r} that this state names."
        )
    if state.workdir != row.workdir and not row.owned:
        raise StateIncompatible(f"Session {state.session!r} works in {row.workdir}, this state says {state.workdir}.")
    return SessionCore(await again(host, row, options, given))


async def fork_session(core: SessionCore, key: str) -> SessionCore:
    """A new session under ``key`` that goes on from where ``core`` is, with what the app gave to that one."""
    row, live = await core.fork(key), core.live
    sandbox = live.sandbox
    options = replace(live.options, sandbox=lambda workspace: sandbox.on(workspace.root))
    return SessionCore(await again(live.host, row, options, {}))


async def make(
    host: Host,
    key: str,
    harness: Harness | AcpAgent | Runtime,
    options: Options,
    *,
    ephemeral: bool = False,
    own: Mapping[str, Any] = {},
) -> LiveSession:
    """A new session under ``key``; what cannot be held is refused before anything is stored. ``own`` is stored with the
    rules."""
    runtime = runtime_for(harness)
    refuse_unheld(runtime, options, confined=True)
    await retention.clear(host, key)
    dirs = SessionDirs.of(host.data_dir, key)
    tools = await _tools(options, dirs, runtime)
    sandbox, own_sandbox = await _sandbox(options.sandbox, dirs, host)
    refuse_unheld(runtime, options, confined=sandbox.confined)
    if dirs.used and await host.store.read(lambda conn: queries.find_session(conn, key)) is None:
        raise SessionLost(
            f"The store does not know session {key!r}, but {dirs.root} holds the history of its program: the store has lost "
            "it, or was replaced. Put the store back from a copy; or remove that folder (hostler gc) to begin anew."
        )
    moved = dirs.move(await asyncio.to_thread(sandbox.prepare, options.permissions))
    if moved != dirs:
        dirs, tools = moved, await _tools(options, moved, runtime)
    rules = {**options.rules(), _SANDBOX: choice.stored(sandbox, own=own_sandbox), **own}
    if isinstance(harness, AcpAgent):
        rules[_COMMAND] = list(harness.command)
    route_of(runtime, rules, options.api_key)
    row = await host.store.write(
        lambda conn: queries.create_session(
            conn,
            key=key,
            harness=runtime.name,
            new_id=str(uuid.uuid4()),
            workdir=sandbox.root,
            owned=_is_workspace(sandbox.root, dirs),
            rules=rules,
            callables=options.callables(),
            now=time.time(),
            ephemeral=ephemeral,
        )
    )
    if options.skills:  # a session that is found without them, because this was cut off, keeps those of who finds it
        await asyncio.to_thread(skills.keep, options.skills, Blobs(dirs.blobs))
    return host.keep(LiveSession(host, row, runtime, sandbox, dirs, options, tools, _reach))


async def again(
    host: Host,
    row: Row[Any],
    options: Options,
    given: Mapping[str, Any],
    *,
    own: Mapping[str, Any] = {},
    replay: bool = False,
) -> LiveSession:
    """A session that is in the store, under the same rules; those in ``given`` and ``own`` replace the stored ones. With
    ``replay`` its program's history need not be there any more: the caller tells all of it."""
    runtime = _runtime_of(row)
    if missing := sorted(set(row.callables) - set(options.callables())):
        raise OptionsMismatch(
            f"Session {row.key!r} was made with {', '.join(missing)}; pass the same again. Functions cannot be stored."
        )
    options = replace(options, persistent_dirs=completed(options.persistent_dirs, row.rules.get("persistent_dirs", ())))
    live = host.sessions.get(row.id)
    dirs = live.dirs if live is not None else SessionDirs.of(host.data_dir, row.key)
    if row.owned:
        await asyncio.to_thread(dirs.make_workspace, had=bool(row.finished or row.busy))
    tools = await _tools(options, dirs, runtime)
    if live is not None and options.sandbox is live.options.sandbox:
        sandbox, own_sandbox = live.sandbox, live.owns_sandbox
    else:
        sandbox, own_sandbox = await _same_sandbox(options, row, dirs, host)
    rules = {**row.rules, **{name: value for name, value in options.rules().items() if name in given}, **own}
    rules[_SANDBOX] = choice.stored(sandbox, own=own_sandbox)
    refuse_unheld(
        runtime, replace(options, **{n: v for n, v in rules.items() if n in Options.RULES}), confined=sandbox.confined
    )
    route_of(runtime, rules, options.api_key)
    if options.skills and (row.id not in host.sessions or rules.get("skills") != row.rules.get("skills")):
        await asyncio.to_thread(skills.keep, options.skills, Blobs(dirs.blobs))
    elif row.rules.get("skills") and not rules.get("skills"):
        await asyncio.to_thread(skills.lay_out, (), Blobs(dirs.blobs), dirs.skills)
    if rules != row.rules or options.callables() != row.callables:
        await host.store.write(lambda conn: queries.change_rules(conn, row.id, rules, options.callables()))
    if live is not None:
        live.renew(options, rules, tools, sandbox)
        return host.keep(live)
    await asyncio.to_thread(_tidy, sandbox, dirs)
    live = LiveSession(host, row, runtime, sandbox, dirs, options, tools, _reach)
    live.rules = rules
    try:
        live.hold.resumed = await asyncio.to_thread(ladder.may_resume, stored_of(row), live.place())
    except SessionLost:
        if not replay:
            raise
    live = host.keep(live)
    live.serve()  # a turn that a dead host left is brought to its Done
    return live


def _tidy(sandbox: Sandbox, dirs: SessionDirs) -> None:
    """Put in order what a killed app has left of a fork or a restore."""
    dirs.settle()
    snapshots.tidy(sandbox.root, dirs.snapshots)


_COMMAND = "command"  # the rule that holds an ACP agent's command
_SANDBOX = "sandbox"  # the rule that holds the recipe of the sandbox


def keyed(extra_body: Any) -> dict[str, Any]:
    """What is stored with the rules of a session that the app finds by its own key: ``extra_body`` for the turns that
    bring none. Such a session is never closed for good."""
    return {"keyed": True, "extra_body": extra_body}


def _runtime_of(row: Row[Any]) -> Runtime:
    if _COMMAND in row.rules:
        return runtime_for(acp_agent(row.rules[_COMMAND]))
    return runtime_for(row.harness)


async def _tools(options: Options, dirs: SessionDirs, runtime: Runtime) -> tuple[HostTool, ...]:
    """The app's functions as tools, and what its memory needs. Raises TypeError naming one that cannot be offered."""
    memories = [dir for dir in options.persistent_dirs if dir.index is not None and not dir.read_only]
    functions = [*options.tools, *(remember_tool(dirs, dir) for dir in memories if runtime.capabilities.tools)]
    if not functions:
        return ()

    def work() -> tuple[HostTool, ...]:
        from .toolserver import host_tools  # takes most of a second to import

        return host_tools(functions)

    return await asyncio.to_thread(work)


def _reach(live: LiveSession) -> tuple[Files, Artifacts]:
    """The files and artifacts of a session, as its tools have them."""
    from .faces import Artifacts, Files

    return Files(FilesCore(live, lambda: None)), Artifacts(ArtifactsCore(live))


async def _sandbox(given: Any, dirs: SessionDirs, host: Host) -> tuple[Sandbox, bool]:
    """The sandbox to use, and whether it was made for the session; one that was passed in is its caller's."""
    if given is None:
        given = choice.auto
    if _is_sandbox(given):
        check_apart(host.data_dir, given.root)
        return given, False
    if not callable(given):
        raise TypeError(f"sandbox must be a sandbox or a factory such as sandbox.local, not {given!r}.")
    dirs.make()
    made = await _made(given, dirs.workspace(), host.settings.start_timeout)
    if not _is_sandbox(made):
        raise SandboxError(f"The sandbox factory {given!r} gave {made!r}, which is not a sandbox.")
    check_apart(host.data_dir, made.root)
    return made, True


def _is_sandbox(given: Any) -> bool:
    return all(hasattr(given, part) for part in ("root", "workdir", "enclose", "prepare", "recipe"))


def _is_workspace(root: str, dirs: SessionDirs) -> bool:
    """Whether the folder is the session's own workspace, rather than one of its caller's."""
    return os.path.realpath(root) == os.path.realpath(dirs.session)


_late: set[asyncio.Future[Any]] = set()


async def _made(factory: Any, workspace: Workspace, limit: float) -> Any:
    """What the app's factory makes. It may be slow, and block; what it makes too late is closed again."""
    making = asyncio.ensure_future(portal.call_back(factory, workspace, loop=None))
    try:
        if (await asyncio.wait({making}, timeout=limit))[0]:
            return making.result()
        raise SandboxError(
            f"The sandbox factory {factory!r} has made nothing within {limit:g} s (HOSTLER_START_TIMEOUT). "
            "If it still does, that is closed."
        )
    finally:
        if not making.done():
            _late.add(making)
            making.add_done_callback(_close_late)


def _close_late(making: asyncio.Future[Any]) -> None:
    _late.discard(making)
    if not making.cancelled() and making.exception() is None and hasattr(making.result(), "close"):
        making.get_loop().run_in_executor(None, making.result().close)


async def _same_sandbox(options: Options, row: Row[Any], dirs: SessionDirs, host: Host) -> tuple[Sandbox, bool]:
    """The sandbox that the session was made with, or the one that the app passes in its place; and whether it is the
    session's own. Raises StateIncompatible where the program would not find its conversation: it knows its folders by
    their names."""
    recipe = row.rules.get(_SANDBOX, choice.MADE_WITHOUT)
    if options.sandbox is None or options.sandbox is choice.auto:
        folder = dirs.session if row.owned else row.workdir
        if not row.owned:
            check_there(folder, row.key)
        dirs.make()
        return await asyncio.to_thread(choice.again, recipe, folder, row.key), recipe.get("own", False)
    sandbox, own = await _sandbox(options.sandbox, dirs, host)
    owned = _is_workspace(sandbox.root, dirs)
    if owned != row.owned or (not owned and sandbox.root != row.workdir):
        raise StateIncompatible(
            f"Session {row.key!r} works in {'its own workspace' if row.owned else row.workdir}; the sandbox passed to "
            f"agent_resume works in {sandbox.root}."
        )
    if choice.known_as(recipe) != choice.known_as(sandbox.recipe):
        raise StateIncompatible(
            f"Session {row.key!r} was made in a sandbox of kind {recipe['kind']!r}, where its folders have other names than "
            f"in {sandbox.recipe['kind']!r}; its program would not find its conversation. Resume it without sandbox=."
        )
    return sandbox, own
