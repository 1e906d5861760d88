"""The Docker and Podman sandbox: a container found by its name, or made, and left running for the next call."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from typing import Any

from .. import environment
from ..limits import Limits
from ..local import real_folder
from .box import Docker, Settings, own_name
from .container import OFFLINE, Bind
from .daemon import address
from .place import INSIDE, Place

__all__ = ["Docker", "again", "docker"]

LIFE = 7 * 86400.0
_NETWORKS = {"off": OFFLINE, "on": "bridge"}
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,100}")
_SESSION = "/session"
_OF_SESSION = (_SESSION, "/artifacts", "/persistent", "/skills")


def docker(
    image: str,
    name: str | None = None,
    *,
    mounts: Mapping[str, str | os.PathLike[str] | tuple[str | os.PathLike[str], str]] | None = None,
    workdir: str | None = None,
    network: str = "off",
    user: str | int | None = None,
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    labels: Mapping[str, str] | None = None,
    runtime: str | None = None,
    life: float = LIFE,
) -> Docker:
    """Run the program in a container of Docker or Podman: that with this ``name`` if there is one, started if it was
    stopped, else a new one of ``image``. It is left running, and a later call finds it again, in any process of this user.

    ``mounts`` maps folders of the container to those of this machine (``(folder, "ro")``: not to be changed); with
    ``mounts=ws.mounts`` of a sandbox factory the container belongs to that session. Without a mount at ``workdir``
    ("/workspace") the workspace begins as what the image has there, and outlives the container. ``network`` is "off" (the
    model and the app's tools can be reached all the same), "on", or the name of one of the engine's networks; this machine
    is ``host.docker.internal`` in it. ``user`` is whom the program runs as; without it this process's user, so that files
    belong to it. ``env`` is for the programs, ``labels`` are the container's. ``runtime`` is one of the engine's ("runsc").
    After ``life`` seconds in which nobody has used it ``hostler gc`` removes the container.

    Nothing is started yet. Raises SandboxError where no engine is, ValueError or TypeError for what cannot be.
    """
    if not isinstance(image, str) or not image:
        raise TypeError(f"image takes an image's name, such as 'my-agents:latest', not {image!r}.")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(
            f"name={name!r} is no name of a container: it begins with a letter or digit, and holds those, '_', '.' and '-', "
            "101 at most. For a key of any form take a hash of it."
        )
    if limits is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits takes sandbox.Limits(memory=..., processes=...), not {limits!r}.")
    if isinstance(life, bool) or not isinstance(life, (int, float)) or not life > 0:
        raise ValueError(f"life must be a positive number of seconds, not {life!r}.")
    given = dict(mounts or {})
    session = given.get(_SESSION)
    at = workdir or (_SESSION if session is not None else "/workspace")
    binds = tuple(_bind(inside, host) for inside, host in given.items() if session is None or inside not in _OF_SESSION)
    for path in (at, *(bind.inside for bind in binds)):
        if not os.path.isabs(path) or os.path.normpath(path) != path or path == "/" or path.startswith(INSIDE):
            raise ValueError(
                f"{path!r} cannot be a folder of the container: give an absolute path, not below {INSIDE}."
            )
    where = address()
    if session is not None:
        root = _folder(session)
        place = None
    else:
        name = name or f"hostler-{secrets.token_hex(8)}"
        place = Place.of(where, name)
        place.make()
        root = next((bind.host for bind in binds if bind.inside == at), place.workspace)
    settings = Settings(
        image=image,
        name=name or own_name(root),
        workdir=at,
        network=_NETWORKS.get(network, network),
        user=None if user is None else str(user),
        env=environment.checked(env or {}),
        limits=limits or Limits(),
        labels=dict(labels or {}),
        mounts=binds,
        runtime=runtime,
        life=float(life),
    )
    return Docker(settings, where, root, place)


def again(recipe: Mapping[str, Any], folder: str) -> Docker:
    """The sandbox of a recipe that was stored with a session whose workspace is ``folder``."""
    kept = ("image", "name", "workdir", "network", "user", "labels", "runtime", "life")
    settings = Settings(
        **{key: recipe[key] for key in kept},
        env={},
        limits=Limits(**recipe["limits"]),
        mounts=tuple(Bind(host, inside, readonly) for inside, host, readonly in recipe["mounts"]),
    )
    where = address()
    return Docker(settings, where, folder, Place.of(where, recipe["name"]) if recipe["shared"] else None)


def _bind(inside: str, given: Any) -> Bind:
    if isinstance(given, tuple):
        host, how = given
        if how not in ("ro", "rw"):
            raise ValueError(f"mounts: {inside!r} is to be mounted {how!r}; it can be 'ro' or 'rw'.")
        return Bind(_folder(host), inside, how == "ro")
    return Bind(_folder(given), inside)


def _folder(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"mounts maps folders of the container to folders of this machine, not to {path!r}.")
    expanded = os.path.abspath(os.path.expanduser(os.fspath(path)))
    if os.path.isfile(expanded):
        return os.path.realpath(expanded)
    return real_folder("sandbox.docker", expanded)
