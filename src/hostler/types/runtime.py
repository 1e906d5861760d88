"""The seam between hostler and one agent program: how to launch it and how to translate what it says."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, cast

from .events import Event, ModelCall
from .result import ErrorInfo, StopReason


class Harness(enum.StrEnum):
    """The complete agent programs that hostler runs."""

    CLAUDE_CODE = "claude_code"
    CODEX = "codex"
    OPENCODE = "opencode"
    PI = "pi"
    GEMINI_CLI = "gemini_cli"
    DEEP_AGENTS = "deep_agents"
    TOOL_LOOP = "tool_loop"


@dataclass(frozen=True, slots=True)
class AcpAgent:
    """Any agent that speaks the Agent Client Protocol on stdio; made by `acp_agent`."""

    command: tuple[str, ...]


def acp_agent(command: Sequence[str]) -> AcpAgent:
    """An agent program to be started with ``command`` that speaks ACP (agentclientprotocol.com) on stdio."""
    if isinstance(command, str) or not command:
        raise TypeError(
            "acp_agent(command=[...]) takes a non-empty list of arguments, for example ['my-agent', '--acp']."
        )
    return AcpAgent(tuple(command))


def check_harness(harness: object) -> Harness | AcpAgent | Runtime:
    """``harness`` itself if it is one (or a `Runtime` of the caller's own); otherwise TypeError that names the member
    probably meant."""
    if isinstance(harness, (Harness, AcpAgent)):
        return harness
    if all(hasattr(harness, part) for part in ("name", "codec", "launch", "find")) and not isinstance(harness, type):
        return cast("Runtime", harness)
    hint = ""
    if isinstance(harness, str):
        key = harness.lower().replace("-", "_").replace(" ", "_")
        names = (
            {m.value: m.name for m in Harness}
            | {m.value.replace("_", ""): m.name for m in Harness}
            | {"claude": "CLAUDE_CODE", "gemini": "GEMINI_CLI"}
        )
        if close := difflib.get_close_matches(key, names, n=1, cutoff=0.5):
            hint = f" Did you mean Harness.{names[close[0]]}?"
    raise TypeError(f"harness must be a member of hostler.Harness or acp_agent(command=[...]), not {harness!r}.{hint}")


Permissions: TypeAlias = Literal["full", "read-only", "edit", "ask"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a program can do under hostler; the sheet that `agent_capabilities` gives, and that the conformance suite
    (`hostler.testing.conformance`) proves with the program itself. ``deltas``: answers are streamed in pieces. ``portable``:
    its history is saved with the session, which goes on in a fresh home and can be forked. ``fork``: a conversation can be
    gone on with from the end of any of its turns. ``images``: pictures are given to the model, not only their paths.

    Every program can be given ``output=`` and ``skills=``. ``output``: ``"schema"`` when the program has a way of its own
    to hold its model to one, ``"prompt"`` when it is asked in words; the answer is checked in either case. ``skills``:
    ``"native"`` when the program offers them in its own way, ``"prompt"`` when hostler lists them for it.
    ``questions``: how its agent asks a person something, where one can answer: ``"native"``, or ``"tool"`` for a tool of
    hostler's. ``sub_agent_header``: which header tells its sub-agents' model calls from those of the main agent.

    ``repeats_cut_calls``: a model call whose answer breaks off is made again; else the turn ends with an error.
    ``tells_inputs``: a ``ToolCall`` of an MCP server or of the app has the arguments; else only a title. Two are only of use
    to hostler: ``fresh``, a program that runs can begin another conversation, and ``wants_objects``, it takes a tool's
    result that is JSON for its structured content, and refuses one that is no object. ``reasons`` has, by name of the
    field (for permissions, of the mode), why the program cannot do it.
    """

    permissions: tuple[Permissions, ...] = ("full",)
    approvals: bool = False
    steer: bool = False
    history: bool = False
    instructions: bool = False
    tools: bool = False
    mcp_servers: bool = False
    disable_tools: bool = False
    allow_deny: bool = False
    output: Literal["schema", "prompt"] = "prompt"
    max_turns: bool = False
    effort: bool = False
    images: bool = False
    skills: Literal["native", "prompt"] = "prompt"
    deltas: bool = True
    portable: bool = False
    fork: bool = False
    fresh: bool = False
    repeats_cut_calls: bool = True
    tells_inputs: bool = True
    wants_objects: bool = False
    questions: Literal["native", "tool"] | None = None
    sub_agent_header: str | None = None
    reasons: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class NativeFile:
    """Where the program keeps the history of one session, relative to its private home.

    ``pattern`` is a glob (``*`` within a name, ``**`` over folders) in which ``{id}`` stands for the native id and ``{id:8}`` for its first eight characters.
    ``kind``: ``jsonl`` is a text file that only grows line by line (a torn last line may be dropped), ``file`` is
    copied whole, ``sqlite`` is a database, copied with what its write-ahead log holds. ``moved`` is how it is told of a session's new working
    directory, where the program would not find the conversation otherwise: of a database the SQL, with ``:workdir``; of a
    ``jsonl`` the field of its first record.
    """

    pattern: str
    kind: Literal["jsonl", "file", "sqlite"] = "file"
    moved: str | None = None


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """All that a runtime may use to decide how its program is started. Paths are as the program sees them.

    ``model`` is the name to ask for at ``model_url`` (scheme, host and port, no path) with ``token`` as the key.
    ``resume`` is the native id of the conversation to go on with, or None for a new one. With ``fork_at`` (an `Ended.at`
    of that conversation) it stays as it is, and a new one begins that holds it up to there. ``tool_url`` and
    ``tool_token`` are set when the host offers tools by streamable-HTTP MCP. ``files_dir`` is a private folder for files that
    ``argv`` refers to. ``new_id`` is a fresh uuid that a program which takes one may give to a new conversation.
    ``artifacts`` is the folder for results, ``folders`` are others of the session; with ``permissions="edit"`` they may
    be written as the workspace may.
    ``approvals``: somebody can be asked, for leave to use a tool or for an answer.
    ``output_schema`` is set when the runtime takes it at launch (see `Runtime.takes_schema`). ``skills`` is the folder of
    the session's skills (one folder each, with a SKILL.md), or None when it has none.
    """

    program: tuple[str, ...]
    home: str
    tmp: str
    workdir: str
    files_dir: str
    model: str
    model_url: str
    token: str = field(repr=False)
    resume: str | None = None
    instructions: str | None = None
    permissions: Permissions = "full"
    confined: bool = False
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    disable_tools: tuple[str, ...] = ()
    approvals: bool = False
    max_turns: int | None = None
    effort: str | None = None
    output_schema: Mapping[str, Any] | None = None
    tool_url: str | None = None
    tool_token: str | None = field(default=None, repr=False)
    mcp_servers: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    new_id: str | None = None
    artifacts: str | None = None
    skills: str | None = None
    fork_at: str | None = None
    folders: tuple[str, ...] = ()

    @property
    def beside(self) -> tuple[str, ...]:
        """The folders outside the workspace that may be written as it may."""
        return (*((self.artifacts,) if self.artifacts else ()), *self.folders)


def start_timeout(server: Mapping[str, Any]) -> float:
    """Seconds that one of the caller's MCP servers may take to start."""
    return float(server.get("start_timeout", 30))


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the program: ``env`` is added to the sandbox's allow-listed base environment; ``files`` (absolute
    paths below home or files_dir, text) are written with mode 0600 before each start. ``clear`` are paths below home that
    are removed before that: places from which the program would take rights that an agent left there. ``links`` are
    symbolic links to be made below files_dir, with where they lead."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    clear: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)


# ---- what goes through the codec -------------------------------------------------------------------------------------

FrameKind: TypeAlias = Literal["out", "err", "in", "note", "exit"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One numbered frame of the keeper's log.

    ``out``: a whole line that the program wrote, without its newline. ``err``: a chunk of its stderr. ``in``: an input
    that it was given (``key`` names it). ``note``: JSON about one of its model calls, e.g.
    ``{"call": 3, "what": "cut", "bytes": 120}``. ``exit``: its exit code in decimal, always last.
    """

    no: int
    kind: FrameKind
    data: bytes
    key: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Begin a turn. ``images`` are (media type, base64 data). ``fresh``: in a new conversation, which begins with it; only
    a program that is capable of it is told so. ``schema`` is set when the runtime takes it with each prompt (see
    `Runtime.takes_schema`)."""

    turn: str
    text: str
    images: tuple[tuple[str, str], ...] = ()
    fresh: bool = False
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End the running turn the way the program itself can."""


@dataclass(frozen=True, slots=True)
class Steer:
    """Say something to the running turn."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the Approval with this id; ``answers`` are the texts that answer its questions, by their ids."""

    id: str
    allow: bool
    reason: str | None = None
    answers: Mapping[str, list[str]] | None = None


Command: TypeAlias = Prompt | Interrupt | Steer | Answer


@dataclass(frozen=True, slots=True)
class Ended:
    """The program's own word that its turn is over. ``text`` is the final answer (None: take the streamed text), ``at``
    the program's name for this place in its conversation, where it can fork it."""

    stop_reason: StopReason = "done"
    text: str | None = None
    output: Any = None
    error: ErrorInfo | None = None
    at: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Identified:
    """The program named its native session."""

    native_id: str


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The main agent (not a sub-agent) begins a model call; counted against ``max_turns``."""


@dataclass(frozen=True, slots=True)
class Withhold:
    """With ``on`` the program is about to say what belongs before the turn's first model call, which waits for it; without,
    it has said it."""

    on: bool


@dataclass(frozen=True, slots=True)
class ServerMissing:
    """An MCP server of the caller's did not start, as a `Notice` says; a turn that requires it ends."""

    name: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """The program shows that it is not in the conversation it should be in; the turn must not go on."""

    message: str


@dataclass(frozen=True, slots=True)
class In:
    """An Event that belongs to a sub-agent: ``parent`` is the id of its ToolCall."""

    parent: str
    event: Event


CodecEvent: TypeAlias = Event | Ended | Identified | StepStarted | Withhold | ServerMissing | Unfit | In
CodecState: TypeAlias = dict[str, Any]  # small, JSON, never mutated in place


@dataclass(frozen=True, slots=True)
class Send:
    """Bytes for the program's stdin: one line without newline. ``key`` is unique in the session, equal for the same
    input made again from the same state (so that it can be sent twice and is delivered once)."""

    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Folded:
    """What one frame or command gave."""

    state: CodecState
    events: tuple[CodecEvent, ...] = ()
    sends: tuple[Send, ...] = ()


class Codec(Protocol):
    """Pure translation; no clock, no randomness, no I/O. State in, state out."""

    version: int

    def start(self, ctx: LaunchContext) -> Folded:
        """The state of a program just started, and what must be said to it first (handshake)."""
        ...

    def fold(self, state: CodecState, item: Frame | ModelCall) -> Folded:
        """Translate one frame of the program, or a call that the endpoint saw."""
        ...

    def encode(self, state: CodecState, command: Command) -> Folded:
        """Translate a command from outside."""
        ...


class Runtime(Protocol):
    """One agent program."""

    name: str
    capabilities: Capabilities
    codec: Codec
    native_files: tuple[NativeFile, ...]
    wire: Literal["anthropic", "responses", "chat", "gemini"]
    id_pattern: str
    project_instructions: tuple[str, ...]  # files of the workspace that the program does not read itself
    model_first: bool  # it touches nothing in the workspace before its model has answered
    project_code: tuple[str, ...]  # folders of the workspace from which the program runs code at its start, unasked
    tool_names: frozenset[str] | None  # what allow, deny and disable_tools may name; None: only the program knows

    def find(self, options: Mapping[str, Any], which: Any) -> tuple[str, ...]:
        """The command that starts the program (see `hostler.runtimes.programs`). Raises HarnessInstallFailed."""
        ...

    def launch(self, ctx: LaunchContext) -> Launch: ...

    def takes_schema(self, schema: Mapping[str, Any]) -> Literal["launch", "prompt"] | None:
        """When the program is told that its answers are to fit this JSON Schema: at its launch or with each prompt. None:
        it has no way to be told, or none that can hold this schema, and is asked in words."""
        ...

    def history(self, files: Mapping[str, bytes], native_id: str) -> list[dict[str, Any]]:
        """OpenAI-format messages from the native files (relative path to content). Raises CapabilityUnsupported."""
        ...
