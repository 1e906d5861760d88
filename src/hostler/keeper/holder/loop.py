"""The keeper's event loop: selectors and timers, where one failing callback never ends the process."""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import sys
import time
from collections.abc import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE
_LOG_BUDGET = 1 << 18
_PAUSE = 0.2


_log_left = _LOG_BUDGET


def log(text: str) -> None:
    """A line in the keeper's log file (its stderr), bounded over its life."""
    global _log_left
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n"
    _log_left -= len(line)
    if _log_left > 0:
        try:
            sys.stderr.write(line)
            sys.stderr.flush()
        except OSError:
            pass


def log_exception() -> None:
    import traceback  # slow to import, and seldom needed

    log(traceback.format_exc())


class Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class _Watch:
    __slots__ = ("callback", "live", "mask")

    def __init__(self, mask: int, callback: Callable[[int], None]) -> None:
        self.mask = mask
        self.callback = callback
        self.live = True


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._watches: dict[int, _Watch] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._serial = itertools.count()

    def watch(self, file: int | socket.socket, mask: int, callback: Callable[[int], None]) -> None:
        """Call ``callback(ready)`` while ``file`` is ready for ``mask``; replaces an earlier watch, 0 ends it."""
        fd = file if isinstance(file, int) else file.fileno()
        if not mask:
            return self.unwatch(fd)
        old = self._watches.get(fd)
        if old is not None and old.mask == mask and old.callback == callback:
            return
        watch = self._watches[fd] = _Watch(mask, callback)
        if old is None:
            self._selector.register(fd, mask, watch)
        else:
            old.live = False
            self._selector.modify(fd, mask, watch)

    def unwatch(self, file: int | socket.socket) -> None:
        """Must come before the descriptor is closed: its number may be given out again at once."""
        fd = file if isinstance(file, int) else file.fileno()
        watch = self._watches.pop(fd, None)
        if watch is not None:
            watch.live = False
            self._selector.unregister(fd)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + delay, next(self._serial), timer))
        return timer

    def run_once(self) -> None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for key, ready in self._selector.select(timeout):
            watch: _Watch = key.data
            # An earlier callback of this batch may have closed the descriptor or changed what is waited for.
            if watch.live:
                self._guarded(watch.callback, ready)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                self._guarded(callback)

    def listen(self, listener: socket.socket, on_connection: Callable[[socket.socket], bool]) -> None:
        """Accept connections while ``on_connection`` answers that it will take more; `listen` again to go on."""
        listener.setblocking(False)

        def on_ready(ready: int) -> None:
            more = True
            while more:
                try:
                    sock, _ = listener.accept()
                except (BlockingIOError, ConnectionError):
                    return
                except OSError as error:  # out of descriptors or memory: trying at once again would only burn time
                    log(f"cannot accept: {error}")
                    self.unwatch(listener)
                    self.call_later(_PAUSE, lambda: self.watch(listener, READ, on_ready))
                    return
                sock.setblocking(False)
                more = on_connection(sock)
            self.unwatch(listener)

        self.watch(listener, READ, on_ready)

    @staticmethod
    def _guarded(callback: Callable[..., None], *arguments: int) -> None:
        try:
            callback(*arguments)
        except Exception:
            log_exception()
