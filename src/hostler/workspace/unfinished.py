"""Files that say that something is being made. Who makes it has it locked; one that is not locked was left by the killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def begun(path: str, text: str = "") -> Iterator[None]:
    """Something is being made from now on, of which ``text`` says what is to be known. The file is not removed."""
    new = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    with os.fdopen(os.open(new, _OPEN | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(text)
        file.flush()
        os.rename(new, path)  # nobody sees it without the lock
        yield


@contextlib.contextmanager
def left(path: str) -> Iterator[str | None]:
    """The text of a file whose maker was killed, which is ours meanwhile; None where there is none, or its maker lives."""
    with contextlib.ExitStack() as stack:
        text = None
        with contextlib.suppress(OSError, UnicodeDecodeError):
            file = stack.enter_context(os.fdopen(os.open(path, _OPEN), encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink:  # its maker has not come to the end just now
                text = file.read(4096)
        yield text


def is_made(path: str) -> bool:
    """Whether somebody is at it now."""
    with left(path) as text:
        return text is None and os.path.lexists(path)
