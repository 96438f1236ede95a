"""Waiting for descriptors: one selector for all relays of a scenario, so that pings of those that wait are answered."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence

Part = bytes | memoryview
MAX_PARTS = 256
"""Parts of one gathering write; the system allows 1,024."""


class Pump:
    """Calls what is registered for a descriptor when it can be read, and writes what waits when it can be written."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._on_read: dict[int, Callable[[], None]] = {}
        self._blocked: dict[int, Out] = {}
        self._dirty: dict[Out, None] = {}

    def watch(self, fd: int, on_read: Callable[[], None]) -> None:
        self._on_read[fd] = on_read
        self._refresh(fd)

    def forget(self, fd: int) -> None:
        self._on_read.pop(fd, None)
        out = self._blocked.pop(fd, None)
        if out is not None:
            self._dirty.pop(out, None)
        self._refresh(fd)

    def wrote(self, out: Out) -> None:
        """There is something to write; it goes out before the next wait."""
        self._dirty[out] = None

    def drop(self, out: Out) -> None:
        self._dirty.pop(out, None)

    def run_until(self, done: Callable[[], bool], patience: float) -> bool:
        """Work until `done()`, for at most `patience` seconds. Returns whether it was done."""
        deadline = time.perf_counter() + patience
        while True:
            if self._dirty:
                self._flush()
            if done():
                return True
            left = deadline - time.perf_counter()
            if left <= 0:
                return False
            for key, events in self._selector.select(left):
                fd = key.fd
                if events & selectors.EVENT_READ and fd in self._on_read:
                    self._on_read[fd]()
                if events & selectors.EVENT_WRITE and fd in self._blocked:
                    self._dirty[self._blocked[fd]] = None

    def run_for(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def close(self) -> None:
        self._selector.close()

    def _flush(self) -> None:
        for out in list(self._dirty):
            if out.flush():
                if self._blocked.pop(out.fd, None) is not None:
                    self._refresh(out.fd)
            elif out.fd not in self._blocked:
                self._blocked[out.fd] = out
                self._refresh(out.fd)
        self._dirty.clear()

    def _refresh(self, fd: int) -> None:
        events = (selectors.EVENT_READ if fd in self._on_read else 0) | (
            selectors.EVENT_WRITE if fd in self._blocked else 0
        )
        known = fd in self._selector.get_map()
        if events and known:
            self._selector.modify(fd, events)
        elif events:
            self._selector.register(fd, events)
        elif known:
            self._selector.unregister(fd)


class Out:
    """What waits to be written to one descriptor that does not block.

    Args:
        write: A gathering write; returns how many bytes it took, raises BlockingIOError when it takes none.
        broken: Called when the other end is gone.
    """

    def __init__(
        self, pump: Pump, fd: int, write: Callable[[Sequence[Part]], int], broken: Callable[[str], None]
    ) -> None:
        self.fd = fd
        self._pump = pump
        self._write = write
        self._broken = broken
        self._waiting: list[Part] = []

    def put(self, *parts: Part) -> None:
        self._waiting += parts
        self._pump.wrote(self)

    def flush(self) -> bool:
        """Write what can be written now. Returns whether nothing is left."""
        while self._waiting:
            batch = self._waiting[:MAX_PARTS]
            try:
                sent = self._write(batch)
            except BlockingIOError:
                return False
            except OSError as error:
                self._waiting.clear()
                self._broken(f"cannot be written to: {error}")
                return True
            gone = 0
            for part in batch:
                if sent < len(part):
                    break
                sent -= len(part)
                gone += 1
            del self._waiting[:gone]
            if sent:
                self._waiting[0] = memoryview(self._waiting[0])[sent:]
        return True
