"""The artifacts of a session: its results as they were after each turn, on the engine's side."""

from __future__ import annotations

import asyncio
import re
from typing import BinaryIO

from .host.live import LiveSession
from .store import files as queries
from .types.result import FileRef

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ArtifactsCore:
    """Each version of each artifact stays as it was, whatever the agent does later. A version is named by its SHA-256;
    a path means its newest version."""

    def __init__(self, live: LiveSession) -> None:
        self._live = live

    async def list(self, *, turn: str | None = None) -> tuple[FileRef, ...]:
        """The newest version of each artifact by path; with a turn's id, what that turn made or changed."""
        live = self._live
        found = await live.host.store.read(lambda conn: queries.list_artifacts(conn, live.id, turn))
        return tuple(sorted({file.path: file for file in found}.values(), key=lambda file: file.path))

    async def versions(self, path: str) -> tuple[FileRef, ...]:
        """All versions of one artifact, the oldest first."""
        live = self._live
        virtual = live.roots.virtual(path)
        found = await live.host.store.read(lambda conn: queries.list_artifacts(conn, live.id))
        return tuple(file for file in found if file.path == virtual)

    async def open(self, artifact: str) -> BinaryIO:
        """The content of an artifact, opened for reading."""
        sha256 = await self._sha256(artifact)
        return await asyncio.to_thread(self._live.vault.blobs.open, sha256)

    async def read(self, artifact: str) -> bytes:
        """The content of an artifact, by its path (the newest version) or its SHA-256. Raises FileNotFoundError when
        there is none."""
        file = await self.open(artifact)
        with file:
            return await asyncio.to_thread(file.read)

    async def _sha256(self, artifact: str) -> str:
        """Of this session's artifacts only: a hash that another session has is not found."""
        live = self._live
        found = await live.host.store.read(lambda conn: queries.list_artifacts(conn, live.id))
        if _SHA256.fullmatch(artifact):
            known = {file.sha256 for file in found}
            sha256 = artifact if artifact in known else None
        else:
            virtual = live.roots.virtual(artifact)
            sha256 = next((file.sha256 for file in reversed(found) if file.path == virtual), None)
        if sha256 is None:
            raise FileNotFoundError(f"Session {live.key!r} has no artifact {artifact!r}.")
        return sha256
