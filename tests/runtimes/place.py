"""A private home, a workspace and a scripted model for a real program that is tried alone."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.runtimes.stdio_driver import Driver, driver

from hostler.testing.model_server import ModelServer
from hostler.types.runtime import CodecEvent, LaunchContext, Runtime

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Place:
    """Where one conversation is."""

    def __init__(self, runtime: Runtime, program: tuple[str, ...], root: Path, server: ModelServer) -> None:
        self.runtime, self._program, self.root, self.server = runtime, program, root, server
        self.home, self.work, self.files = root / "home", root / "session", root / "files"
        for folder in (self.home, self.work, self.files, root / "tmp"):
            folder.mkdir(parents=True)

    def context(self, **rules: Any) -> LaunchContext:
        given: dict[str, Any] = {
            "program": self._program,
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
        with driver(self.runtime, self.context(**rules)) as it:
            yield it

    def native(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.home)): path.read_bytes() for path in self.home.rglob("*") if path.is_file()}

    def asked(self, at: int = -1) -> str:
        """A request to the model, as text."""
        return json.dumps(self.server.calls[at].body)


def of(events: list[CodecEvent], *kinds: type) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


def script(*steps: dict[str, Any]) -> str:
    return f"Do it. @@{json.dumps(list(steps))}@@"
