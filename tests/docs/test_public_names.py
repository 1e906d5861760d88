"""`import hostler` is light, and all that it promises is there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import hostler

HEAVY = (
    "anyio",
    "asyncio",
    "h11",
    "httptools",
    "httpx",
    "mcp",
    "pydantic",
    "rich",
    "sqlalchemy",
    "starlette",
    "typer",
    "uvicorn",
)
ENGINE = ("sqlalchemy", "httpx", "mcp", "pydantic", "rich", "typer", "starlette", "uvicorn")


def loaded_by(code: str) -> set[str]:
    run = [sys.executable, "-c", f"import sys; {code}; import json; print(json.dumps(list(sys.modules)))"]
    out = subprocess.run(run, capture_output=True, text=True, timeout=30, check=True).stdout
    return {name.split(".")[0] for name in json.loads(out)}


def test_importing_it_loads_nothing_heavy() -> None:
    assert not loaded_by("import hostler") & set(HEAVY)


def test_values_and_sandboxes_do_not_load_the_engine() -> None:
    code = "import hostler; hostler.State, hostler.Harness, hostler.harness.Text, hostler.SessionLost, hostler.sandbox.local"
    assert not loaded_by(code) & set(ENGINE)


@pytest.mark.parametrize("module", [hostler, hostler.harness, hostler.sandbox], ids=lambda m: m.__name__)
def test_every_public_name_resolves(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(module, name) is not None
    assert set(names) <= set(dir(module))


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'agnet'"):
        hostler.agnet  # noqa: B018


def test_errors_are_harness_errors() -> None:
    errors = [getattr(hostler, n) for n in hostler.__all__]
    classes = [e for e in errors if isinstance(e, type) and issubclass(e, Exception)]
    assert len(classes) > 10
    assert all(issubclass(e, hostler.HarnessError) for e in classes)
