"""What a container has inside: the program, Python, the rights to the session's folders, the model's address."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...types.errors import SandboxError
from .bridge.engine import Engine, EngineError
from .container import SHELL

_NO_SHELL = (126, 127)
_WAIT = 60.0
# One look for everything: each takes the engine some 50 ms.
_SCRIPT = """
program=$1 port=$2 files=$3; shift 3
found=
case $program in /*) [ -f "$program" ] && [ -x "$program" ] && found=$program ;; esac
[ -n "$found" ] || found=$(command -v "${program##*/}") || found=
for name in python3 python; do
  if path=$(command -v "$name"); then echo "python=$path"; break; fi
done
case ${program##*/} in python*) [ -n "$found" ] || found=$path ;; esac
echo "program=$found"
if grep -qi ":$port " /proc/net/tcp 2> /dev/null; then echo port=1; fi
while [ "$files" -gt 0 ]; do
  [ -e "$1" ] || echo "lacking=$1"
  shift; files=$((files - 1))
done
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
    container's network. ``lacking`` are files, ``unreadable`` and ``unwritable`` folders."""

    program: str | None
    python: str | None
    listening: bool
    lacking: tuple[str, ...]
    unreadable: tuple[str, ...]
    unwritable: tuple[str, ...]


def look(
    socket: str,
    container: str,
    name: str,
    user: str,
    *,
    program: str,
    files: Sequence[str],
    port: int,
    folders: Sequence[tuple[str, bool]],
) -> Seen:
    """Look at a running container as ``user``: for a program and files that must be there, for a port, and for the rights to
    ``folders``, (path, whether it must be writable). Raises SandboxError."""
    rights = [f"{'w' if writes else 'r'}{path}" for path, writes in folders]
    argv = ["/bin/sh", "-c", _SCRIPT, "sh", program, f"{port:04X}", str(len(files)), *files, *rights]
    engine = Engine(socket)
    try:
        code, said = _run(engine, container, argv, user)
    except EngineError as error:
        code, said = _ended(engine, container), str(error)
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

    def all_of(key: str) -> tuple[str, ...]:
        return tuple(value for found, value in lines if found == key)

    lacking, unreadable, unwritable = map(all_of, ("lacking", "unreadable", "unwritable"))
    return Seen(one.get("program"), one.get("python"), "port" in one, lacking, unreadable, unwritable)


def _run(engine: Engine, container: str, argv: list[str], user: str) -> tuple[int | None, str]:
    """Its exit code and all that it has said. Raises EngineError. Not the SDK: that loses what comes with the header."""
    id, stream = engine.start(container, argv, {}, user, "/")
    end = time.monotonic() + _WAIT
    said = b""
    waiting = select.poll()  # not select(): the app may have more than 1,024 open files
    waiting.register(stream.socket, select.POLLIN)
    with stream.socket:
        found: list[tuple[int, bytes]] | None = stream.parsed()
        while found is not None:
            said += b"".join(data for _, data in found)
            if not waiting.poll(1000 * max(0.0, end - time.monotonic())):
                raise EngineError(0, f"a look at it took more than {_WAIT:g} s")
            found = stream.read()
    return engine.call("GET", f"/exec/{id}/json")["ExitCode"], said.decode(errors="replace")


def _ended(engine: Engine, container: str) -> int | None:
    """The exit code of a container that has ended."""
    try:
        state = engine.call("GET", f"/containers/{container}/json")["State"]
    except EngineError:
        return None
    return None if state["Running"] else int(state["ExitCode"])
