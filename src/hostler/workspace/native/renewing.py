"""A home made anew around the history: for a program that refuses to go on with what else is in there."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...removal import remove_path
from ...types.runtime import NativeFile
from ..confined import Root, make_folder
from . import sqlite
from .finding import find
from .restoring import exceeds, restorable


@dataclass(frozen=True, slots=True)
class Renewed:
    """``home`` has nothing in it but the history that is ``kept`` there, all else lies in the folder ``aside``."""

    home: str
    aside: str
    kept: frozenset[str]

    def undo(self) -> None:
        """All is as it was; what has been made in home since is gone."""
        made = _beside(self.home)
        _move(Root(self.home), Root(made), self.kept)
        _move(Root(self.aside), Root(self.home))
        for folder in (made, self.aside):
            with contextlib.suppress(OSError):
                remove_path(folder)


def renew(
    home: str, target_dir: str, files: Iterable[NativeFile], native_id: str, manifest: Mapping[str, Any] | None
) -> Renewed | None:
    """Set aside what is in home, so that the saved copies can be put back in an empty one; None, and nothing is changed,
    when they are of no use. Only while the program is not running.

    History that the copies would not bring back stays: sound files that hold more than theirs, and those that have none.
    """
    if not restorable(target_dir, manifest):
        return None
    assert manifest is not None
    root = Root(home)
    saved = {item["path"]: item for item in manifest["files"]}
    kept = {path for path, item in saved.items() if exceeds(root, target_dir, item)}
    kept |= find(root, files, native_id).keys() - saved.keys()
    kept |= {other for path in kept for other in sqlite.companions(path)}
    renewed = Renewed(home, _beside(home), frozenset(kept))
    try:
        _move(root, Root(renewed.aside), renewed.kept)
    except BaseException:
        _move(Root(renewed.aside), root)
        raise
    return renewed


def set_aside(home: str) -> list[str]:
    """The folders that hold what was once in home."""
    above, name = os.path.split(home)
    try:
        return [os.path.join(above, other) for other in os.listdir(above) if other.startswith(f"{name}{_ASIDE}")]
    except FileNotFoundError:
        return []


_ASIDE = "-aside-"


def _beside(home: str) -> str:
    folder = f"{home}{_ASIDE}{secrets.token_hex(4)}"
    make_folder(folder)
    return folder


def _move(source: Root, target: Root, kept: Iterable[str] = (), folder: str = ".") -> None:
    """Move what is in a folder, but for what is ``kept``. The folder itself stays: it may be mounted somewhere."""
    for entry in source.listdir(folder):
        if entry.path in kept:
            continue
        inside = any(path.startswith(entry.path + "/") for path in kept)
        if entry.kind == "directory" and (inside or _is_folder(target, entry.path)):
            _move(source, target, kept, entry.path)
        else:
            source.move(entry.path, entry.path, into=target)


def _is_folder(root: Root, path: str) -> bool:
    try:
        return stat.S_ISDIR(root.lstat(path).st_mode)
    except OSError:
        return False
