"""How the tests start the real Claude Code."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.runtimes.stdio_driver import Driver

from hostler.runtimes.claude_code import RUNTIME
from hostler.testing.model_server import ModelServer
from hostler.types.errors import HarnessInstallFailed
from hostler.types.runtime import LaunchContext

try:
    PROGRAM = RUNTIME.find({}, shutil.which)
except HarnessInstallFailed:
    PROGRAM = ()


class Place:
    """A private home, a workspace and a model for one conversation."""

    def __init__(self, root: Path, server: ModelServer) -> None:
        self.root, self.server = root, server
        self.home, self.work, self.files = root / "home", root / "work", root / "files"
        for folder in (self.home, self.work, self.files, root / "tmp"):
            folder.mkdir()

    def context(self, **rules: Any) -> LaunchContext:
        given: dict[str, Any] = {
            "program": PROGRAM,
            "home": str(self.home),
            "tmp": str(self.root / "tmp"),
            "workdir": str(self.work),
            "files_dir": str(self.files),
            "model": "scripted",
            "model_url": self.server.url,
            "token": "session-token-1",
            "new_id": None if rules.get("resume") else str(uuid.uuid4()),
        }
        return LaunchContext(**{**given, **rules})

    @contextlib.contextmanager
    def program(self, **rules: Any) -> Iterator[Driver]:
        driver = Driver(RUNTIME, self.context(**rules))
        try:
            yield driver
        finally:
            driver.close()

    def native(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.home)): path.read_bytes() for path in self.home.rglob("*") if path.is_file()}
