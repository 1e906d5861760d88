"""Where HTTP/1.1 messages begin and end; no more of HTTP than that."""

from __future__ import annotations

MAX_HEAD = 1 << 17
FRAME = b"x-hostler-frame"  # with each request goes which frame of the log would have been the next when it came
_MAX_CHUNK_LINE = 4096


class Malformed(ValueError):
    """Not HTTP/1.1 as we can follow it."""


class Head:
    """Start line and header fields of a message."""

    def __init__(self, start: bytes, fields: list[tuple[bytes, bytes]]) -> None:
        self.start = start
        self.fields = fields

    @classmethod
    def parse(cls, block: bytes) -> Head:
        """``block`` is everything before the empty line."""
        start, *lines = block.split(b"\r\n")
        fields = []
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or name != name.strip() or not name:
                raise Malformed("a header line without a name")
            fields.append((name, value.strip()))
        if len(start.split(b" ", 2)) < 2:
            raise Malformed("no start line")
        return cls(start, fields)

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.fields if key.lower() == name), None)

    @property
    def status(self) -> int:
        try:
            return int(self.start.split(b" ", 2)[1])
        except ValueError:
            raise Malformed("no status code") from None

    def closing(self, *without: bytes) -> bytes:
        """The head as bytes, saying that the connection serves this one message, and without some fields."""
        dropped = {b"connection", b"keep-alive", b"proxy-connection", *without}
        kept = [name + b": " + value for name, value in self.fields if name.lower() not in dropped]
        return b"\r\n".join([self.start, *kept, b"Connection: close", b"", b""])


class Body:
    """Counts the bytes of one body as they pass."""

    def __init__(self, *, length: int | None, chunked: bool = False) -> None:
        self._left = length or 0
        self._chunked = chunked
        self._open_ended = length is None and not chunked
        self._line = bytearray()
        self._state = "size" if chunked else "data"
        self.done = not chunked and length == 0

    @classmethod
    def of(cls, head: Head, *, none: bool, otherwise: int | None) -> Body:
        """The body that ``head`` announces; ``otherwise`` is its length when nothing is announced (None: to the end)."""
        if none:
            return cls(length=0)
        if coding := head.get(b"transfer-encoding"):
            return cls(length=None, chunked=coding.lower().split(b",")[-1].strip() == b"chunked")
        length = head.get(b"content-length")
        if length is None:
            return cls(length=otherwise)
        if not length.isdigit():
            raise Malformed("a bad Content-Length")
        return cls(length=int(length))

    def feed(self, data: bytes) -> int:
        """How many bytes of ``data`` belong to this body."""
        offset = 0
        while offset < len(data) and not self.done:
            if self._open_ended:
                return len(data)
            if self._state == "data":
                step = min(self._left, len(data) - offset)
                self._left -= step
                offset += step
                if not self._left:
                    if self._chunked:
                        self._state = "data end"
                    else:
                        self.done = True
            else:
                end = data.find(b"\n", offset)
                stop = len(data) if end < 0 else end + 1
                self._line += data[offset:stop]
                offset = stop
                if len(self._line) > _MAX_CHUNK_LINE:
                    raise Malformed("a chunk line that does not end")
                if end >= 0:
                    self._on_line(bytes(self._line).strip())
                    self._line.clear()
        return offset

    def _on_line(self, line: bytes) -> None:
        if self._state == "data end":
            if line:
                raise Malformed("a chunk longer than its size")
            self._state = "size"
        elif self._state == "size":
            try:
                self._left = int(line.partition(b";")[0].strip(), 16)
            except ValueError:
                raise Malformed("a bad chunk size") from None
            if self._left < 0:
                raise Malformed("a bad chunk size")
            self._state = "data" if self._left else "trailer"
        elif not line:
            self.done = True


def split_head(buffer: bytearray) -> Head | None:
    """Take the head off the front of ``buffer``; None while it is not whole."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > MAX_HEAD:
            raise Malformed("a head that does not end")
        return None
    head = Head.parse(bytes(buffer[:end]))
    del buffer[: end + 4]
    return head


class Request:
    """Collects one whole request, in the form in which it is given to a host."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._body: Body | None = None
        self.raw = bytearray()
        self.is_head = False
        self.wants_continue = False

    def feed(self, data: bytes) -> bool:
        """True once the request is whole. What follows it is not looked at: each connection serves one request."""
        if self._body is None:
            self._buffer += data
            head = split_head(self._buffer)
            if head is None:
                return False
            if not head.start.rpartition(b" ")[2].startswith(b"HTTP/1."):
                raise Malformed("not HTTP/1")
            self.is_head = head.start.startswith(b"HEAD ")
            self.wants_continue = (head.get(b"expect") or b"").lower() == b"100-continue"
            both = head.get(b"transfer-encoding") is not None
            self._body = Body.of(head, none=False, otherwise=0)
            self.raw += head.closing(b"expect", FRAME, *([b"content-length"] if both else []))
            data = bytes(self._buffer)
            self._buffer.clear()
        self.raw += data[: self._body.feed(data)]
        if len(self.raw) > self._limit:
            raise Malformed(f"a request over {self._limit} bytes")
        return self._body.done

    def whole(self, frame: int) -> bytes:
        """The request as it is given to a host."""
        behind_start = self.raw.find(b"\r\n") + 2
        self.raw[behind_start:behind_start] = b"%s: %d\r\n" % (FRAME, frame)
        return bytes(self.raw)


class Response:
    """Follows one answer; gives what goes to the program.

    The head is given together with the first bytes of the body: until then the program has seen nothing, and the
    request can still be sent to another host.
    """

    def __init__(self, *, to_head: bool) -> None:
        self._to_head = to_head
        self._buffer = bytearray()
        self._head = b""
        self._body: Body | None = None
        self.body_bytes = 0

    @property
    def done(self) -> bool:
        return self._body is not None and self._body.done

    def feed(self, data: bytes) -> bytes:
        if self._body is None:
            self._buffer += data
            head = split_head(self._buffer)
            while head is not None and 100 <= head.status < 200 and head.status != 101:
                head = split_head(self._buffer)  # interim answers are between the keeper and the host
            if head is None:
                return b""
            if head.status == 101:
                raise Malformed("another protocol on this connection")
            self._head = head.closing()
            self._body = Body.of(head, none=self._to_head or head.status in (204, 304), otherwise=None)
            data = bytes(self._buffer)
            self._buffer.clear()
        taken = data[: self._body.feed(data)]
        self.body_bytes += len(taken)
        if not taken and not self._body.done:
            return b""
        head_bytes, self._head = self._head, b""
        return head_bytes + taken
