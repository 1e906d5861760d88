"""The host keeps sessions: finds or creates them by key, serialises their turns, stores and recovers them."""

from .local import Host, implicit_host

__all__ = ["Host", "implicit_host"]
