"""Which sandbox a session gets: the best that this machine has, or the one that it was made with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..types.errors import OptionsMismatch, SandboxError
from ..types.sandbox import Sandbox
from . import probe
from .bubblewrap import INSIDE, bubblewrap
from .docker import again as docker_again
from .limits import Limits
from .local import local

VARIABLE = "HOSTLER_SANDBOX"
_KINDS = ("bubblewrap", "local")
MADE_WITHOUT = {"kind": "local"}  # sessions of a hostler that had no other


def auto(workspace: Any) -> Sandbox:
    """The best sandbox that this machine has: `bubblewrap` where it works, else `local`. ``HOSTLER_SANDBOX`` overrides.

    Raises SandboxError when the one that the variable names does not work."""
    kind, _ = chosen()
    made: Sandbox = bubblewrap(workspace) if kind == "bubblewrap" else local(workspace)
    return made


def chosen() -> tuple[str, str]:
    """The kind of sandbox that `auto` makes here, and why."""
    if wanted := os.environ.get(VARIABLE):
        if wanted not in _KINDS:
            raise SandboxError(f"{VARIABLE} must be one of {', '.join(_KINDS)}, not {wanted!r}.")
        return wanted, f"{VARIABLE} says so"
    if (missing := probe.missing()) is not None:
        return "local", missing
    return "bubblewrap", "it works here"


def again(recipe: Mapping[str, Any], folder: str, session: str) -> Sandbox:
    """The sandbox of a recipe that was stored with a session, on ``folder``. Raises OptionsMismatch for one that cannot
    be made from what is stored, SandboxError for one that does not work here."""
    kind = recipe.get("kind")
    if kind not in (*_KINDS, "docker"):
        raise OptionsMismatch(
            f"Session {session!r} was made with a sandbox of the app's own ({kind}); pass it again: sandbox=..."
        )
    if recipe.get("env"):
        raise OptionsMismatch(
            f"Session {session!r} was made with a sandbox that sets {', '.join(recipe['env'])}; pass the same sandbox "
            "again. Values of variables are not stored."
        )
    inherit = recipe.get("inherit", ())
    made: Sandbox
    if kind == "docker":
        made = docker_again(recipe, folder)
    elif kind == "local":
        made = local(folder, inherit=inherit)
    else:
        made = bubblewrap(
            folder, network=recipe["network"], limits=Limits(**recipe["limits"]), ro=recipe["ro"], inherit=inherit
        )
    return made


def stored(sandbox: Sandbox, *, own: bool) -> dict[str, Any]:
    """What is stored of a sandbox with a session. ``own``: it is the session's, which closes it when it ends; one that
    was passed in is its caller's."""
    return {**sandbox.recipe, "own": own}


def known_as(recipe: Mapping[str, Any]) -> str | None:
    """What a program in this sandbox calls its working directory; None where it has no other name inside."""
    return None if recipe["kind"] == "local" else recipe.get("workdir", INSIDE.workdir)
