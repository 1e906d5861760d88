"""Who is ended when, and that nothing is left: guards, sweeps, times to live."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from keeper_support import PROGRAM, PYTHON, Reader, Starter, below, eventually, hold, processes, program, run

import hostler
from hostler.keeper import KeeperAddress, KeeperError, KeeperGone, alive, destroy, read_spool, start, sweep
from hostler.keeper.holder import tree


async def grown(address: KeeperAddress) -> tuple[Reader, set[int]]:
    """A program with a tree of five kinds of process below it."""
    held = await hold(address)
    reader = Reader(held)
    await held.send("up", b"echo up")
    await reader.out(b"up")
    await held.open_turn()
    await held.send("tree", b"tree")
    await reader.out(b"grown")
    await eventually(lambda: len(below(address)) >= 6, 20)
    return reader, below(address)


def gone(pids: set[int]) -> bool:
    return not any(tree.started(pid) for pid in pids)


def test_killed_keeper_takes_everything_along(tmp_path: Path, keep: Starter, guard: str) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        _, pids = await grown(address)
        os.kill(address.pid, signal.SIGKILL)
        took = await eventually(lambda: gone(pids))
        assert took < 2
        assert sweep(address.mark) == 0

    run(work())


def test_killed_guardian_takes_everything_along(tmp_path: Path, keep: Starter, guard: str) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        reader, pids = await grown(address)
        (init,) = [int(pid) for pid in tree.read(f"/proc/{address.pid}/task/{address.pid}/children").split()]
        os.kill(init, signal.SIGKILL)
        assert (await reader.exit()).data == b"-9"
        await eventually(lambda: gone(pids | {address.pid}))

    run(work())


@pytest.mark.parametrize("how", ["end", "kill", "terminate"])
def test_end_leaves_nothing(tmp_path: Path, keep: Starter, guard: str, how: str) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        reader, pids = await grown(address)
        begin = time.monotonic()
        if how == "end":
            await reader.held.end()
        elif how == "kill":
            await reader.held.kill()
        else:
            os.kill(address.pid, signal.SIGTERM)
            await eventually(lambda: not alive(address))
        assert time.monotonic() - begin < 3
        assert gone(pids)
        assert not alive(address)
        assert not os.path.exists(address.socket)
        last = read_spool(address.dir, 0)[-1]
        assert (last.kind, last.data) == ("exit", b"-9" if how == "kill" else b"0")

    run(work())


def test_end_of_a_program_that_does_not_want_to(tmp_path: Path, keep: Starter, guard: str) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *a: print("TERM", flush=True))
print("up", flush=True)
while True: time.sleep(0.05)
"""

    async def work() -> None:
        held = await hold(await keep(program(tmp_path, code)))
        await Reader(held).out(b"up")
        begin = time.monotonic()
        await held.end(grace=0.3)
        assert 0.5 < time.monotonic() - begin < 3
        frames = read_spool(held.address.dir, 0)
        assert [f.data for f in frames if f.kind == "out"] == [b"up", b"TERM"]
        assert frames[-1].data == b"-9"

    run(work())


def test_sigterm_reaches_the_program(tmp_path: Path, keep: Starter, guard: str) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path, "import time; print('up'); time.sleep(60)"))
        held = await hold(address)
        await Reader(held).out(b"up")
        await held.end(grace=0.1)
        assert read_spool(address.dir, 0)[-1].data == b"-15"

    run(work())


def test_sweep_turn_spares_the_program(tmp_path: Path, keep: Starter, guard: str) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        held = await hold(address)
        reader = Reader(held)
        await held.send("before", b"tree")
        await reader.out(b"grown")
        await eventually(lambda: len(below(address)) >= 6, 20)
        await asyncio.sleep(0.1)
        before = below(address)
        await held.open_turn()
        await held.send("within", b"tree")
        await reader.out(b"grown")
        await eventually(lambda: len(below(address) - before) >= 4, 20)
        turn = below(address) - before
        begin = time.monotonic()
        await held.sweep_turn()
        assert time.monotonic() - begin < 2
        assert gone(turn)
        assert below(address) == before
        await held.send("after", b"echo alive")
        await reader.out(b"alive")

    run(work())


def test_sweep_turn_ends_what_lives_in_its_other_threads(tmp_path: Path, keep: Starter, guard: str) -> None:
    """A process whose first thread has ended looks like a zombie; what it starts is seen, too."""
    leave = {"x86_64": 60, "aarch64": 93}[os.uname().machine]  # the system call exit, of one thread
    headless = f"""
import ctypes, subprocess, sys, threading, time
def live():
    print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
    time.sleep(60)
threading.Thread(target=live).start()
ctypes.CDLL(None).syscall({leave}, 0)
"""
    code = f"""
import subprocess, sys
for line in sys.stdin.buffer:
    run = [sys.executable, "-I", "-S", "-c", {headless!r}]
    subprocess.Popen(run, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout.readline()
    print("started", flush=True)
"""

    async def work() -> None:
        address = await keep(program(tmp_path, code))
        held = await hold(address)
        await held.open_turn()
        await held.send("within", b"")
        await Reader(held).out(b"started")
        await eventually(lambda: len(below(address)) == 4)  # init, the program, and two of the turn
        await held.sweep_turn()
        assert len(below(address)) == 2

    run(work())


def test_sweep_turn_spares_what_a_wrapper_starts_late(tmp_path: Path, keep: Starter, guard: str) -> None:
    """The turn may be opened before a wrapper has started the program proper."""
    inner = "import sys\nfor line in sys.stdin.buffer: sys.stdout.write('inner\\n'); sys.stdout.flush()"
    code = (
        f"import subprocess, sys, time; time.sleep(0.3); subprocess.run([sys.executable, '-I', '-S', '-c', {inner!r}])"
    )

    async def work() -> None:
        held = await hold(await keep(program(tmp_path, code)))
        reader = Reader(held)
        await held.open_turn()
        await held.send("1", b"one")
        await reader.out(b"inner")
        await held.sweep_turn()
        await held.send("2", b"two")
        await reader.out(b"inner")

    run(work())


def test_ended_program_is_kept_for_its_host(tmp_path: Path, keep: Starter, guard: str) -> None:
    async def work() -> None:
        # Never attached yet: kept for the host that started it.
        address = await keep(program(tmp_path, "print('bye')"))
        await asyncio.sleep(0.15)
        held = await hold(address)
        assert held.hello.exited == 0
        reader = Reader(held)
        await reader.exit()
        await held.open_turn()
        await held.detach()
        # A turn is open: kept although nobody is there.
        await asyncio.sleep(0.1)
        held = await hold(address, epoch=2, holder="next")
        reader = Reader(held)
        exit = await reader.exit()
        await held.ack(exit.no)
        await held.detach()
        held = await hold(address, epoch=3, after=exit.no)
        await held.ack(exit.no, turn_done=True)
        assert await Reader(held).rest_or_gone() == []
        await eventually(lambda: not alive(address))

    run(work())


def test_ended_program_without_host_and_turn_is_not_kept(tmp_path: Path, keep: Starter, guard: str) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        held = await hold(address)
        await held.send("k", b"exit 3")
        await Reader(held).exit()
        assert alive(address)  # not yet acknowledged
        await held.detach()
        await eventually(lambda: not alive(address))
        assert read_spool(address.dir, 0)[-1].data == b"3"

    run(work())


@pytest.mark.parametrize("turn_open", [False, True])
def test_time_to_live(tmp_path: Path, keep: Starter, guard: str, turn_open: bool) -> None:
    async def work() -> None:
        ttl = {"park_ttl": 30.0, "orphan_ttl": 0.4} if turn_open else {"park_ttl": 0.4, "orphan_ttl": 30.0}
        address = await keep(program(tmp_path, **ttl))
        reader, pids = await grown(address)
        await reader.held.ack(0, turn_done=not turn_open)
        await asyncio.sleep(0.7)
        assert alive(address)  # it does not run while a host is there
        await reader.held.detach()
        await asyncio.sleep(0.2)
        assert alive(address)
        await eventually(lambda: not alive(address) and gone(pids), 3)
        with pytest.raises(KeeperGone):
            await hold(address, epoch=2)

    run(work())


def test_never_attached(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path, park_ttl=0.2))
        await eventually(lambda: not alive(address))

    run(work())


def test_closed_stdout_is_not_the_end_at_once(tmp_path: Path, keep: Starter, guard: str) -> None:
    code = """
import os, sys
print("last", flush=True)
os.close(1)
for line in sys.stdin.buffer: os.write(2, line)
"""

    async def work() -> None:
        held = await hold(await keep(program(tmp_path, code)))
        reader = Reader(held)
        await reader.out(b"last")
        await held.send("k", b"still here")
        await reader.until(lambda f: f.kind == "err" and b"still here" in f.data)
        await held.end()
        assert read_spool(held.address.dir, 0)[-1].data == b"0"

    run(work())


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_what_lives_on_without_stdin_or_stdout_is_ended(tmp_path: Path, keep: Starter, stream: str) -> None:
    word, close = 'print("last", flush=True)', f"os.close({('stdin', 'stdout').index(stream)})"
    steps = [close, word] if stream == "stdin" else [word, close]
    ready = ["import os, signal, time", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"]
    code = "\n".join([*ready, *steps, "time.sleep(60)"])

    async def work() -> None:
        reader = Reader(await hold(await keep(program(tmp_path, code))))
        await reader.out(b"last")
        await reader.held.send("k", b"anybody there?")
        assert (await reader.exit()).data == b"-9"
        assert f"closed its {stream}".encode() in b"".join(reader.kinds("err"))

    run(work())


def test_closed_stdin_is_not_the_end_at_once(tmp_path: Path, keep: Starter) -> None:
    code = "import os, time; os.close(0); print('closed', flush=True); time.sleep(0.3); print('done')"

    async def work() -> None:
        held = await hold(await keep(program(tmp_path, code)))
        reader = Reader(held)
        await reader.out(b"closed")
        for i in range(20):
            await held.send(f"{i}", b"x" * 50_000)
        await reader.out(b"done")
        assert (await reader.exit()).data == b"0"

    run(work())


def test_exit_is_seen_although_a_grandchild_holds_stdout(tmp_path: Path, keep: Starter, guard: str) -> None:
    code = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(30)"], start_new_session=True)
print("rest", end="")
"""

    async def work() -> None:
        reader = Reader(await hold(await keep(program(tmp_path, code))))
        assert (await reader.exit()).data == b"0"
        assert reader.kinds("out") == [b"rest"]

    run(work())


def test_host_that_is_interrupted_or_hung_up(tmp_path: Path, guard: str) -> None:
    """Signals to the whole group of the app, and its death, do not reach the keeper."""
    code = """
import asyncio, json, signal, sys, time
from hostler.keeper import KeeperSpec, start
spec = KeeperSpec(**json.load(sys.stdin))
print(json.dumps(asyncio.run(start(spec, None)).to_dict()), flush=True)
time.sleep(60)
"""
    from keeper_support import address_of

    async def work() -> None:
        spec = program(tmp_path)
        app = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        with app:
            assert app.stdin
            assert app.stdout
            app.stdin.write(json.dumps(spec.__dict__).encode())
            app.stdin.close()
            address = address_of((await asyncio.to_thread(app.stdout.readline)).decode())
            try:
                for number in (signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
                    os.killpg(app.pid, number)
                app.wait(5)
                for number in (signal.SIGINT, signal.SIGHUP):
                    os.kill(address.pid, number)
                held = await hold(address)
                await held.send("k", b"echo fine")
                await Reader(held).out(b"fine")
                assert os.getpgid(address.pid) != app.pid
                await held.end()
            finally:
                app.kill()
                destroy(address)
        assert not processes(address.mark)

    run(work())


def test_agent_in_a_pid_namespace_does_not_see_the_keeper(tmp_path: Path, keep: Starter, pidns: None) -> None:
    code = """
import json, os, signal
pids = sorted(int(n) for n in os.listdir("/proc") if n.isdigit())
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGUSR1):
    os.kill(1, number)
try:
    os.kill(-1, signal.SIGKILL)
except ProcessLookupError:
    pass
print(json.dumps([os.getpid(), os.getppid(), pids]))
"""

    async def work() -> None:
        address = await keep(program(tmp_path, code))
        reader = Reader(await hold(address))
        own, parent, pids = json.loads(await reader.next_out())
        assert parent == 1
        assert pids == [1, own]
        assert (await reader.exit()).data == b"0"
        assert alive(address)

    run(work())


UNPRIVILEGED = """
import asyncio, json, os, sys, time
from hostler.keeper import KeeperSpec, alive, attach, destroy, start
from hostler.keeper.holder import tree
async def main():
    spec = KeeperSpec(**json.load(sys.stdin))
    address = await start(spec, None)
    try:
        held = await attach(address, epoch=1, holder="h", after=0, upstream=None)
        await held.send("k", b"tree")
        async for batch in held.batches():
            if any(f.data == b"grown" for f in batch):
                break
        pids = tree.below(address.pid)
        readable = os.access(f"/proc/{address.pid}/mem", os.R_OK)
        os.kill(address.pid, 9)
        end = time.monotonic() + 5
        while any(tree.started(p) for p in pids) and time.monotonic() < end:
            await asyncio.sleep(0.005)
        left = [p for p in pids if tree.started(p)]
        print(json.dumps({"guard": address.guard, "pids": len(pids), "left": left, "uid": os.getuid(), "mem": readable}))
        await held.detach()
    finally:
        destroy(address)
asyncio.run(main())
"""


def usable(python: str, options: dict[str, Any]) -> bool:
    try:
        return subprocess.run([python, "-c", "import hostler.keeper"], **options).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_without_privilege(tmp_path: Path, guard: str, short_runtime_dir: Path) -> None:
    nobody = 65534
    other: dict[str, Any] = {
        "user": nobody,
        "group": nobody,
        "extra_groups": [],
        "cwd": "/",
        "capture_output": True,
        "env": {"PYTHONPATH": str(Path(hostler.__file__).parent.parent), "HOSTLER_GUARD": guard}
        | {"XDG_RUNTIME_DIR": str(short_runtime_dir)},
    }
    python = next((path for path in (sys.executable, "/usr/bin/python3") if usable(path, other)), None)
    if python is None:
        pytest.skip("another user cannot read this installation")
    os.chown(short_runtime_dir, nobody, nobody)
    spec = program(short_runtime_dir, cwd="/", argv=[python, *PYTHON[1:], PROGRAM])
    done = subprocess.run([python, "-c", UNPRIVILEGED], input=json.dumps(spec.__dict__), text=True, timeout=30, **other)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["uid"] == nobody
    assert result["guard"] in (guard, "guardian")
    assert result["pids"] >= 6
    assert result["left"] == []
    assert result["mem"] is False


START = """
import asyncio, json, sys
from hostler.keeper import KeeperSpec, destroy, start
address = asyncio.run(start(KeeperSpec(**json.load(sys.stdin)), None))
print(address.guard)
destroy(address)
"""


def test_guardian_where_there_are_no_namespaces(tmp_path: Path, pidns: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOSTLER_GUARD")
    setpriv = shutil.which("setpriv")
    if setpriv is None or os.geteuid() != 0:
        pytest.skip("needs root and setpriv to give up a capability")
    guards = []
    for drop in ([], [setpriv, "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]):
        done = subprocess.run(
            [*drop, sys.executable, "-c", START],
            input=json.dumps(program(tmp_path).__dict__),
            text=True,
            capture_output=True,
            timeout=20,
        )
        assert done.returncode == 0, done.stderr
        guards.append(done.stdout.strip())
    assert guards == ["pidns", "guardian"]
    assert "no pid namespace" in (tmp_path / "keeper" / "keeper.log").read_text()


def test_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        spec = program(tmp_path)
        starting = asyncio.create_task(start(spec, None))
        await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.sleep(0.3)
        await eventually(lambda: not processes(spec.mark))

    run(work())


def test_end_while_somebody_reads(tmp_path: Path, keep: Starter) -> None:
    """The reader gets all there is and then a quiet end."""

    async def work() -> None:
        for action in ("end", "kill", "detach"):
            address = await keep(program(tmp_path))
            held = await hold(address)
            await held.send("k", b"lines 20000")
            reader = Reader(held)
            await reader.until(lambda f: f.kind == "out")
            reading = asyncio.create_task(reader.rest())
            await asyncio.sleep(0)
            await getattr(held, action)()
            frames = await asyncio.wait_for(reading, 5)
            assert [f.no for f in frames] == list(range(1, len(frames) + 1))
            with pytest.raises(KeeperError):
                await held.send("k2", b"late")

    run(work())


def test_sweep_finds_by_mark(tmp_path: Path) -> None:
    mark = f"sweep-{os.getpid()}-{time.monotonic_ns()}"
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    with (
        subprocess.Popen([*PYTHON, code], env={"HOSTLER_RUN": mark}, start_new_session=True) as marked,
        subprocess.Popen([*PYTHON, code], env={"HOSTLER_RUN": mark + "-other"}) as other,
    ):
        try:
            assert sweep(mark) == 1
            assert marked.wait(2) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            other.kill()
    assert sweep(mark) == 0
