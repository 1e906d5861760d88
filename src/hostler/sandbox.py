"""The sandboxes that callers choose from: `sandbox.local`, `sandbox.auto`."""

from __future__ import annotations

from .sandboxes.local import Local, auto, local

__all__ = ["Local", "auto", "local"]
