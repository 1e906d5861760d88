"""State: the resume token of a session. Untrusted input, never a credential."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from .errors import StateIncompatible

VERSION = 1
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class State:
    """What `agent_resume` needs to find a session again.

    ``harness`` is the member's value (``"claude_code"``), ``native_id`` the program's own session id or None before
    its first turn, ``session`` the session key, ``workdir`` the working directory as the agent sees it (compared on
    resume, never used), ``model`` as the caller wrote it.
    """

    harness: str
    native_id: str | None
    session: str
    workdir: str
    model: str | None
    version: int = VERSION

    def dumps(self) -> bytes:
        """UTF-8 JSON."""
        return json.dumps(
            {
                "version": self.version,
                "harness": self.harness,
                "native_id": self.native_id,
                "session": self.session,
                "workdir": self.workdir,
                "model": self.model,
            },
            ensure_ascii=False,
        ).encode()

    @classmethod
    def loads(cls, raw: bytes | str) -> State:
        """Read what `dumps` gave. Raises `StateIncompatible` for anything else."""
        if len(raw) > _LIMIT:
            raise StateIncompatible(f"This is not a hostler state: {len(raw)} bytes, at most {_LIMIT} are expected.")
        try:
            data = json.loads(raw)
        except (ValueError, UnicodeDecodeError, RecursionError) as error:
            raise StateIncompatible(
                f"This is not a hostler state: {error}. Pass the bytes that State.dumps() gave."
            ) from None
        if not isinstance(data, dict):
            raise StateIncompatible("This is not a hostler state: not a JSON object.")
        version = data.get("version")
        if version != VERSION:
            raise StateIncompatible(
                f"This state has version {version!r}; this hostler reads version {VERSION}. Resume it with the hostler that made it."
            )
        for name in ("harness", "session", "workdir"):
            if not isinstance(data.get(name), str) or not data[name]:
                raise StateIncompatible(f"This state has no usable {name!r}.")
        for name in ("native_id", "model"):
            if data.get(name) is not None and not isinstance(data[name], str):
                raise StateIncompatible(f"This state has no usable {name!r}.")
        native = data.get("native_id")
        if native is not None and not _ID.fullmatch(native):
            raise StateIncompatible(
                f"The native session id {native[:80]!r} in this state is not one that a program makes."
            )
        if len(data["session"]) > 512 or "\0" in data["session"]:
            raise StateIncompatible("The session key in this state is longer than 512 characters or holds a NUL.")
        try:
            data["session"].encode()
        except UnicodeEncodeError:
            raise StateIncompatible("The session key in this state is not Unicode text.") from None
        return cls(data["harness"], native, data["session"], data["workdir"], data.get("model"), version)
