"""Inside of a container: takes connections on a port of its loopback, and passes them on through stdin and stdout.

A frame is the connection's number, a length, and as many bytes; none means that this side has ended, ``CUT`` that it broke
off. Runs on whatever Python 3 an image has.
"""

import os
import socket
import struct
import sys
import threading

HEADER = struct.Struct(">II")
CUT = 0xFFFFFFFF
CHUNK = 1 << 16


def main(port: int) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    connections: dict[int, socket.socket] = {}
    ended: set[int] = set()
    lock = threading.Lock()

    def say(number: int, size: int, data: bytes = b"") -> None:
        view = memoryview(HEADER.pack(number, size) + data)
        with lock:
            while view:
                view = view[os.write(1, view) :]

    def leave(number: int) -> None:
        """One direction has ended; after the second one nothing is left of the connection."""
        with lock:
            if number not in ended:
                ended.add(number)
                return
            ended.discard(number)
            connection = connections.pop(number, None)
        if connection is not None:
            connection.close()

    def carry(number: int, connection: socket.socket) -> None:
        try:
            while True:
                data = connection.recv(CHUNK)
                say(number, len(data), data)
                if not data:
                    return leave(number)
        except OSError:
            say(number, CUT)

    def hear() -> None:
        source = os.fdopen(0, "rb", CHUNK)
        while True:
            header = source.read(HEADER.size)
            if len(header) < HEADER.size:
                os._exit(0)
            number, size = HEADER.unpack(header)
            data = source.read(size) if size != CUT else b""
            connection = connections.get(number)
            if connection is None:
                continue
            try:
                if size == CUT:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connections.pop(number).close()
                elif size == 0:
                    connection.shutdown(socket.SHUT_WR)
                    leave(number)
                else:
                    connection.sendall(data)
            except OSError:
                say(number, CUT)

    threading.Thread(target=hear, daemon=True).start()
    os.write(1, HEADER.pack(0, 0))
    number = 0
    while True:
        connection = listener.accept()[0]
        number += 1
        connections[number] = connection
        threading.Thread(target=carry, args=(number, connection), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
