"""Tools to test applications built on hostler, and hostler itself."""

from __future__ import annotations

from typing import Any

__all__ = ["FAKE", "ModelServer", "runtime_conformance"]
_PLACES = {
    "FAKE": "fake_runtime",
    "ModelServer": "model_server",
    "runtime_conformance": "conformance",
}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
