"""Agents of hostler's own: each runs as a process that speaks ACP on stdio, started by its file with ``python -I``.

A worker imports nothing of hostler but its siblings: it runs where the agent runs, and starts in a fraction of a second.
"""
