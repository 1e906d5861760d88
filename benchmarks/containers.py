"""What a container costs: made, a command in it, a turn; beside it plain `docker` and litellm's docker sandbox."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import (
    KEY,
    MODELS,
    Pair,
    Row,
    difference_ms,
    first,
    folder,
    interleaved,
    model_server,
    ms,
    peer,
    peer_python,
    print_table,
    prompt,
    ratio,
    row,
)

import hostler
from hostler import Harness, sandbox
from hostler.testing.fake_runtime import FAKE

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.containers import daemons
from tests.containers.images import AGENTS, FAKE_PROGRAM

_FAKE: Any = FAKE
_IN_IMAGE = {"program": ["python3", "-I", "-S", "-E", FAKE_PROGRAM]}
_EXEC = "import os, sys, time\ntimes = []\nfor _ in range(int(sys.argv[1])):\n"
_EXEC += "    start = time.perf_counter()\n    os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\n"
_EXEC += "    times.append(time.perf_counter() - start)\nprint(times)\n"


def _docker(*words: str) -> float:
    """Seconds that a plain command of the CLI takes."""
    begun = time.perf_counter()
    subprocess.run(["docker", *words], check=True, capture_output=True)
    return time.perf_counter() - begun


@contextlib.contextmanager
def _name() -> Iterator[str]:
    """Of a container that is removed in the end."""
    name = f"bench-{secrets.token_hex(6)}"
    try:
        yield name
    finally:
        subprocess.run(["docker", "rm", "-f", name], check=False, capture_output=True)


@contextlib.contextmanager
def _fake(models: str, at: str, name: str | None) -> Iterator[Any]:
    """A session of the fake program with its first turn behind it, in the container of this name, else in `local`."""
    options: dict[str, Any] = {"model": MODELS["claude_code"], "api_base": models, "api_key": KEY, "state_dir": at}
    if name:
        options["options"] = _IN_IMAGE
    box = sandbox.docker(AGENTS, name=name) if name else sandbox.local
    with hostler.agent_session(_FAKE, sandbox=box, **options) as opened:
        opened.run("begin")
        yield opened


def made(n: int) -> Row:
    def ours() -> float:
        with _name() as name:
            begun = time.perf_counter()
            sandbox.docker(AGENTS, name=name).prepare("full")
            return time.perf_counter() - begun

    def plain() -> float:
        with _name() as name:
            return _docker("run", "-d", "--network", "none", "--init", "--name", name, AGENTS, "sleep", "infinity")

    pairs = interleaved(n, ours, plain)
    return row("container made and started, minus `docker run`", pairs, difference_ms, ms, "ms", beside="docker run")


def begun(models: str, at: str, n: int) -> Row:
    """From nothing to the end of the first turn, in a container that runs."""
    with _name() as name:
        sandbox.docker(AGENTS, name=name).prepare("full")

        def taken(where: str | None) -> float:
            start = time.perf_counter()
            with _fake(models, at, where):
                return time.perf_counter() - start

        taken(name)
        pairs = interleaved(n, lambda: taken(name), lambda: taken(None))
    return row("first turn in a running container, minus in local", pairs, difference_ms, ms, "ms", beside="local")


def turn(models: str, at: str, n: int) -> Row:
    with _name() as name, _fake(models, at, name) as inside, _fake(models, at, None) as outside:

        def taken(opened: Any) -> float:
            start = time.perf_counter()
            opened.run("again")
            return time.perf_counter() - start

        pairs = interleaved(n, lambda: taken(inside), lambda: taken(outside))
    return row("turn 2+ in docker, minus in local", pairs, difference_ms, ms, "ms", beside="local", limit=20.0)


def executed(models: str, at: str, n: int) -> Row:
    """A command that the agent starts where it lives; beside it plain `docker exec`."""
    with _name() as name, _fake(models, at, name) as opened:
        opened.files.write("exec.py", _EXEC.encode())
        inside = json.loads(opened.run(json.dumps([{"shell": f"python3 -I -S exec.py {n}"}])).text)
        pairs: list[Pair] = [(taken, _docker("exec", name, "true")) for taken in inside]
    return row(
        "a command of the agent's in docker", pairs, lambda a, b: first(a, b) * 1000, ms, "ms", beside="docker exec"
    )


def beside_litellm(models: str, at: Path, n: int, gateway: str) -> Iterator[Row]:
    """Claude Code in a container each. litellm's endpoint is bound where a container reaches it, which it is not."""
    options: dict[str, Any] = {"model": MODELS["claude_code"], "api_base": models, "api_key": KEY}
    with _name() as name, peer("claude_code", models, at / "peer", image=AGENTS, gateway=gateway) as theirs:
        box = sandbox.docker(AGENTS, name=name)
        with hostler.agent_session(Harness.CLAUDE_CODE, sandbox=box, state_dir=str(at / "ours"), **options) as session:
            turns = iter(range(1, 1 << 30))

            def taken() -> float:
                start = time.perf_counter()
                result = session.run(prompt(next(turns)))
                assert result.error is None, result.error
                return time.perf_counter() - start

            taken()
            pairs = interleaved(n, taken, theirs.seconds)
    yield row("turn 2+ of claude_code in docker, beside litellm's", pairs, ratio, ms, "x", beside="litellm")


def rows(quick: bool) -> Iterator[Row]:
    if (missing := daemons.missing("docker")) is not None:
        print(f"docker is not measured: {missing}", file=sys.stderr)
        return
    with daemons.running("docker") as engine, folder() as at, model_server() as models:
        os.environ["DOCKER_HOST"] = engine.url
        state = str(at / "state")
        os.environ["HOSTLER_STATE_DIR"] = state
        yield made(3 if quick else 20)
        yield begun(models, state, 3 if quick else 20)
        yield executed(models, state, 20 if quick else 100)
        yield turn(models, state, 20 if quick else 200)
        if peer_python() is not None:
            with engine.client() as client:
                gateway = client.networks.get("bridge").attrs["IPAM"]["Config"][0]["Gateway"]
            with tempfile.TemporaryDirectory(prefix="hostler-bench-") as place:
                yield from beside_litellm(models, Path(place), 3 if quick else 20, gateway)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    print_table(list(rows(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
