"""The durable record: tables and queries, nothing else."""

from .store import Store

__all__ = ["Store"]
