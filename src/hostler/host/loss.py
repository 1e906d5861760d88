"""That the session's own workspace was gone when it was gone on with: told in a turn, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..running import Running
from ..store.journal import Journalled
from ..types.events import Notice
from ..workspace import snapshot_index

if TYPE_CHECKING:
    from .live import LiveSession

_CODE = "workspace_lost"


def notices(live: LiveSession, running: Running) -> tuple[Notice, ...]:
    """What the turn tells of it."""
    if not live.dirs.workspace_lost or is_told(running.events):
        return ()
    message = (
        f"The workspace of session {live.key!r} was gone ({live.dirs.session}) and was made anew: it is empty. The "
        "conversation goes on, and may speak of files that are lost."
    )
    if found := snapshot_index.ids(live.dirs.snapshots):
        message += f" The last snapshot of it can be put back: session.restore({found[-1]!r})."
    return (Notice(_CODE, message),)


def is_told(events: Sequence[Journalled]) -> bool:
    """Whether the turn with these events told it."""
    return any(isinstance(event, Notice) and event.code == _CODE for event, _ in events)
