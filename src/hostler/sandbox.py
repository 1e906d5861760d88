"""The sandboxes that callers choose from: `sandbox.auto`, `sandbox.bubblewrap`, `sandbox.local`."""

from __future__ import annotations

from .sandboxes.bubblewrap import Bubblewrap, bubblewrap
from .sandboxes.choice import auto
from .sandboxes.limits import Limits
from .sandboxes.local import Local, local

__all__ = ["Bubblewrap", "Limits", "Local", "auto", "bubblewrap", "local"]
