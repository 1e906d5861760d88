"""The model gateway of sessions: holds the real key, forwards model calls, counts usage and cost."""

from .gateway import Endpoint
from .routes import Route, route_for

__all__ = ["Endpoint", "Route", "route_for"]
