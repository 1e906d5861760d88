"""What all commands share: consoles, and errors as a person at a terminal wants them."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console

from ..types.errors import HarnessError
from ..types.runtime import Harness

FAILED = 1
UNUSABLE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console that takes text as it is and raises BrokenPipeError when nobody reads it any more."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def guarded(command: Callable[[], int]) -> int:
    """The exit code of a command; what a user can do something about is said in one line, without a traceback."""
    try:
        return command()
    except BrokenPipeError:
        # The interpreter flushes at its end; there is nobody to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (HarnessError, ValueError, OSError) as error:
        named = isinstance(error, OSError) and error.filename is not None
        words = f"{error.filename}: {error.strerror}" if named else str(error)  # type: ignore[union-attr]
        console(stderr=True).print(f"hostler: {words}", style="red", soft_wrap=True)
        return UNUSABLE


def harness_named(name: str) -> Harness:
    """The member with this value. Raises ValueError that names the one probably meant."""
    known = [member.value for member in Harness]
    wanted = name.lower().replace("-", "_")
    if wanted in known:
        return Harness(wanted)
    close = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
    raise ValueError(
        f"No program is called {name!r}. " + (f"Did you mean {close[0]}?" if close else "See `hostler doctor`.")
    )
