"""Persistent dirs as they are stored with a session, and made again from that."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .dirs import PersistentDir, Whole, checked
from .local import local_dir
from .remote import fsspec_dir


def from_rule(rule: Mapping[str, Any]) -> PersistentDir | None:
    """The dir that was stored as ``rule``; None when it has functions of the app, which cannot be stored."""
    if rule["spec"] is None:
        return None
    spec = dict(rule["spec"])
    given: dict[str, Any] = {name: rule[name] for name in ("commit", "merge", "timeout")}
    kind = spec.pop("kind")
    made = (
        local_dir(spec["source_dir"], at=rule["path"], **given)
        if kind == "local"
        else fsspec_dir(spec["url"], at=rule["path"], **given)
    )
    return dataclasses.replace(made, index=rule["index"])


def named(rule: Mapping[str, Any]) -> PersistentDir:
    """The dir that was stored as ``rule``, to look at its checkout; it cannot be loaded or stored."""
    return PersistentDir(rule["path"], Whole(_nothing, None), rule["commit"])


def _nothing(ctx: object) -> None:
    raise NotImplementedError("This dir is only looked at.")


def completed(given: Sequence[PersistentDir], stored: Sequence[Mapping[str, Any]]) -> tuple[PersistentDir, ...]:
    """The dirs that were given, and the stored ones that were not and can be made again."""
    paths = {dir.path for dir in given}
    again = [from_rule(rule) for rule in stored if rule["path"] not in paths]
    return checked([*given, *(dir for dir in again if dir is not None)])
