"""One fold of a JSON-RPC codec in the making: numbered requests, replies, events, over a private copy of the state."""

from __future__ import annotations

from typing import Any

from hostler.runtimes.lines import encode_line
from hostler.types.runtime import CodecEvent, CodecState, Folded, Send

METHOD_NOT_FOUND = -32601


class Step:
    """Collects what one frame or command gives. What lies deeper than two levels in the state is replaced, not changed.

    The state holds the next request id under ``next`` and, under ``open``, the requests that wait for their answer:
    so the ids of a new host go on where those of the dead one ended.
    """

    def __init__(self, state: CodecState, *, version: str | None = None) -> None:
        self.state: CodecState = {k: _copy(v) for k, v in state.items()}
        self._head = {"jsonrpc": version} if version else {}
        self._events: list[CodecEvent] = []
        self._sends: list[Send] = []

    def emit(self, *events: CodecEvent) -> None:
        self._events += events

    def request(self, key: str, method: str, params: Any, *, note: Any = None) -> None:
        """Ask the program; ``note`` comes back with the answer."""
        number = self.state["next"]
        self.state["next"] = number + 1
        self.state["open"][str(number)] = [method, note]
        self._send(key, {"id": number, "method": method, "params": params})

    def notify(self, key: str, method: str, params: Any = None) -> None:
        self._send(key, {"method": method} | ({"params": params} if params is not None else {}))

    def reply(self, key: str, number: Any, result: Any) -> None:
        self._send(key, {"id": number, "result": result})

    def refuse(self, key: str, number: Any, method: str) -> None:
        """A definite answer to a request that this client does not serve: the program must not wait for ever."""
        error = {"code": METHOD_NOT_FOUND, "message": f"{method} is not supported by this client"}
        self._send(key, {"id": number, "error": error})

    def answered(self, message: dict[str, Any]) -> tuple[str, Any] | None:
        """The method and note of the request that ``message`` answers, once; None for an answer to nothing open."""
        found = self.state["open"].pop(str(message.get("id")), None)
        return (found[0], found[1]) if found else None

    def done(self) -> Folded:
        return Folded(self.state, tuple(self._events), tuple(self._sends))

    def _send(self, key: str, message: dict[str, Any]) -> None:
        self._sends.append(Send(key, encode_line({**self._head, **message})))


def new_state(version: int, **fields: Any) -> CodecState:
    """The state of a fresh connection."""
    return {"v": version, "next": 1, "open": {}, **fields}


def obj(value: Any) -> dict[str, Any]:
    """An object, whatever the program put there instead."""
    return value if isinstance(value, dict) else {}


def objs(value: Any) -> list[dict[str, Any]]:
    """The objects in a list."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def strs(value: Any) -> list[str]:
    """The strings in a list."""
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def error_text(message: dict[str, Any]) -> str:
    """What a JSON-RPC error says, with its data where that adds something."""
    error = message.get("error")
    if not isinstance(error, dict):
        return str(error)
    data = error.get("data")
    detail = data if isinstance(data, str) else obj(data).get("message") or obj(data).get("details")
    text = str(error.get("message") or error.get("code") or "unknown error")
    return f"{text}: {detail}" if detail and str(detail) not in text else text


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(value)
    return list(value) if isinstance(value, list) else value
