"""The sandboxes that callers choose from: `sandbox.auto`, `sandbox.bubblewrap`, `sandbox.docker`, `sandbox.local`; and
what one of their own is built on: `sandbox.Sandbox`."""

from __future__ import annotations

from .sandboxes.bubblewrap import Bubblewrap, bubblewrap
from .sandboxes.choice import auto
from .sandboxes.docker import Docker, docker
from .sandboxes.limits import Limits
from .sandboxes.local import Local, local
from .types.sandbox import Sandbox

__all__ = ["Bubblewrap", "Docker", "Limits", "Local", "Sandbox", "auto", "bubblewrap", "docker", "local"]
