"""Values that describe a keeper: what it shall run, where it is, what it says at attach."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class KeeperSpec:
    """What to run and how long to keep it.

    ``argv``, ``env``, ``cwd``: the program, as the host runs it; ``env`` is its whole environment. ``dir``: a private
    folder for log and spool; what an earlier keeper left there is removed. ``mark``: unique; goes into the program's
    environment as HOSTLER_RUN and identifies its processes. ``park_ttl``: seconds without a host while no turn is open,
    ``orphan_ttl``: while one is, after which everything is ended. ``spool_limit``: bytes of unacknowledged log at which
    the program is no longer read. ``hold_limit``: seconds that a model request is held while there is no host.

    ``model_port`` is a port of the loopback in a network namespace of the program's own, at which it finds its model (0:
    it shares the host's network); ``groups`` are control groups to be made for it, ``{"dir": ..., "settings": {file:
    text}}``. ``enclosed`` says that ``argv`` only starts the program, which a polite end is meant for: it gets the
    program's stdin and stdout as its descriptors 4 and 5, ``feeds`` as the contents of 6, 7, ..., and nothing for its own.

    ``far`` is given for a program that runs in a container: its ``bridge`` is the command that stands for it here. That
    gets the rest of it on descriptor 4, as a line of JSON with ``argv`` and ``env``, and there the keeper's wishes, lines
    too: ``turn`` (one begins), ``sweep N`` (what it has started is to be ended; the answer is ``swept N``), ``end N`` (``ended N``).
    """

    argv: list[str]
    env: dict[str, str] = field(repr=False)
    cwd: str
    dir: str
    mark: str
    park_ttl: float = 900
    orphan_ttl: float = 600
    spool_limit: int = 1 << 30
    hold_limit: float = 300
    feeds: tuple[bytes, ...] = field(default=(), repr=False)
    model_port: int = 0
    groups: tuple[dict[str, Any], ...] = ()
    enclosed: bool = False
    far: dict[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class KeeperAddress:
    """Where a keeper is, for every process of the same user. ``token`` lets its bearer in: keep it as a secret."""

    socket: str
    token: str = field(repr=False)
    mark: str
    dir: str
    pid: int
    start: str
    guard: str
    protocol: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> KeeperAddress:
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Hello:
    """What the keeper says at attach: frames ``first`` up to before ``next`` are in its log; ``exited`` is the program's
    exit code if it has ended."""

    epoch: int
    first: int
    next: int
    exited: int | None
    pid: int
