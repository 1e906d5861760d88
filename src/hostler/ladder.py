"""The resume ladder: attach to the living program, else bring its own history back in a new process, else say why not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from . import keeper, skills
from .endpoint import TOOLS_PATH, Route
from .keeper import KeeperAddress, KeeperError, KeeperRefused, KeeperSpec
from .program import Program
from .progress import Progress, begun
from .removal import remove_path
from .types.errors import (
    CapabilityUnsupported,
    HarnessError,
    HarnessInstallFailed,
    LeaseLost,
    PathError,
    SessionLost,
    StateIncompatible,
)
from .types.events import Notice
from .types.rules import is_about
from .types.runtime import Folded, Launch, LaunchContext, Runtime
from .types.sandbox import Enclosure, Folders, Job, Sandbox
from .workspace import SessionDirs, check_there, native, which
from .workspace.blobs import Blobs
from .workspace.confined import Root, clear_folder, make_folder
from .workspace.roots import Names

MARK = "HOSTLER_RUN"
ARTIFACTS = "HOSTLER_ARTIFACTS"


class OtherVersion(StateIncompatible):
    """The living program belongs to a keeper that this version of hostler does not understand."""

    def __init__(self, session: str, protocol: int) -> None:
        super().__init__(
            f"The program of session {session!r} runs under a keeper of another version of hostler (it speaks protocol "
            f"{protocol}, this one {keeper.PROTOCOL}). Nothing was touched. Resume the session with that version, or end "
            f"the program (hostler kill {session}): the session then goes on from its saved history."
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store knows of a session's program and history."""

    key: str
    native_id: str | None
    new_id: str
    finished: int
    program: dict[str, Any] | None
    progress: dict[str, Any] | None
    frame: int
    native: dict[str, Any] | None
    branch: dict[str, Any] | None = None  # the conversation that the running turn began


@dataclass(frozen=True, slots=True)
class Branch:
    """A conversation to be begun: a fork of the session's at the place ``at``, or (None) a fresh one."""

    new_id: str
    at: str | None

    def stored(self) -> dict[str, Any]:
        return {"new_id": self.new_id, "at": self.at, "native_id": None}


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how the session's program runs; the same on every turn."""

    runtime: Runtime
    sandbox: Sandbox
    dirs: SessionDirs
    rules: Mapping[str, Any]
    route: Route
    approvals: bool
    tools: str | None  # a digest of what the app offers
    own_tools: frozenset[str]  # their names
    park_ttl: float
    orphan_ttl: float
    spool_limit: int

    @property
    def inside(self) -> Folders:
        """The session's folders as the program sees them."""
        return self.sandbox.inside(self.dirs.folders(self.sandbox.root))

    @property
    def skills(self) -> str | None:
        """The folder of the session's skills, as the program sees it; None when it has none."""
        return self.inside.skills if self.rules.get("skills") else None

    @property
    def schema_at(self) -> Literal["launch", "prompt"] | None:
        """When the program is told what its answers are to look like; see `Runtime.takes_schema`."""
        schema = self.rules.get("output")
        return None if schema is None else self.runtime.takes_schema(schema)

    @property
    def offered(self) -> str | None:
        """What the program is told about skills that it does not offer by itself."""
        if self.skills is None or self.runtime.capabilities.skills == "native":
            return None
        return skills.listing(self.rules["skills"], self.skills)

    @property
    def folders(self) -> tuple[str, ...]:
        """The persistent dirs that the program may write, as it sees them."""
        return tuple(f"{self.inside.persistent}/{name}" for name in self._persistent(read_only=False))

    @property
    def readonly(self) -> tuple[str, ...]:
        """The names of the persistent dirs that it may not."""
        return self._persistent(read_only=True)

    def _persistent(self, *, read_only: bool) -> tuple[str, ...]:
        rules = self.rules.get("persistent_dirs") or ()
        return tuple(r["path"].rsplit("/", 1)[1] for r in rules if (r["commit"] == "read-only") is read_only)

    def fingerprint(self) -> str:
        """Changes when a live program cannot go on under these rules."""
        per_launch = {k: v for k, v in self.rules.items() if k not in _PER_TURN}
        if self.schema_at != "launch":
            per_launch.pop("output", None)
        # A live program stays in the directory that it was started in, whatever has its name by now.
        place = [self.sandbox.workdir, which(self.sandbox.root)]
        rules = [per_launch, self.route.model, self.route.wire, *place, self.approvals, self.tools]
        return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:32]


_INSTRUCTIONS = 1 << 16  # bytes of a project's instruction file that are read
_PER_TURN = ("timeout", "max_cost", "metadata", "api_base", "trace", "redact", "extra_body", "on_persistence_error")


def may_resume(stored: Stored, place: Place) -> str | None:
    """Which rung a resume would reach, without starting anything. Raises SessionLost, OtherVersion."""
    if stored.program and keeper.alive(address := _address(stored.program)):
        if address.protocol != keeper.PROTOCOL:
            raise OtherVersion(stored.key, address.protocol)
        return "attached"
    return "native" if _native_id(stored, place) else None


async def attach(
    stored: Stored, place: Place, *, epoch: int, holder: str, upstream: str
) -> tuple[Program, Progress] | None:
    """The living program, taken over; None when there is none to take (its remains are swept). Raises LeaseLost when a
    newer host holds it, OtherVersion when it cannot be understood."""
    if not stored.program or not stored.progress:
        return None
    address = _address(stored.program)
    try:
        held = await keeper.attach(address, epoch=epoch, holder=holder, after=stored.frame, upstream=upstream)
    except KeeperError as error:
        if isinstance(error, KeeperRefused) and error.reason == "stale":
            raise LeaseLost(f"Session {stored.key!r} was taken over by another host: {error}.") from None
        if isinstance(error, KeeperRefused) and error.reason == "protocol":
            raise OtherVersion(stored.key, address.protocol) from None
        await asyncio.to_thread(keeper.destroy, address)
        return None
    program = Program(
        held,
        epoch=epoch,
        token=stored.program["token"],
        tool_token=stored.program["tool_token"],
        fingerprint=stored.program["fingerprint"],
        left=held.hello.next - 1 if held.hello.next - 1 > stored.frame else 0,
    )
    progress = Progress.from_dict(stored.progress)
    if progress.version != place.runtime.codec.version:
        await program.end()
        return None
    await program.send(progress.owed)
    return program, progress


@dataclass(frozen=True, slots=True)
class Launched:
    """A program that was just started and has not been attached to."""

    address: KeeperAddress
    token: str
    tool_token: str | None
    fingerprint: str
    progress: Progress
    resumed: str | None
    branch: Branch | None = None
    notices: tuple[Notice, ...] = ()

    def stored(self) -> dict[str, Any]:
        return {
            "address": self.address.to_dict(),
            "token": self.token,
            "tool_token": self.tool_token,
            "fingerprint": self.fingerprint,
        }


async def launch(stored: Stored, place: Place, branch: Branch | None = None) -> Launched:
    """Start the program: with its own history when the session has one, else fresh; with ``branch`` in a conversation that
    begins now. Raises set-up errors."""
    runtime, sandbox, dirs, rules = place.runtime, place.sandbox, place.dirs, place.rules
    check_there(sandbox.root, stored.key)
    fingerprint = await asyncio.to_thread(place.fingerprint)
    argv = runtime.find(rules["options"], sandbox.which)
    code = await asyncio.to_thread(_project_code, place)
    held = sandbox.confined and rules["permissions"] != "ask"
    if code and rules["permissions"] != "full" and not held:
        raise CapabilityUnsupported(
            f"{runtime.name} runs what is in {code} when it starts, and nothing stops it; permissions="
            f"{rules['permissions']!r} cannot be held in this workspace. Remove the folder, or choose another program."
        )
    for folder in (dirs.home, dirs.tmp, dirs.artifacts, dirs.persistent, dirs.skills, dirs.launch):
        make_folder(folder)
    fresh = branch is not None and branch.at is None
    native_id = None if fresh else await asyncio.to_thread(_restore, stored, place)
    if branch is not None and branch.at is not None and native_id is None:
        raise SessionLost(f"Session {stored.key!r} has no conversation of {runtime.name} that could be forked.")
    with contextlib.suppress(OSError):
        await asyncio.to_thread(remove_path, dirs.keepers)  # logs of programs that are over
    token = secrets.token_urlsafe(24)
    tool_token = secrets.token_urlsafe(24) if place.tools else None
    mark = secrets.token_hex(16)
    inside = await asyncio.to_thread(_enclose, place, argv)
    folders = inside.folders
    listener = inside.listener
    # Where the program has a network of its own, the keeper's init binds its model's address in there.
    if listener is None and not inside.model_port:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    try:
        port = inside.model_port if listener is None else listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        context = LaunchContext(
            program=inside.program,
            home=folders.home,
            tmp=folders.tmp,
            workdir=folders.workdir,
            files_dir=folders.launch,
            model=place.route.model,
            model_url=url,
            token=token,
            resume=native_id,
            new_id=branch.new_id if branch is not None else stored.new_id,
            fork_at=branch.at if branch is not None else None,
            instructions=_instructions(place),
            permissions=rules["permissions"],
            confined=sandbox.confined,
            **{name: _for_program(rules[name], place) for name in ("allow", "deny", "disable_tools")},
            approvals=place.approvals,
            max_turns=rules["max_turns"],
            effort=rules["effort"],
            output_schema=rules["output"] if place.schema_at == "launch" else None,
            tool_url=url + TOOLS_PATH if tool_token else None,
            tool_token=tool_token,
            mcp_servers=inside.servers,
            options=rules["options"],
            artifacts=folders.artifacts,
            skills=place.skills,
            folders=place.folders,
        )
        plan, folded = _plan(runtime, context)
        await asyncio.to_thread(_write_files, dirs, folders, plan)
        if place.skills is not None:
            await asyncio.to_thread(skills.lay_out, rules["skills"], Blobs(dirs.blobs), dirs.skills)
        env = {**sandbox.environment(home=folders.home, tmp=folders.tmp), **plan.env, ARTIFACTS: folders.artifacts}
        spec = KeeperSpec(
            argv=[*inside.wrap, *plan.argv],
            env=env,
            cwd=inside.cwd,
            dir=os.path.join(dirs.keepers, mark[:12]),
            mark=mark,
            park_ttl=place.park_ttl,
            orphan_ttl=place.orphan_ttl,
            spool_limit=place.spool_limit,
            feeds=inside.feeds,
            model_port=inside.model_port,
            groups=inside.groups,
            enclosed=bool(inside.wrap),
            far=inside.far,
        )
        try:
            address = await keeper.start(spec, listener)
        except KeeperError as error:
            raise HarnessInstallFailed(f"{runtime.name} does not start: {error}") from error
    finally:
        if listener is not None:
            listener.close()
    resumed = "native" if native_id else "replayed" if fresh else None
    progress = begun(runtime.codec, folded)
    return Launched(address, token, tool_token, fingerprint, progress, resumed, branch, inside.notices)


async def join(launched: Launched, *, epoch: int, holder: str, upstream: str) -> Program:
    """Attach to a program just started and say what it must hear first."""
    try:
        held = await keeper.attach(launched.address, epoch=epoch, holder=holder, after=0, upstream=upstream)
    except KeeperError as error:
        raise HarnessError(f"The keeper of a program just started cannot be reached: {error}") from error
    program = Program(
        held,
        epoch=epoch,
        token=launched.token,
        tool_token=launched.tool_token,
        fingerprint=launched.fingerprint,
    )
    await program.send(launched.progress.owed)
    return program


def _enclose(place: Place, argv: tuple[str, ...]) -> Enclosure:
    readonly = tuple(os.path.join(place.dirs.persistent, name) for name in place.readonly)
    for folder in readonly:
        make_folder(folder)
    folders = place.dirs.folders(place.sandbox.root)
    servers = {
        name: {part: value for part, value in spec.items() if part != "required"}  # which is ours to see to
        for name, spec in place.rules["mcp_servers"].items()
    }
    job = Job(argv, folders, place.rules["permissions"], servers, readonly)
    try:
        return place.sandbox.enclose(job)
    except OSError as error:
        raise HarnessInstallFailed(
            f"{place.runtime.name} does not start: the program {argv[0]!r} cannot be executed: {error}"
        ) from None


def _for_program(given: Iterable[str], place: Place) -> tuple[str, ...]:
    """Rules but for those about the app's own tools, which the tool server holds."""
    return tuple(rule for rule in given if not is_about(rule, place.own_tools))


def _plan(runtime: Runtime, context: LaunchContext) -> tuple[Launch, Folded]:
    """How it is started and what it must hear first: known before anything runs."""
    try:
        return runtime.launch(context), runtime.codec.start(context)
    except HarnessError:
        raise
    except Exception as error:  # options that nobody foresaw end this turn, not every one after it
        raise HarnessInstallFailed(
            f"{runtime.name} cannot be started with these options: {type(error).__name__}: {error}."
        ) from error


def _native_id(stored: Stored, place: Place) -> str | None:
    """The conversation to go on with, or None for a new one. Raises SessionLost when there should be one, and
    StateIncompatible for a name that is none: what the program called itself goes into its command line."""
    if stored.native_id is not None and not re.fullmatch(place.runtime.id_pattern, stored.native_id):
        raise StateIncompatible(
            f"Session {stored.key!r} cannot be resumed: {place.runtime.name} named its conversation "
            f"{stored.native_id[:80]!r}, which no conversation of it is called. Begin a new session."
        )
    native_id = stored.native_id or stored.new_id
    saved = stored.native or {}
    begun = bool(saved.get("begun") or saved.get("files"))
    if not place.runtime.native_files:  # only the program can tell, when it is asked for the conversation
        return native_id if begun or (stored.native_id and not stored.finished) else None
    if (
        stored.native_id is None
        and not saved.get("begun")
        and not any("{id}" in f.pattern for f in place.runtime.native_files)
    ):
        return None  # it names its conversations itself, and has named none: what files there are hold none of ours
    found = native.check(place.dirs.home, place.dirs.native, place.runtime.native_files, native_id, stored.native)
    if found == "ok" or native.restorable(place.dirs.native, stored.native):
        return native_id
    if not begun:
        return None  # no turn has come to a history: the first one was ended before, by whomever
    raise SessionLost(
        f"Session {stored.key!r} cannot be resumed: the history of {place.runtime.name} ({native_id}) is "
        f"{found}, in its home and among the saved files. Begin a new session; hostler never starts fresh under an old key. "
        'A caller who has the transcript can go on with messages= and context="replay".'
    )


def _restore(stored: Stored, place: Place) -> str | None:
    native_id = _native_id(stored, place)
    if (
        native_id is not None
        and native.check(place.dirs.home, place.dirs.native, place.runtime.native_files, native_id, stored.native)
        != "ok"
    ):
        assert stored.native is not None
        native.restore(place.dirs.native, place.dirs.home, stored.native)
    if native_id is not None:  # it may have been moved, or be a fork's
        native.relocate(place.dirs.home, place.runtime.native_files, native_id, place.sandbox.workdir)
    return native_id


def renew_home(stored: Stored, place: Place) -> native.Renewed | None:
    """For a program that was just started and refuses the conversation in its home: the next `launch` is in one made anew,
    with the saved history. None when there is none to put back."""
    files = place.runtime.native_files
    native_id = stored.native_id or stored.new_id
    return native.renew(place.dirs.home, place.dirs.native, files, native_id, stored.native)


def _project_code(place: Place) -> str | None:
    """A folder of the project, or of one around it, from which the program runs code."""
    folder = os.path.realpath(place.sandbox.root)
    while True:
        for name in place.runtime.project_code:
            if os.path.isdir(os.path.join(folder, name)):
                return os.path.join(folder, name)
        if os.path.exists(os.path.join(folder, ".git")) or os.path.dirname(folder) == folder:
            return None
        folder = os.path.dirname(folder)


def _instructions(place: Place) -> str | None:
    """The caller's, and those of skills and of the project where the program does not read them itself."""
    given = place.rules["instructions"]
    names = Names.of(place.inside)
    if given and names is not None:  # a program that does not see the folders under their names
        given = names.translated(given)
    parts = [given, place.offered]
    for name in place.runtime.project_instructions:
        with contextlib.suppress(OSError, PathError):
            text = Root(place.sandbox.root).read(name, _INSTRUCTIONS).decode(errors="replace").strip()
            parts.append(f"Instructions of this project (from {name}):\n\n{text}" if text else None)
    return "\n\n".join(part for part in parts if part) or None


def _write_files(dirs: SessionDirs, inside: Folders, plan: Launch) -> None:
    """The program's configuration anew; what an agent left in its place is gone before. The plan's paths are those of
    ``inside``."""
    for path in plan.clear:
        with contextlib.suppress(FileNotFoundError):
            Root(dirs.home).remove(os.path.relpath(path, inside.home))
    clear_folder(dirs.launch)
    for path, text in plan.files.items():
        for seen, base in ((inside.home, dirs.home), (inside.launch, dirs.launch)):
            if path.startswith(seen + os.sep):
                Root(base).write(os.path.relpath(path, seen), [text.encode()], mode=0o600)
                break
        else:
            raise ValueError(f"A runtime wants to write {path}, outside its home and its files_dir.")
    for path, target in plan.links.items():
        if not path.startswith(inside.launch + os.sep):
            raise ValueError(f"A runtime wants to link {path}, outside its files_dir.")
        link = os.path.join(dirs.launch, os.path.relpath(path, inside.launch))
        os.makedirs(os.path.dirname(link), mode=0o700, exist_ok=True)
        os.symlink(target, link)


def _address(program: Mapping[str, Any]) -> KeeperAddress:
    return KeeperAddress.from_dict(program["address"])
