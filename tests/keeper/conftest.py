from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from keeper_support import Starter

from hostler.keeper import KeeperAddress, KeeperSpec, destroy, start


@pytest.fixture(params=["pidns", "guardian"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOSTLER_GUARD", request.param)
    return str(request.param)


@pytest.fixture
def short_runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def keep() -> Iterator[Starter]:
    """`start`, with the promise that nothing is left after the test."""
    addresses: list[KeeperAddress] = []

    async def starter(spec: KeeperSpec, model: socket.socket | None = None) -> KeeperAddress:
        addresses.append(await start(spec, model))
        return addresses[-1]

    yield starter
    for address in addresses:
        destroy(address)
