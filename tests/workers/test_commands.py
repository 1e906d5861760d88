"""Workers as commands: by their file, as hostler starts them, and by the names that the package installs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from hostler.runtimes import runtime_for
from hostler.types.runtime import Harness

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("harness", [Harness.TOOL_LOOP, Harness.DEEP_AGENTS])
def test_a_worker_says_its_version_and_how_it_is_started(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "httpx.py").write_text("raise SystemExit('imported from the workspace')")
    command = runtime_for(harness).find({}, str)
    said = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()
    module, _, name = PROJECT["scripts"][f"hostler-{harness.value.replace('_', '-')}"].partition(":")
    run = getattr(import_module(module), name)
    monkeypatch.setattr(sys, "argv", ["worker", "--version"])
    run()
    assert capsys.readouterr().out == said.stdout
    monkeypatch.setattr(sys, "argv", ["worker"])
    with pytest.raises(SystemExit, match="started by hostler"):
        run()
