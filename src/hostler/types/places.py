"""Where hostler keeps its own things."""

from __future__ import annotations

import os
from collections.abc import Mapping


def state_dir(environ: Mapping[str, str] = os.environ) -> str:
    """The data dir of the implicit host; never relative to the current directory."""
    if given := environ.get("HOSTLER_STATE_DIR"):
        return os.path.abspath(os.path.expanduser(given))
    base = environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "hostler")
