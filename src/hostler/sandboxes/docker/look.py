"""What a container has inside: the program, Python, the rights to the session's folders, the model's address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...types.errors import SandboxError
from .container import SHELL

_NO_SHELL = (126, 127)
# One look for everything: each takes the engine some 50 ms.
_SCRIPT = """
program=$1 port=$2; shift 2
found=
case $program in /*) [ -f "$program" ] && [ -x "$program" ] && found=$program ;; esac
[ -n "$found" ] || found=$(command -v "${program##*/}") || found=
echo "program=$found"
for name in python3 python; do
  if path=$(command -v "$name"); then echo "python=$path"; break; fi
done
[ "$port" = 0 ] || ! grep -qi ":$port " /proc/net/tcp 2> /dev/null || echo port=1
for right in "$@"; do
  folder=${right#?}
  if ! [ -r "$folder" ] || ! [ -x "$folder" ]; then echo "unreadable=$folder"
  elif [ "$right" != "r$folder" ] && ! [ -w "$folder" ]; then echo "unwritable=$folder"; fi
done
echo seen
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """``program`` and ``python`` are paths inside, None for one that is not there. ``listening``: the port is one of this
    container's network. ``unreadable`` and ``unwritable`` are folders."""

    program: str | None
    python: str | None
    listening: bool
    unreadable: tuple[str, ...]
    unwritable: tuple[str, ...]


def look(
    client: Any, container: str, name: str, user: str, program: str, port: int, folders: Sequence[tuple[str, bool]]
) -> Seen:
    """Look at a running container as ``user``; ``folders`` are (path, whether it must be writable). Raises SandboxError."""
    import docker.errors

    rights = [f"{'w' if writes else 'r'}{path}" for path, writes in folders]
    try:
        id = client.api.exec_create(
            container, ["/bin/sh", "-c", _SCRIPT, "sh", program, f"{port:04X}", *rights], user=user
        )
        said = client.api.exec_start(id).decode(errors="replace")
        code = client.api.exec_inspect(id)["ExitCode"]
    except docker.errors.APIError as error:
        said, code = str(error.explanation or error), client.api.inspect_container(container)["State"]["ExitCode"]
        if code not in _NO_SHELL:  # else it has ended at once: it is kept by a shell itself
            raise SandboxError(f"Nothing can be run in the container {name!r}: {said}") from None
    if code in _NO_SHELL:
        raise SandboxError(f"The image of the container {name!r} has no /bin/sh ({said.strip()}). {SHELL}")
    if not said.endswith("seen\n"):
        raise SandboxError(
            f"Nothing can be run in the container {name!r}: exit code {code}, and it said {said.strip()!r}."
        )
    lines = [line.partition("=")[::2] for line in said.splitlines()]
    one = {key: value for key, value in lines if value}
    return Seen(
        one.get("program"),
        one.get("python"),
        "port" in one,
        tuple(value for key, value in lines if key == "unreadable"),
        tuple(value for key, value in lines if key == "unwritable"),
    )
