"""Containers that nobody has used for as long as they may live, and folders of containers that are gone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...removal import remove_path
from ...types.errors import SandboxError
from . import container
from .daemon import Daemon, address, connected
from .place import PRIVATE, Place

_YOUNG = 60.0  # s: what is younger may be in the making
_KEPT = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Unused:
    """What it is, and how to remove it."""

    what: str
    remove: Callable[[], object]


def unused(now: float | None = None) -> list[Unused]:
    """What may be removed of this user's at the engine of this machine; nothing where there is none that answers."""
    now = time.time() if now is None else now
    try:
        where = address()
        with connected(where) as daemon:
            found = daemon.client.api.containers(all=True, filters={"label": f"{container.OWNER}={os.geteuid()}"})
            names = {name.lstrip("/") for each in found for name in each.get("Names") or ()}
            return [*_containers(daemon, where, found, now), *_places(where, names, now)]
    except SandboxError:
        return []


def _containers(daemon: Daemon, where: str, found: list[dict[str, Any]], now: float) -> Iterator[Unused]:
    for each in found:
        attrs = container.inspect(daemon, each["Id"])
        if attrs is None or attrs.get("ExecIDs"):
            continue  # gone, or a program runs in it, if only parked
        name, labels = attrs["Name"].lstrip("/"), attrs["Config"]["Labels"]
        why = _why(attrs, labels, now)
        if why is not None:
            yield Unused(f"container {name}: {why}", _removal(where, name))


def _why(attrs: dict[str, Any], labels: dict[str, str], now: float) -> str | None:
    started = max(_seconds(attrs["Created"]), _seconds(attrs["State"].get("StartedAt") or ""))
    if now - started < _YOUNG:
        return None
    mark = labels.get(container.USED)
    if mark is None:
        return "it was made to look into an image"
    try:
        idle = now - max(started, os.stat(mark).st_mtime)
    except FileNotFoundError:
        return "the session that it was made for is gone"
    life = float(labels[container.LIFE])
    return f"not used for {idle / 3600:.1f} hours, and it may live for {life / 3600:.1f}" if idle > life else None


def _removal(where: str, name: str) -> Callable[[], object]:
    def remove() -> bool:
        with connected(where) as daemon:
            return container.remove(daemon, name)

    return remove


def _places(where: str, names: set[str], now: float) -> Iterator[Unused]:
    """Those in which no session has folders any more, and that no container shows."""
    above = os.path.dirname(Place.of(where, "x").path)
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.listdir(above)):
            name = entry.rpartition("-")[0]
            place = Place(os.path.join(above, entry))
            if name in names or place != Place.of(where, name):
                continue
            with contextlib.suppress(FileNotFoundError):
                used = os.stat(place.filled if os.path.exists(place.filled) else place.path).st_mtime
                if now - used > _KEPT and not os.listdir(place.area(PRIVATE)):
                    yield Unused(f"folder of a container that is gone: {place.path}", _erasure(place))


def _erasure(place: Place) -> Callable[[], object]:
    return lambda: remove_path(place.path)


def _seconds(text: str) -> float:
    """A time as engines write it, some of them with nanoseconds."""
    try:
        return datetime.fromisoformat(text[:19] + "+00:00").timestamp()
    except ValueError:
        return 0.0
