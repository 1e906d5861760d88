"""What a function of the app is told of the call that it answers, and what the host is asked about one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..faces import Artifacts, Files


@dataclass(frozen=True, slots=True)
class ToolContext:
    """A tool gets it in the parameter that it annotates with this class; the agent does not see that parameter.

    ``session`` is the session's key, ``turn`` the turn's id, ``call`` the id of this call; ``files`` and ``artifacts``
    are those of the session, ``extra_body`` what the app gave with the turn. ``cancel`` is set when the turn was
    cancelled, or the tool took too long: a sync function looks at it, an async one is cancelled besides.
    """

    session: str
    turn: str
    call: str
    files: Files = field(repr=False)
    artifacts: Artifacts = field(repr=False)
    extra_body: Any = None
    cancel: threading.Event = field(default_factory=threading.Event, repr=False)


@dataclass(frozen=True, slots=True)
class ToolCallAsked:
    """A call that has come to the tool server. ``key`` is the same when it is delivered again, and only then; ``call`` is
    the program's own id of it where it says one. ``about`` is the first argument as text, which patterns look at."""

    key: str
    turn: str
    call: str
    tool: str
    input: Mapping[str, Any] = field(repr=False)
    about: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a call may run; a ``reason`` is told to the model. With an ``answer`` there is nothing to run."""

    allow: bool
    reason: str | None = None
    answer: ToolAnswer | None = None


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What the model is told."""

    text: str
    is_error: bool = False
