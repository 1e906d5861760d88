"""Much output, nobody who reads, a full disk, bounds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest
from keeper_support import Reader, Starter, eventually, hold, program, rss, run

from hostler.keeper import read_spool
from hostler.keeper.holder import frames
from hostler.keeper.holder.program import Lines
from hostler.keeper.holder.spool import Entry, LongLine, Spool

FLOOD = """
import sys
line = b"x" * 199 + b"\\n"
for _ in range({count}): sys.stdout.buffer.write(line)
print("end", flush=True)
sys.stdin.read()
"""


def kept(folder: str) -> int:
    total = 0
    for path in Path(folder, "spool").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # acknowledged meanwhile
            total += path.stat().st_size
    return total


def test_fifty_megabytes_with_nobody_there(tmp_path: Path, keep: Starter) -> None:
    count = 250_000

    async def work() -> None:
        address = await keep(program(tmp_path, FLOOD.format(count=count)))
        await eventually(lambda: kept(address.dir) > count * 200, 20)
        assert rss(address.pid) < 25
        held = await hold(address)
        reader = Reader(held)
        await reader.out(b"end")
        assert len(reader.frames) == count + 1
        assert rss(address.pid) < 25
        await held.ack(reader.frames[-1].no)
        await eventually(lambda: kept(address.dir) < 9 << 20)
        await held.end()

    run(work())


def test_bound_of_the_log_blocks_the_program(tmp_path: Path, keep: Starter) -> None:
    count, limit = 40_000, 2 << 20

    async def work() -> None:
        address = await keep(program(tmp_path, FLOOD.format(count=count), spool_limit=limit))
        await eventually(lambda: kept(address.dir) >= limit)
        await asyncio.sleep(0.2)
        assert kept(address.dir) < limit + (1 << 19)
        held = await hold(address)
        seen = 0
        async for batch in held.batches():
            assert [f.no for f in batch] == list(range(seen + 1, seen + len(batch) + 1))
            seen += len(batch)
            assert kept(address.dir) < limit + (1 << 19)
            if batch[-1].data == b"end":
                break
            await held.ack(seen)
        assert seen == count + 1
        await held.end()

    run(work())


def test_much_stderr_is_no_obstacle(tmp_path: Path, keep: Starter) -> None:
    code = "import os, sys\nfor _ in range(100): os.write(2, b'e' * 65536)\nprint('done')"

    async def work() -> None:
        reader = Reader(await hold(await keep(program(tmp_path, code))))
        await reader.exit()
        assert reader.kinds("out") == [b"done"]
        assert sum(map(len, reader.kinds("err"))) == 100 * 65536

    run(work())


def test_line_over_the_bound_of_the_log(tmp_path: Path, keep: Starter) -> None:
    async def work() -> None:
        address = await keep(program(tmp_path, spool_limit=1 << 20))
        held = await hold(address)
        reader = Reader(held)
        await held.send("k", b"long 5000000")
        line = await reader.until(lambda f: f.kind == "out")
        assert len(line.data) == 5_000_000
        await held.ack(line.no)
        await held.send("k2", b"echo on")
        await reader.out(b"on")

    run(work())


def test_big_input(tmp_path: Path, keep: Starter) -> None:
    code = "import sys\nfor line in sys.stdin.buffer: print(len(line), flush=True)"

    async def work() -> None:
        address = await keep(program(tmp_path, code))
        held = await hold(address)
        reader = Reader(held)
        await held.send("k", b"x" * 20_000_000)
        assert await reader.next_out() == b"20000001"
        with pytest.raises(ValueError, match="limit"):
            await held.send("k2", b"x" * (65 << 20))

    run(work())


def test_slow_reader_of_stdin(tmp_path: Path, keep: Starter) -> None:
    code = """
import sys, time
print("up", flush=True)
time.sleep(0.2)
for line in sys.stdin.buffer: sys.stdout.buffer.write(line)
sys.stdout.flush()
"""

    async def work() -> None:
        held = await hold(await keep(program(tmp_path, code)))
        reader = Reader(held)
        await reader.out(b"up")
        sent = [
            b"%d " % i + b"y" * 10_000 for i in range(50)
        ]  # more than a pipe holds; the two seconds must do on a busy machine
        for i, line in enumerate(sent):
            await held.send(f"{i}", line)
        await held.end(grace=2)
        got = [f.data for f in read_spool(held.address.dir, 0) if f.kind == "out"]
        assert got == [b"up", *sent]

    run(work())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_disk_full(tmp_path: Path, keep: Starter) -> None:
    """The program waits; nothing is lost when there is room again."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    small = tmp_path / "small"
    small.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(small), b"tmpfs", 0, b"size=4m,mode=700"):
        pytest.skip("cannot mount")
    try:
        ballast = small / "ballast"
        ballast.write_bytes(b"\0" * (2 << 20))

        async def work() -> None:
            address = await keep(program(tmp_path, FLOOD.format(count=15_000), dir=str(small / "keeper")))
            log = Path(address.dir, "keeper.log")
            await eventually(lambda: b"disk full" in log.read_bytes(), 20)
            held = await hold(address)
            reader = Reader(held)
            await held.send("k", b"waits too")
            with pytest.raises(TimeoutError):
                await reader.out(b"end", 0.3)
            ballast.unlink()
            await reader.out(b"end")
            assert [f.no for f in reader.frames] == list(range(1, len(reader.frames) + 1))
            assert len(reader.kinds("out")) == 15_001
            assert reader.kinds("in") in ([], [b"waits too"])
            await held.end()

        run(work())
    finally:
        libc.umount2(os.fsencode(small), 2)


# ---- the log alone -----------------------------------------------------------------------------------------------------


class Sink:
    """Where a cursor's bytes arrive."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sink"

    def read(self, spool: Spool, number: int) -> list[tuple[int, bytes, bytes]]:
        with open(self._path, "wb") as file:
            cursor = spool.cursor(number)
            while not cursor.send(file.fileno(), 1000):
                pass
        return frames.Decoder(1 << 30).feed(self._path.read_bytes())


def lines(*data: bytes) -> list[Entry]:
    return [(frames.OUT, line) for line in data]


def test_spool_serves_every_number_and_frees_whole_segments(tmp_path: Path) -> None:
    spool, sink = Spool(str(tmp_path / "spool"), 800), Sink(tmp_path)
    for i in range(1, 101):
        assert spool.put(lines(b"%d" % i)) == 1
    assert spool.next == 101
    for number in range(1, 102):
        assert [(n, p) for n, _, p in sink.read(spool, number)] == [(n, b"%d" % n) for n in range(number, 101)]
    assert spool.full
    spool.free(50, None)
    assert 40 < spool.first <= 51
    assert sink.read(spool, 51)[0][0] == 51
    first = spool.first
    spool.free(100, spool.cursor(first))  # somebody is still reading there
    assert spool.first == first
    spool.free(100, spool.cursor(101))
    assert spool.first > 90
    assert not spool.full
    spool.put(lines(b"x" * 200))
    spool.free(101, spool.cursor(102))
    assert spool.first == 102
    spool.put(lines(b"next"))
    assert sink.read(spool, 102) == [(102, b"o", b"next")]


def test_long_line_joins_whole(tmp_path: Path) -> None:
    folder = str(tmp_path / "spool")
    spool, sink = Spool(folder, 1 << 20), Sink(tmp_path)
    for empty in (True, False):
        if not empty:
            spool.put(lines(b"before"))
        cursor = spool.cursor(spool.next)
        begin = spool.next
        line = LongLine(folder)
        line.add(b"a" * 10)
        line.add(b"b" * 10)
        line.last = b"c"
        assert spool.put([line, *lines(b"after")]) == 2
        expected = [(b"p", b"a" * 10), (b"p", b"b" * 10), (b"o", b"c"), (b"o", b"after")]
        numbered = [(n, k, p) for n, (k, p) in enumerate(expected, begin)]
        assert sink.read(spool, begin) == numbered
        with open(tmp_path / "live", "wb") as file:
            assert cursor.send(file.fileno(), 1 << 20)
        assert frames.Decoder(1 << 20).feed((tmp_path / "live").read_bytes()) == numbered


def test_disk_full_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, sink = Spool(str(tmp_path / "spool"), 1 << 20), Sink(tmp_path)
    spool.put(lines(b"one"))
    pwrite, room = os.pwrite, 20

    def limited(fd: int, data: bytes, offset: int) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "full")
        written = pwrite(fd, memoryview(data)[:room], offset)
        room -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", limited)
        assert spool.put(lines(b"two" * 20, b"three")) == 0
    assert sink.read(spool, 1) == [(1, b"o", b"one")]
    assert spool.put(lines(b"two", b"three")) == 2
    assert [p for _, _, p in sink.read(spool, 1)] == [b"one", b"two", b"three"]


def test_lines_however_they_are_cut(tmp_path: Path) -> None:
    text = b"one\n\ntwo\xe2\x80\xa8still two\r\nthree\x00\nrest"
    expected = [b"one", b"", b"two\xe2\x80\xa8still two\r", b"three\x00", b"rest"]
    for size in range(1, len(text) + 1):
        splitter = Lines(str(tmp_path))
        entries: list[Entry] = []
        for i in range(0, len(text), size):
            entries += splitter.feed(text[i : i + size])
            assert splitter.spill() == []
        entries += splitter.finish()
        assert entries == [(frames.OUT, line) for line in expected]


def test_decoder_however_it_is_cut() -> None:
    sent = [(0, b"a", b""), (7, b"o", b"x" * 50), (1 << 60, b"e", b"\0")]
    raw = b"".join(frames.pack(kind, payload, number) for number, kind, payload in sent)
    for size in range(1, len(raw) + 1):
        decoder = frames.Decoder(100)
        got = [frame for i in range(0, len(raw), size) for frame in decoder.feed(raw[i : i + size])]
        assert got == sent
    with pytest.raises(frames.FrameTooLong):
        frames.Decoder(10).feed(frames.pack(b"o", b"x" * 11))
