"""What the agent is told of its persistent dirs, with its prompt. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .dirs import PersistentDir


def brief(dirs: Sequence[PersistentDir], real: Callable[[str], str], index: Mapping[str, Sequence[str]]) -> str:
    """``real`` gives the name by which the program knows a path, ``index`` the lines of a memory's index by its path."""
    lines = []
    if dirs:
        lines = ["These folders are kept beyond this session:"]
        lines += [f"- {real(d.path)}{_about(d)}" for d in dirs]
    for dir in dirs:
        if index.get(dir.path):
            lines += [f"What was remembered, in {real(dir.path)} (the first line of each file):", *index[dir.path]]
    return "\n".join(lines)


def _about(dir: PersistentDir) -> str:
    if dir.read_only:
        return " (read-only: what is changed there is put back)"
    return " (your memory)" if dir.index is not None else ""
