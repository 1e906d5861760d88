"""Where agents differ within the protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hostler.runtimes.jsonrpc import error_text
from hostler.types.result import ErrorInfo
from hostler.types.runtime import LaunchContext

AUTH_REQUIRED = -32000


def failure(message: dict[str, Any]) -> ErrorInfo:
    """Why the agent answered a prompt with an error, as far as the protocol says it."""
    error = message.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return ErrorInfo("model_auth" if code == AUTH_REQUIRED else "program_error", error_text(message))


def no_rule(ctx: LaunchContext) -> str:
    """What becomes of the agent's own permission requests: they are shown to whoever can answer, else granted."""
    return "ask" if ctx.approvals else "allow"


def none(line: str) -> None:
    """The protocol has no word for MCP servers that do not start."""


def nothing(ctx: LaunchContext) -> None:
    """The agent is told no more than the protocol wants."""


def as_it_is(update: dict[str, Any]) -> dict[str, Any]:
    """The agent tells of its tools in the protocol's own terms."""
    return update


def the_models(text: str) -> bool:
    """All that is said is the model's."""
    return False


def under_its_name(session: str) -> str:
    """A session is loaded under the name that it was made with."""
    return session


def no_word(text: str) -> str:
    """Nothing has to stand before a prompt."""
    return ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where agents differ within the protocol.

    ``names_tools``: the first title of a tool call is the tool's name. ``steers``: a second prompt joins the running one.
    ``keeps_cwd``: a session runs where it was made, whatever a resume says, so that must be asked for.
    ``servers``: MCP servers are given with the session, not in the agent's own configuration. ``fresh``: one process makes
    one session after the other. ``commands``: it takes a
    prompt that begins with a slash for a command, but looks at what is meant for the user's eyes only, too.
    ``failed_server``: the MCP server that did not start, by a line of the agent's stderr. ``mode``: the id of the mode in
    which it must work before it hears a prompt. ``meta``: what it is told beside, with each session. ``remark``: whether a
    piece of text is the agent's own word to its user, in among what the model says. ``plain``: what it tells of a tool call,
    as the protocol would have it: ``name``, ``rawInput``, ``rawOutput``. ``stops_when_denied``: a denied call is the end of
    its turn, which is therefore gone on with by a prompt that says so. ``silent``: it says no more of a call that was denied.
    ``loaded``: the name under which a session is to be resumed, if not its own. ``before``: a word to be said before a prompt
    that it would take for a command. ``cut``: whether the answer to a prompt shows that a model call was cut. Given, the
    agent does not repeat such a call, and may tell it as the end of a turn: then the prompt is repeated.
    """

    names_tools: bool = False
    host_prefix: str = "mcp__host__"
    steers: bool = False
    keeps_cwd: bool = False
    servers: bool = True
    fresh: bool = False
    commands: bool = False
    permission: Callable[[LaunchContext], str] = no_rule
    failure: Callable[[dict[str, Any]], ErrorInfo] = failure
    failed_server: Callable[[str], str | None] = none
    mode: Callable[[LaunchContext], str | None] = nothing
    meta: Callable[[LaunchContext], dict[str, Any] | None] = nothing
    remark: Callable[[str], bool] = the_models
    plain: Callable[[dict[str, Any]], dict[str, Any]] = as_it_is
    stops_when_denied: bool = False
    silent: bool = False
    loaded: Callable[[str], str] = under_its_name
    before: Callable[[str], str] = no_word
    cut: Callable[[dict[str, Any]], bool] | None = None
