"""Contents that never change, kept under their SHA-256."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from typing import BinaryIO

from ..types.errors import PathError
from .confined import Root

_NAME = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """A folder of contents by hash. Methods block: call them in a worker thread."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def put(self, chunks: bytes | Iterable[bytes]) -> tuple[int, str]:
        """Keep a content, which is on the disk when this returns; gives its size and SHA-256."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        root = Root(self._folder)
        with root.create("incoming", mode=0o400) as writer:  # takes its hash for a name, which nobody knows yet
            for chunk in (chunks,) if isinstance(chunks, bytes) else chunks:
                writer.write(chunk)
            return writer.commit(sync=True, name=lambda sha256: sha256)

    def has(self, sha256: str) -> bool:
        """Whether this content is here."""
        try:
            return Root(self._folder).stat(_checked(sha256)).kind == "file"
        except FileNotFoundError:
            return False

    def open(self, sha256: str) -> BinaryIO:
        """The content, to be read. Raises FileNotFoundError when it is not here."""
        return Root(self._folder).open_read(_checked(sha256))

    def read(self, sha256: str) -> bytes | None:
        """The content; None when it is not here or is not what it was."""
        with contextlib.suppress(OSError, PathError), self.open(sha256) as file:
            data = file.read()
            if hashlib.sha256(data).hexdigest() == sha256:
                return data
        return None


def _checked(sha256: str) -> str:
    if not _NAME.fullmatch(sha256):
        raise PathError(f"{sha256[:80]!r} is no SHA-256.")
    return sha256
