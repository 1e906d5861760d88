"""The model gateway of sessions: holds the real key, forwards model calls, counts usage and cost."""

from .gateway import TOOLS_PATH, Endpoint
from .routes import Route, route_for

__all__ = ["TOOLS_PATH", "Endpoint", "Route", "route_for"]
