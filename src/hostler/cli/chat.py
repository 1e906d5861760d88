"""hostler chat: a conversation at the terminal, which goes on whenever it is called with the same key."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from .. import sandbox
from ..faces import Session
from ..profile import create_harness, local_host
from ..runtimes import runtime_for
from ..store import queries
from ..types.errors import HarnessError
from ..types.places import state_dir
from ..types.runtime import acp_agent
from . import stored
from .run import Job, Signals, one_turn
from .terminal import FAILED, console, harness_named
from .view import printable

_LEAVE = ("/quit", "/exit")


def chat_command(
    key: str, data_dir: str | None, *, harness: str | None, workdir: str | None, options: dict[str, Any]
) -> int:
    """Turn after turn, as they are typed; end of input or /quit leaves, and the same key goes on later."""
    session = _open(key, data_dir, harness, workdir, options)
    out = console(stderr=True)
    job = Job(harness or "", "", {}, workdir=workdir)
    code = 0
    try:
        out.print(f"session {printable(session.key)}; /quit leaves, Ctrl-C cancels a turn", style="dim", soft_wrap=True)
        while (prompt := _typed()) is not None:
            if prompt.strip() in _LEAVE:
                break
            if not prompt.strip():
                continue
            with Signals() as signals:
                done = one_turn(session, prompt, signals, job)
            code = 0 if done.result.stop_reason == "done" else FAILED
    finally:
        with contextlib.suppress(HarnessError):
            session.stop()
    return code


def _open(key: str, data_dir: str | None, harness: str | None, workdir: str | None, options: dict[str, Any]) -> Session:
    try:
        home: str | None = stored.data_dir_of(data_dir)
    except ValueError:
        home = None  # the first session is made now
    row = None
    if home is not None:
        row = stored.read(home, lambda store: store.read(lambda conn: queries.find_session(conn, key)))
    runtime: Any
    if row is not None and "command" in row.rules:
        runtime = acp_agent(row.rules["command"])
    elif row is not None and harness is None:
        runtime = runtime_for(row.harness)
    elif harness is not None:
        runtime = harness_named(harness)
    else:
        raise ValueError(f"There is no session {printable(key)!r} yet; name its program: --harness claude_code.")
    if workdir is not None:
        options["sandbox"] = sandbox.auto(workdir)
    host = local_host(data_dir=data_dir or state_dir())
    return create_harness(host=host, runtime=runtime, **options).sessions.get_or_create(key)


def _typed() -> str | None:
    """The next line, None at the end."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() its line editing
    try:
        return input("> ") if sys.stdin.isatty() else input()
    except EOFError:
        return None
    except KeyboardInterrupt:
        return None
    except UnicodeDecodeError:
        raise ValueError("The prompt is not UTF-8 text.") from None
