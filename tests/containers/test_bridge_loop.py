"""The bridge's event loop, without a container."""

from __future__ import annotations

import os

from hostler.sandboxes.docker.bridge.loop import Loop


def test_what_a_nested_loop_has_read_is_not_waited_for() -> None:
    """As when the guard is made anew in the middle of what the program says."""
    loop, seen = Loop(), []
    pipes = [os.pipe() for _ in range(2)]
    for reader, writer in pipes:
        os.set_blocking(reader, False)
        os.write(writer, b"x")

        def on_ready(reader: int = reader) -> None:
            seen.append(os.read(reader, 9))
            if len(seen) == 1:
                loop.run_once(10)  # the other one is read in here

        loop.read(reader, on_ready)
    loop.run_once(10)
    assert seen == [b"x", b"x"]
    for fd in (fd for pipe in pipes for fd in pipe):
        loop.forget(fd)
        os.close(fd)
