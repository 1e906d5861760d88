"""Keeps a secret out of everything that goes to a program."""

from __future__ import annotations

MASK = b"[removed]"
_SHORTEST = 8  # what is shorter is no secret ("EMPTY", for servers that want any key) and may be a word of the answer


def scrubbed(text: str, secret: str | None) -> str:
    """``text`` without the secret."""
    return text.replace(secret, MASK.decode()) if secret and len(secret) >= _SHORTEST else text


class Scrub:
    """Replaces ``secret`` in a byte stream, also where it is split over pieces."""

    def __init__(self, secret: str | None) -> None:
        self._secret = secret.encode() if secret and len(secret) >= _SHORTEST else b""
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """What may go out now; an end that could be the secret's beginning is held back."""
        if not self._secret:
            return piece
        data = (self._held + piece).replace(self._secret, MASK)
        held = self._beginning_at_end(data)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """What was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def all(self, data: bytes) -> bytes:
        """A whole text without the secret."""
        return data.replace(self._secret, MASK) if self._secret else data

    def _beginning_at_end(self, data: bytes) -> int:
        first = self._secret[:1]
        start = max(0, len(data) - len(self._secret) + 1)
        while (start := data.find(first, start)) != -1:
            if self._secret.startswith(data[start:]):
                return len(data) - start
            start += 1
        return 0
