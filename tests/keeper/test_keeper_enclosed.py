"""Programs that something else encloses: descriptors, a network of their own, control groups."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_support import PYTHON, Reader, Starter, hold, program, run

from hostler.keeper import KeeperError
from hostler.types.runtime import Frame

TELL = """
import json, os, sys
def seen(fd):
    try: return os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
    except OSError: return None
found = {fd: seen(fd) for fd in range(10)}
found["fed"] = [os.read(fd, 100).decode() for fd in (6, 7)]
with open(5, "w") as out, open(4) as given:
    print(json.dumps(found), file=out, flush=True)
    print(given.readline().strip(), file=out, flush=True)
"""

CALL = """
import json, socket, sys, urllib.request
said = {}
for port in json.loads(sys.argv[1]):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3): said[port] = "open"
    except OSError as error: said[port] = error.strerror
try: said["other"] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 80)) or "open"
except OSError as error: said["other"] = error.strerror
said["model"] = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[2]}/v1/x", timeout=10).read().decode()
print(json.dumps(said), flush=True)
input()
"""
PORT = 7411


def is_out(frame: Frame) -> bool:
    return frame.kind == "out"


class Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline() not in (b"\r\n", b""):
            pass
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nmodel")


@pytest.fixture
def upstream(short_runtime_dir: Path) -> Iterator[str]:
    """The host's endpoint."""
    path = str(short_runtime_dir / "endpoint.sock")
    with socketserver.ThreadingUnixStreamServer(path, Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield path
        server.shutdown()
        thread.join()


def test_descriptors(tmp_path: Path, keep: Starter, guard: str) -> None:
    """What encloses has no stdin or stdout of the program's; what it is fed is there for it alone."""
    spec = program(tmp_path, TELL, feeds=(b"first", b"second"), enclosed=True)

    async def work() -> None:
        held = await hold(await keep(spec))
        reader = Reader(held)
        await held.send("k", b"hello")
        found = json.loads((await reader.until(is_out)).data)
        assert [found[str(n)] for n in (0, 1, 4, 5)] == ["/dev/null", "/dev/null", "pipe", "pipe"]
        assert found["2"] == "pipe"
        assert found["3"] is None
        assert found["fed"] == ["first", "second"]
        assert {found[str(n)] for n in (8, 9)} <= {None}
        await reader.out(b"hello")

    run(work())


def test_a_network_of_its_own(tmp_path: Path, keep: Starter, guard: str, upstream: str) -> None:
    """Nothing but the model is reached, and that is the attached host's endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = [server.getsockname()[1], PORT + 1]
        spec = program(tmp_path, argv=[*PYTHON, CALL, json.dumps(ports), str(PORT)], model_port=PORT)

        async def work() -> None:
            reader = Reader(await hold(await keep(spec), upstream=upstream))
            said = json.loads((await reader.until(is_out)).data)
            assert said == {
                **{str(port): "Connection refused" for port in ports},
                "other": "Network is unreachable",
                "model": "model",
            }

        run(work())


def test_two_networks_do_not_meet(tmp_path: Path, keep: Starter, upstream: str) -> None:
    async def work() -> None:
        for name in ("a", "b"):  # the same port in each
            (tmp_path / name).mkdir()
            spec = program(tmp_path / name, argv=[*PYTHON, CALL, "[]", str(PORT)], model_port=PORT)
            reader = Reader(await hold(await keep(spec), upstream=upstream))
            assert json.loads((await reader.until(is_out)).data)["model"] == "model"

    run(work())


def test_groups_that_cannot_be_made(tmp_path: Path, keep: Starter) -> None:
    for folder, settings in (("/no/such/group/x", {}), (str(tmp_path / "group"), {"no/such.file": "1"})):
        spec = program(tmp_path, groups=({"dir": folder, "settings": settings},))
        with pytest.raises(KeeperError, match="cannot start"):
            run(keep(spec))
        assert not os.path.exists(folder)
