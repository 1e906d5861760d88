"""What goes in and out: frames, lines, replay, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from keeper_support import PYTHON, Reader, Starter, address_of, eventually, hold, program, run

from hostler.keeper import (
    KeeperAddress,
    KeeperError,
    KeeperGone,
    KeeperRefused,
    KeeperReplaced,
    ProgramNotStarted,
    alive,
    read_spool,
    start,
)
from hostler.types.runtime import Send


def test_round_trip(tmp_path: Path, keep: Starter, guard: str) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        assert address.guard == guard
        assert alive(address)
        held = await hold(address)
        assert (held.hello.first, held.hello.next, held.hello.exited) == (1, 1, None)
        reader = Reader(held)
        await held.send("k1", b"echo hello")
        await reader.out(b"hello")
        await held.send("k2", b"env")
        env = json.loads(await reader.next_out())
        assert env["HOSTLER_RUN"] == address.mark
        assert env["COLOUR"] == "green"
        assert set(env) <= {"PATH", "COLOUR", "HOSTLER_RUN", "LC_CTYPE"}
        await held.send("k3", b"fds")
        assert json.loads(await reader.next_out()) == [0, 1, 2]
        await held.send("k4", b"exit 7")
        assert (await reader.exit()).data == b"7"
        assert [f.no for f in reader.frames] == list(range(1, len(reader.frames) + 1))
        assert [(f.key, f.data) for f in reader.frames if f.kind == "in"][:2] == [("k1", b"echo hello"), ("k2", b"env")]
        await held.ack(reader.frames[-1].no)
        await reader.rest()
        await eventually(lambda: not alive(address))
        assert not os.path.exists(address.socket)

    run(work())


def test_repeated_key_is_delivered_once(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        held = await hold(address)
        for _ in range(3):
            await held.send("same", b"echo once")
        await held.send("other", b"echo end")
        await Reader(held).out(b"end")
        await held.detach()
        held = await hold(address)
        await held.send("same", b"echo once")
        await held.send("third", b"echo really the end")
        reader = Reader(held)
        await reader.out(b"really the end")
        assert reader.kinds("out") == [b"once", b"end", b"really the end"]
        with pytest.raises(ValueError, match="newline"):
            await held.send("bad", b"a\nb")

    run(work())


def test_several_inputs_at_once(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        held = await hold(await keep(program(tmp_path)))
        big = b"x" * 300_000  # more than a socket takes at once
        await held.send_all([])
        await held.send_all([Send("1", b"echo one"), Send("2", b"echo " + big), Send("1", b"echo again")])
        await held.send_all([Send("3", b"echo three")])
        reader = Reader(held)
        await reader.out(b"three")
        assert reader.kinds("out") == [b"one", big, b"three"]

    run(work())


def test_lines_end_at_newline_bytes_only(tmp_path: Path, keep: Starter) -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\rg\x00h\x1ci".encode()
    code = f"""
import os, sys
for byte in {text!r} + b"\\n\\n" + {text!r}: os.write(1, bytes([byte]))
"""

    async def work() -> None:
        reader = Reader(await hold(await keep(program(tmp_path, code))))
        await reader.exit()
        assert reader.kinds("out") == [text, b"", text]  # the last one without a newline

    run(work())


def test_long_lines(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        held = await hold(address)
        reader = Reader(held)
        await held.send("1", b"long 20000000")
        await held.send("2", b"echo short")
        await held.send("3", b"long 1048576")
        await held.send("4", b"echo end")
        await reader.out(b"end")
        assert [len(data) for data in reader.kinds("out")] == [20_000_000, 5, 1 << 20, 3]
        big = next(f for f in reader.frames if len(f.data) == 20_000_000)
        await held.detach()
        again = await hold(address, after=big.no)
        other = Reader(again)
        await other.out(b"end")
        assert other.frames == reader.frames[reader.frames.index(big) + 1 :]
        await again.detach()
        small = await hold(address, line_limit=1 << 20)
        with pytest.raises(KeeperError, match="1048576"):
            await Reader(small).out(b"end")

    run(work())


def test_stderr_between_the_parts_of_a_line(tmp_path: Path, keep: Starter) -> None:
    code = """
import os
def write(fd, data):
    while data: data = data[os.write(fd, data):]
write(1, b"a" * 3_000_000); write(2, b"e" * 300_000); write(1, b"b" * 3_000_000 + b"\\n")
"""

    async def work() -> None:
        reader = Reader(await hold(await keep(program(tmp_path, code))))
        await reader.exit()
        assert reader.kinds("out") == [b"a" * 3_000_000 + b"b" * 3_000_000]
        assert b"".join(reader.kinds("err")) == b"e" * 300_000

    run(work())


def test_replay_from_every_number(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        held = await hold(address)
        await held.send("k", b"lines 40")
        reader = Reader(held)
        await reader.out(b"end")
        await held.detach()
        for after in range(len(reader.frames)):
            held = await hold(address, after=after)
            again = Reader(held)
            await again.out(b"end")
            assert again.frames == reader.frames[after:]
            await held.detach()

    run(work())


CLIENT = """
import asyncio, json, sys
from hostler.keeper import KeeperAddress, attach
async def main():
    address = KeeperAddress.from_dict(json.loads(sys.stdin.readline()))
    held = await attach(address, epoch=1, holder="first", after=0, upstream=None)
    await held.open_turn()
    await held.send("k", b"lines 200000")
    async for batch in held.batches():
        for frame in batch:
            if frame.kind == "out":
                print(frame.no, frame.data.decode(), flush=True)
asyncio.run(main())
"""


def test_host_killed_in_mid_stream(tmp_path: Path, keep: Starter) -> None:
    """A second process sees exactly what the first one did not."""

    async def work() -> None:
        address = await keep(program(tmp_path))
        client = subprocess.Popen([sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with client:
            assert client.stdin
            assert client.stdout
            client.stdin.write(json.dumps(address.to_dict()).encode() + b"\n")
            client.stdin.flush()
            seen = [await asyncio.to_thread(client.stdout.readline) for _ in range(500)]
            client.kill()
        last, value = (int(word) for word in seen[-1].split())
        held = await hold(address, epoch=2, after=last, holder="second")
        reader = Reader(held)
        await reader.out(b"end")
        assert reader.kinds("out")[:-1] == [b"%d" % i for i in range(value + 1, 200_000)]

    run(work())


def test_half_a_frame_of_a_dead_host_never_reaches_the_program(tmp_path: Path, keep: Starter) -> None:
    from hostler.keeper.holder import frames

    async def work() -> None:
        address = await keep(program(tmp_path))
        held = await hold(address)
        half = frames.pack(frames.SEND, frames.pack_input("half", b"echo half"))[:-3]
        held._writer.write(half)
        await held.detach()
        held = await hold(address, epoch=2)
        await held.send("whole", b"echo whole")
        reader = Reader(held)
        await reader.out(b"whole")
        assert reader.kinds("out") == [b"whole"]
        assert reader.kinds("in") == [b"echo whole"]

    run(work())


def test_epochs(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        old = await hold(address, epoch=3, holder="a")
        with pytest.raises(KeeperRefused, match="epoch 3") as refused:
            await hold(address, epoch=2, holder="b")
        assert refused.value.reason == "stale"
        with pytest.raises(KeeperRefused):
            await hold(address, epoch=3, holder="b")
        new = await hold(address, epoch=4, holder="b")
        with pytest.raises(KeeperReplaced):
            await Reader(old).rest()
        with pytest.raises(KeeperReplaced):
            await old.send("late", b"echo late")
        for action in (old.sweep_turn, old.end, old.kill):
            with pytest.raises(KeeperReplaced):
                await action()
        await new.send("k", b"echo fine")
        reader = Reader(new)
        await reader.out(b"fine")
        assert reader.kinds("out") == [b"fine"]
        again = await hold(address, epoch=4, holder="b", after=reader.frames[-1].no)
        with pytest.raises(KeeperReplaced):
            await reader.rest()
        await again.send("k2", b"echo still")
        await Reader(again).out(b"still")

    run(work())


def test_six_racers(tmp_path: Path, keep: Starter) -> None:
    async def race(address: KeeperAddress, epoch: int, delay: float) -> str:
        await asyncio.sleep(delay)
        try:
            held = await hold(address, epoch=epoch, holder=f"racer {epoch}")
            await held.send(f"{epoch}", b"echo %d" % epoch)
            await Reader(held).rest()
        except KeeperRefused as refused:
            return refused.reason
        except KeeperReplaced:
            return "replaced"
        return "?"

    async def work() -> None:
        address = await keep(program(tmp_path))
        dice = random.Random(5)
        for start_epoch in (1, 11, 21):
            epochs = dice.sample(range(start_epoch, start_epoch + 6), 6)
            racers = [asyncio.create_task(race(address, epoch, dice.random() / 100)) for epoch in epochs]
            winner = racers[epochs.index(max(epochs))]
            await asyncio.wait(set(racers) - {winner})
            assert not winner.done()
            assert {r.result() for r in racers if r is not winner} <= {"stale", "replaced"}
            final = await hold(address, epoch=start_epoch + 6, holder="final")
            assert await winner == "replaced"
            await final.detach()

    run(work())


def test_refusals(tmp_path: Path, keep: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        for token in ("", "0" * 64, address.token[:-1], address.token + "0"):
            with pytest.raises(KeeperRefused) as refused:
                await hold(replace(address, token=token))
            assert refused.value.reason == "token"
            assert address.token not in str(refused.value)
        with pytest.raises(KeeperRefused, match="to 0 only") as refused:
            await hold(address, after=5)
        assert refused.value.reason == "gap"
        with monkeypatch.context() as patch:
            patch.setattr("hostler.keeper.holder.frames.PROTOCOL", 99)
            with pytest.raises(KeeperRefused, match="protocol 1") as refused:
                await hold(address)
        assert refused.value.reason == "protocol"
        held = await hold(address)
        await held.send("k", b"echo fine")
        await Reader(held).out(b"fine")

    run(work())


def test_strangers_do_not_disturb(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        held = await hold(address)
        reader = Reader(held)
        with contextlib.ExitStack() as stack:
            strangers = []
            for i in range(100):
                strangers.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
                strangers[-1].settimeout(6)
                await asyncio.to_thread(strangers[-1].connect, address.socket)
                with contextlib.suppress(OSError):
                    strangers[-1].send([b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 40, os.urandom(50)][i % 4])
            await held.send("k", b"echo fine")
            await reader.out(b"fine")
            for stranger in strangers:  # who says nothing is shown out
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.to_thread(stranger.recv, 100) == b""
        await held.send("k2", b"echo still")
        await reader.out(b"still")

    run(work())


def test_token_is_nowhere_to_be_read(tmp_path: Path, keep: Starter, guard: str) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        held = await hold(address)
        reader = Reader(held)
        await held.send("k", b"echo up")
        await reader.out(b"up")
        from keeper_support import below

        for pid in {address.pid, *below(address)}:
            for name in ("cmdline", "environ"):
                assert address.token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
        for path in Path(address.dir).rglob("*"):
            assert path.is_dir() or address.token.encode() not in path.read_bytes()
            assert path.stat().st_mode & 0o077 == 0 or path.name == "spool"
        assert os.stat(address.socket).st_mode & 0o777 == 0o600
        assert os.stat(os.path.dirname(address.socket)).st_mode & 0o777 == 0o700
        assert address.token not in repr(address)

    run(work())


def test_address_survives_json(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        assert address_of(json.dumps(address.to_dict())) == address
        assert not alive(replace(address, start="elsewhere:1"))

    run(work())


@pytest.mark.parametrize(
    ("argv", "changes", "match"),
    [
        (["/no/such/program"], {}, "No such file"),
        (["no-such-program"], {}, "No such file"),
        (["{dir}/plain"], {}, "Permission denied"),
        (["{dir}/garbage"], {}, "Exec format error"),
        (["/bin/true", *(["x" * 100_000] * 60)], {}, "Argument list too long"),
        (["/bin/true"], {"cwd": "/no/such/folder"}, "/no/such/folder"),
        (["/bin/true", "a\0b"], {}, "Invalid argument"),
    ],
)
def test_program_cannot_be_started(
    tmp_path: Path, short_runtime_dir: Path, argv: list[str], changes: dict[str, str], match: str, guard: str
) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "garbage").write_bytes(b"\x01\x02\x03")
    (tmp_path / "garbage").chmod(0o755)
    spec = program(tmp_path, argv=[part.replace("{dir}", str(tmp_path)) for part in argv], **changes)
    with pytest.raises(ProgramNotStarted, match=match):
        run(start(spec, None))
    from keeper_support import processes

    assert not processes(spec.mark)
    assert not list(short_runtime_dir.glob("hostler/*"))


def test_arguments_and_environment_are_bytes(tmp_path: Path, keep: Starter) -> None:
    odd = os.fsdecode(b"\xff\xfe and \xe2\x82\xac")
    code = "import os, sys; print(repr((os.fsencode(sys.argv[1]), os.environb[b'ODD'])))"

    async def work() -> None:
        spec = program(tmp_path, argv=[*PYTHON, code, odd], env={"ODD": odd})
        reader = Reader(await hold(await keep(spec)))
        assert await reader.next_out() == repr((b"\xff\xfe and \xe2\x82\xac",) * 2).encode()

    run(work())


def test_dead_keeper_leaves_its_log(tmp_path: Path, keep: Starter, guard: str) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path))
        held = await hold(address)
        await held.send("k", b"lines 1000")
        reader = Reader(held)
        await reader.out(b"end")
        await held.send("k2", b"long 3000000")
        await reader.until(lambda f: len(f.data) == 3_000_000)
        os.kill(address.pid, signal.SIGKILL)
        with pytest.raises(KeeperGone):
            await reader.rest()
        await eventually(lambda: not alive(address))
        with pytest.raises(KeeperGone):
            await hold(address, epoch=2)
        with pytest.raises(KeeperGone):
            await held.send("k3", b"echo late")
        assert read_spool(address.dir, 0) == reader.frames
        assert read_spool(address.dir, 500) == reader.frames[500:]
        # A torn last frame is left out, wherever it is torn.
        segment = max(Path(address.dir, "spool").glob("*.seg"), key=lambda path: path.name)
        whole = segment.read_bytes()
        for cut in (1, 12, 100, 1_000_000, 2_999_999):
            segment.write_bytes(whole[:-cut])
            assert read_spool(address.dir, 0) == reader.frames[:-1]

    run(work())


def test_runtime_dir_of_somebody_else_is_refused(
    tmp_path: Path, short_runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hostler.keeper.launch import _private, runtime_dir

    (tmp_path / "hostler").mkdir(mode=0o755)
    os.chmod(tmp_path / "hostler", 0o755)
    with pytest.raises(KeeperError, match="drwxr-xr-x"):
        _private(str(tmp_path / "hostler"))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(KeeperError):
        _private(str(tmp_path / "link"))
    fallback = f"/tmp/hostler-{os.geteuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_dir() == fallback
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    assert runtime_dir() == fallback
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_runtime_dir))
    assert runtime_dir() == str(short_runtime_dir / "hostler")


def test_a_wait_that_is_cancelled_loses_nothing(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        held = await hold(await keep(program(tmp_path)))
        batches = held.batches()
        await held.send("k", b"lines 3000")
        numbers: list[int] = []
        while len(numbers) < 3002:
            try:
                async with asyncio.timeout(0.0005):
                    numbers += [frame.no for frame in await anext(batches)]
            except TimeoutError:
                pass
        assert numbers == list(range(1, 3003))

    run(work())


def test_sockets_of_killed_keepers_are_removed(tmp_path: Path, short_runtime_dir: Path, keep: Starter) -> None:
    async def work() -> None:
        first = await keep(program(tmp_path, dir=str(tmp_path / "a")))
        second = await keep(program(tmp_path, dir=str(tmp_path / "b")))
        os.kill(first.pid, signal.SIGKILL)
        await eventually(lambda: not alive(first))
        assert os.path.exists(first.socket)
        for address in (first, second):
            os.utime(address.socket, (0, 0))
        third = await keep(program(tmp_path, dir=str(tmp_path / "c")))
        assert sorted(os.listdir(short_runtime_dir / "hostler")) == sorted(
            os.path.basename(address.socket) for address in (second, third)
        )
        await (await hold(second)).end()

    run(work())


def test_a_folder_that_is_relative(tmp_path: Path, keep: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def work() -> None:
        address = await keep(program(tmp_path, dir="here", cwd="."))
        assert address.dir == str(tmp_path / "here")
        held = await hold(address)
        await held.send("k", b"echo fine")
        await Reader(held).out(b"fine")

    run(work())


def test_a_folder_with_a_long_path(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        folder = tmp_path.joinpath(*["deep" * 20] * 4)
        address = await keep(program(tmp_path, dir=str(folder)))
        held = await hold(address)
        await held.send("k", b"echo fine")
        await Reader(held).out(b"fine")

    run(work())
