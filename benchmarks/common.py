"""What the benchmarks share: pairs of measurements, their statistics, the table, and the processes they run against."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from hostler import Harness, HarnessInstallFailed, sandbox
from hostler.runtimes import runtime_for
from hostler.types.runtime import Frame, Launch, LaunchContext, Prompt, Runtime

KEY = "scripted-key"
MODELS = {"claude_code": "claude-sonnet-4-5", "codex": "gpt-5", "opencode": "gpt-5"}
HARNESSES = {"claude_code": Harness.CLAUDE_CODE, "codex": Harness.CODEX, "opencode": Harness.OPENCODE}
_RESAMPLES = 2000
TIMEOUT = 120.0

# ---- statistics -----------------------------------------------------------------------------------------------------

Pair = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """One line of the table. ``value`` with its 95 % interval is what the limit speaks of; ``ours`` and ``beside`` are
    medians of the two sides. ``sense`` says whether the value should be at most or at least the limit."""

    name: str
    n: int
    ours: str
    beside: str
    value: float
    low: float
    high: float
    unit: str
    limit: float | None = None
    sense: Literal["at most", "at least"] = "at most"

    @property
    def met(self) -> bool | None:
        """Whether the limit lies within or behind the interval; None when there is no limit."""
        if self.limit is None:
            return None
        return self.low < self.limit if self.sense == "at most" else self.high > self.limit


def row(
    name: str,
    pairs: Sequence[Pair],
    value: Callable[[float, float], float],
    show: Callable[[float], str],
    unit: str,
    *,
    beside: str = "",
    limit: float | None = None,
    sense: Literal["at most", "at least"] = "at most",
) -> Row:
    """The median of ``value`` over the pairs, with a bootstrap interval that keeps the pairs together."""
    values = [value(a, b) for a, b in pairs]
    low, high = interval(values)
    ours, theirs = (show(statistics.median(side)) for side in zip(*pairs, strict=True))
    beside = f"{beside} {theirs}" if beside else ""
    return Row(name, len(pairs), ours, beside, statistics.median(values), low, high, unit, limit, sense)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES) - 1]


def difference_ms(a: float, b: float) -> float:
    return (a - b) * 1000


def ratio(a: float, b: float) -> float:
    return b / a


def first(a: float, b: float) -> float:
    return a


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s"


def interleaved(n: int, ours: Callable[[], float], beside: Callable[[], float]) -> list[Pair]:
    """``n`` pairs, measured one right after the other; which goes first changes each time."""
    pairs = []
    for index in range(n):
        if index % 2:
            b = beside()
            pairs.append((ours(), b))
        else:
            pairs.append((ours(), beside()))
    return pairs


def print_table(rows: Sequence[Row]) -> None:
    table = Table(
        title=f"hostler benchmarks; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, fsync {_fsync()}"
    )
    for title in ("what", "n", "hostler", "beside", "value", "95 %", "limit", "met"):
        table.add_column(title, justify="left" if title in ("what", "beside") else "right", no_wrap=title != "what")
    for r in rows:
        limit = "" if r.limit is None else f"{r.sense} {r.limit:g} {r.unit}"
        met = {True: "yes", False: "NO", None: ""}[r.met]
        span = f"{_number(r.low)} to {_number(r.high)}"
        table.add_row(r.name, str(r.n), r.ours, r.beside, f"{_number(r.value)} {r.unit}", span, limit.strip(), met)
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def _fsync() -> str:
    """How long the disk takes for a small durable write: each turn waits for some."""
    taken = []
    with tempfile.TemporaryFile() as file:
        for _ in range(15):
            file.write(b"x" * 4096)
            file.flush()
            start = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - start)
    return ms(statistics.median(taken))


# ---- processes ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder of its own, and an environment without settings of this machine."""
    kept = dict(os.environ)
    for name in kept:
        if name.startswith(("ANTHROPIC_", "OPENAI_", "LITELLM_", "CLAUDE", "CODEX_")):
            del os.environ[name]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended on the way out
    path = Path(tempfile.mkdtemp(prefix="hostler-bench-"))
    try:
        yield path
    finally:
        os.environ.clear()
        os.environ.update(kept)
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def model_server() -> Iterator[str]:
    """The URL of a scripted model in a process of its own: it shares no interpreter with what is measured."""
    argv = [sys.executable, "-m", "hostler.testing.model_server", "--key", KEY]
    with process(argv, dict(os.environ)) as lines:
        yield lines.read().split()[1].decode()


class Lines:
    """A process that speaks in lines, with a deadline for each."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._half = b""
        self._ready: list[bytes] = []

    def write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def read(self) -> bytes:
        """The next line, without its newline."""
        assert self._process.stdout is not None
        while not self._ready:
            if not select.select([self._process.stdout], [], [], TIMEOUT)[0]:
                raise TimeoutError(f"{self._process.args!r} said nothing for {TIMEOUT:g} s")
            data = os.read(self._process.stdout.fileno(), 1 << 18)
            if not data:
                raise EOFError(f"{self._process.args!r} ended with code {self._process.wait(10)}")
            *self._ready, self._half = (self._half + data).split(b"\n")
            self._ready.reverse()
        return self._ready.pop()


@contextlib.contextmanager
def process(argv: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> Iterator[Lines]:
    """A process that is ended with all that it has started."""
    running = subprocess.Popen(
        argv,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield Lines(running)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGTERM)
        try:
            running.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait(5)
        for pipe in (running.stdin, running.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


LAST = {
    "claude_code": b'"type":"result"',
    "codex": b'"method":"turn/completed"',
    "opencode": b'"stopReason"',
}  # what the line that ends a turn holds


class ByHand:
    """A program's live protocol over pipes, with the arguments that hostler gives it, straight to the model."""

    def __init__(self, runtime: Runtime, lines: Lines, context: LaunchContext) -> None:
        self._codec, self._lines, self._last = runtime.codec, lines, LAST[runtime.name]
        self._turns = 0
        self._frames = 0
        begun = self._codec.start(context)
        self._state = begun.state
        for send in begun.sends:
            lines.write(send.data)

    def warm_up(self) -> None:
        """The first turn, in which each line is answered as it comes: the handshake is in it."""
        self._say()
        while not self._read_folded():
            pass

    def turn(self) -> float:
        """Seconds from the prompt to the program's word that the turn is over; nothing is parsed meanwhile."""
        taken, lines = time.perf_counter(), []
        self._say()
        while not lines or self._last not in lines[-1]:
            lines.append(self._lines.read())
        taken = time.perf_counter() - taken
        for line in lines:
            self._fold(line)
        return taken

    def _say(self) -> None:
        self._turns += 1
        folded = self._codec.encode(self._state, Prompt(f"turn_{self._turns}", prompt(self._turns)))
        self._state = folded.state
        for send in folded.sends:
            self._lines.write(send.data)

    def _read_folded(self) -> bool:
        line = self._lines.read()
        self._fold(line)
        return self._last in line

    def _fold(self, line: bytes) -> None:
        self._frames += 1
        folded = self._codec.fold(self._state, Frame(self._frames, "out", line))
        self._state = folded.state
        for send in folded.sends:
            self._lines.write(send.data)


def is_installed(name: str) -> bool:
    try:
        runtime_for(HARNESSES[name]).find({}, shutil.which)
    except HarnessInstallFailed:
        return False
    return True


def prompt(number: int) -> str:
    """A short one; the scripted model answers it with one line."""
    return f"This is message {number}."


def places_of(runtime: Runtime, at: Path, model_url: str) -> tuple[LaunchContext, Launch, dict[str, str]]:
    """All that the program needs to be started below ``at``, with its files written."""
    places = {part: str(at / part) for part in ("home", "tmp", "work", "files")}
    for place in places.values():
        os.makedirs(place)
    box = sandbox.local(places["work"])
    context = LaunchContext(
        program=runtime.find({}, box.which),
        home=places["home"],
        tmp=places["tmp"],
        workdir=places["work"],
        files_dir=places["files"],
        model=MODELS[runtime.name],
        model_url=model_url,
        token=KEY,
        new_id=str(uuid.uuid4()),
    )
    plan = runtime.launch(context)
    for file, text in plan.files.items():
        os.makedirs(os.path.dirname(file), exist_ok=True)
        Path(file).write_text(text)
    return context, plan, {**box.environment(home=places["home"], tmp=places["tmp"]), **plan.env}


@contextlib.contextmanager
def by_hand(name: str, models: str, at: Path) -> Iterator[ByHand]:
    """The program, ready for its second turn."""
    runtime = runtime_for(HARNESSES[name])
    context, plan, env = places_of(runtime, at, models)
    with process(plan.argv, env, context.workdir) as lines:
        hand = ByHand(runtime, lines, context)
        hand.warm_up()
        yield hand


# ---- the peer -------------------------------------------------------------------------------------------------------


def peer_python() -> str | None:
    """The interpreter that has litellm: of ``HOSTLER_BENCH_PEER``, or of ``.venv-peer`` beside this folder."""
    venv = os.environ.get("HOSTLER_BENCH_PEER") or Path(__file__).parent.parent / ".venv-peer"
    path = Path(venv, "bin", "python")
    return str(path) if path.exists() else None


def peer_environment(name: str, at: Path, program: str | None = None) -> dict[str, str]:
    """In which litellm finds the same program (or ``program`` in its place), and a home that is nobody's."""
    for place in (at / "bin", at / "home"):
        place.mkdir(parents=True, exist_ok=True)
    command = {"claude_code": "claude", "codex": "codex", "opencode": "opencode"}[name]
    (at / "bin" / command).symlink_to(program or runtime_for(Harness(name)).find({}, shutil.which)[0])
    return {
        **os.environ,
        "PATH": f"{at / 'bin'}:{os.environ['PATH']}",
        "HOME": str(at / "home"),
        "TMPDIR": str(at),
        "IS_SANDBOX": "1",  # else root is refused
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is asked for on the network
    }


class Peer:
    """litellm's session, in a process of its own."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._turns = 0

    def turn(self) -> dict[str, Any]:
        """``seconds`` from the call to its result, ``spread`` between the first and the last text, ``texts``."""
        self._turns += 1
        self._lines.write(json.dumps({"prompt": prompt(self._turns)}).encode())
        said: dict[str, Any] = json.loads(self._lines.read())
        if said["stop"] != "done":
            raise RuntimeError(f"litellm's turn failed: {said}")
        return said

    def seconds(self) -> float:
        return float(self.turn()["seconds"])


@contextlib.contextmanager
def peer(
    name: str,
    models: str,
    at: Path,
    *,
    program: str | None = None,
    workdir: Path | None = None,
    image: str | None = None,
    gateway: str = "",
) -> Iterator[Peer]:
    """litellm's session with the same program (or with ``program`` in its place), ready for its second turn; in a container
    of ``image``, which reaches this machine at ``gateway``, when one is given."""
    python = peer_python()
    assert python is not None
    work = workdir or at / "work"
    work.mkdir(parents=True, exist_ok=True)
    env = peer_environment(name, at, program)
    job = {"harness": name, "workdir": str(work), "model": f"litellm_proxy/{MODELS[name]}", "base": models, "key": KEY}
    job |= {"image": image, "gateway": gateway}
    with process([python, str(Path(__file__).with_name("peer.py")), json.dumps(job)], env) as lines:
        session = Peer(lines)
        session.turn()
        yield session
