from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from keeper_support import Starter, program, run

from hostler.keeper import KeeperAddress, KeeperError, KeeperSpec, destroy, start


@pytest.fixture(scope="session")
def has_namespaces(tmp_path_factory: pytest.TempPathFactory) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSTLER_GUARD", "pidns")
        try:
            destroy(run(start(program(tmp_path_factory.mktemp("probe")), None)))
        except KeeperError:
            return False
    return True


@pytest.fixture
def pidns(has_namespaces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_namespaces:
        pytest.skip("no pid namespaces here")
    monkeypatch.setenv("HOSTLER_GUARD", "pidns")


@pytest.fixture(params=["pidns", "guardian"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kind = str(request.param)
    if kind == "pidns":
        request.getfixturevalue("pidns")
    monkeypatch.setenv("HOSTLER_GUARD", kind)
    return kind


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
