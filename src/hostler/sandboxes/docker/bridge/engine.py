"""A container engine's API on its unix socket, as far as running a program needs it. Standard library only."""

from __future__ import annotations

import json
import socket
import struct

TYPE_CHECKING = False  # the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any

_WAIT = 30.0
_CHUNK = 1 << 16
_FRAME = struct.Struct(">BxxxI")
OUT, ERR = 1, 2  # kinds of output


class EngineError(Exception):
    """What the engine answers in place of what it was asked for; ``status`` is HTTP's, 0 when it does not answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Engine:
    def __init__(self, path: str) -> None:
        self._path = path

    def start(self, container: str, argv: list[str], env: dict[str, str], user: str, cwd: str) -> tuple[str, Stream]:
        """Run something in the container: its id, and the stream to and from it. Raises EngineError."""
        id = self.call(
            "POST",
            f"/containers/{container}/exec",
            {
                "AttachStdin": True,
                "AttachStdout": True,
                "AttachStderr": True,
                "Tty": False,
                "Cmd": argv,
                "Env": [f"{name}={value}" for name, value in env.items()],
                "User": user,
                "WorkingDir": cwd,
            },
        )["Id"]
        connection, status, _, left = self._ask(
            f"POST /exec/{id}/start HTTP/1.1",
            {"Detach": False, "Tty": False},
            "Connection: Upgrade\r\nUpgrade: tcp\r\n",
        )
        if status not in (101, 200):
            connection.settimeout(0.5)  # it may leave the connection open behind its reason
            raise EngineError(status, _message(_rest(connection, left)))
        connection.setblocking(False)
        return id, Stream(connection, left)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a question. Raises EngineError."""
        # An answer to HTTP/1.0 comes in one piece and ends with its connection.
        connection, status, _, left = self._ask(f"{method} {path} HTTP/1.0", body)
        answer = _rest(connection, left)
        if status >= 400:
            raise EngineError(status, _message(answer))
        return json.loads(answer) if answer else None

    def headers(self) -> dict[str, str]:
        """What it says of itself with every answer, by names in small letters. Raises EngineError."""
        connection, status, headers, _ = self._ask("GET /_ping HTTP/1.0", None)
        connection.close()
        if status != 200:
            raise EngineError(status, f"it answers {status}")
        return headers

    def _ask(self, request: str, body: Any, headers: str = "") -> tuple[socket.socket, int, dict[str, str], bytes]:
        """The connection behind the answer's header, its status, that header, and what of its body has come already."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{request}\r\nHost: engine\r\nContent-Type: application/json\r\n"
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_WAIT)
        try:
            connection.connect(self._path)
            connection.sendall(f"{head}{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            answer = b""
            while b"\r\n\r\n" not in answer:
                more = connection.recv(_CHUNK)
                if not more:
                    raise OSError("it closed the connection")
                answer += more
        except OSError as error:
            connection.close()
            raise EngineError(0, f"the engine at {self._path} does not answer: {error}") from None
        header, _, left = answer.partition(b"\r\n\r\n")
        first, *lines = header.decode(errors="replace").split("\r\n")
        status = int(first.split(" ", 2)[1])
        named = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return connection, status, named, left


class Stream:
    """Output that an engine sends for stdout and stderr on one connection."""

    def __init__(self, connection: socket.socket, left: bytes) -> None:
        self.socket = connection
        self._buffer = bytearray(left)

    def read(self) -> list[tuple[int, bytes]] | None:
        """What has come: (kind, data); None at the end."""
        try:
            data = self.socket.recv(_CHUNK)
            if not data:
                return None
            self._buffer += data
        except BlockingIOError:
            pass
        except OSError:
            return None
        return self.parsed()

    def parsed(self) -> list[tuple[int, bytes]]:
        found = []
        while len(self._buffer) >= _FRAME.size:
            kind, size = _FRAME.unpack_from(self._buffer)
            if len(self._buffer) < _FRAME.size + size:
                break
            found.append((kind, bytes(self._buffer[_FRAME.size : _FRAME.size + size])))
            del self._buffer[: _FRAME.size + size]
        return found


def _rest(connection: socket.socket, left: bytes) -> bytes:
    """What is left of an answer whose connection ends with it."""
    parts = [left]
    with connection:
        try:
            while data := connection.recv(_CHUNK):
                parts.append(data)
        except OSError:
            pass
    return b"".join(parts)


def _message(body: bytes) -> str:
    try:
        found = json.loads(body)
        return str(found.get("message") or found.get("cause") or found)
    except (ValueError, AttributeError):
        return body.decode(errors="replace").strip() or "it gave no reason"
