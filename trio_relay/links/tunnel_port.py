"""One port in a tunnel: its own queue, so that a reader that takes nothing costs nobody else."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio

from trio_relay.core.port import PortClosed, Unanswered
from trio_relay.core.probe import Silence
from trio_relay.core.tunnel import response_of
from trio_relay.wire import ports

MAX_MESSAGES = 1_024
MAX_BYTES = 4 << 20
"""What may wait to be received (one longer message may, alone). Many small ones come in one read of the socket, before
any reader has had its turn, so their number says little."""


class Line(Protocol):
    """What a port needs of its tunnel."""

    max_payload: int

    async def room(self) -> None: ...

    def post(self, frame: bytes) -> None: ...

    def forget(self, port: TunnelPort) -> None: ...


class TunnelPort:
    """Implements `core.port.Port`.

    Attributes:
        port_id: In the frames.
        settled: Set once the port is open or will never be.
    """

    def __init__(self, line: Line, port_id: str, extension_id: str) -> None:
        self.port_id = port_id
        self.settled = trio.Event()
        self._line = line
        self._extension_id = extension_id
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._changed = trio.Event()
        self._senders: set[trio.CancelScope] = set()
        self._reason: str | None = None

    def __repr__(self) -> str:
        return f"<TunnelPort {self.port_id} {self._extension_id}: {self._reason or 'open'}>"

    @property
    def extension_id(self) -> str:
        return self._extension_id

    async def send(self, message: bytes) -> None:
        self.require_open()
        with trio.CancelScope() as scope:
            self._senders.add(scope)
            try:
                await self._line.room()
            finally:
                self._senders.discard(scope)
        self.require_open()
        frame = ports.port_message(self.port_id, message)
        if len(frame) > self._line.max_payload:
            self.close(f"a message of {len(message)} bytes is larger than the tunnel takes (--max-payload)")
            self.require_open()
        self._line.post(frame)

    async def receive(self) -> bytes:
        # No checkpoint where something is there: a burst must not outrun a reader that wants it.
        while not self._queue:
            self.require_open()
            self._changed = trio.Event()
            await self._changed.wait()
        message = self._queue.popleft()
        self._queued -= len(message)
        return message

    def close(self, error: str | None = None) -> None:
        if self._reason is None:
            self.end(error or "the port was closed here")
            self._line.post(ports.port_close(self.port_id, error))
        self._queue.clear()

    # -- what the tunnel tells

    def deliver(self, message: bytes) -> None:
        """A message has come."""
        full = len(self._queue) >= MAX_MESSAGES or self._queued + len(message) > MAX_BYTES
        if self._queue and full:
            self.close("the messages of this port are not taken, and too many wait")
            return
        self._queue.append(message)
        self._queued += len(message)
        self._changed.set()

    def end(self, reason: str) -> None:
        """The port is closed, and the other end knows. What has come before can still be received."""
        if self._reason is not None:
            return
        self._reason = reason
        self._line.forget(self)
        for scope in self._senders:
            scope.cancel()
        self._changed.set()
        self.settled.set()

    def require_open(self) -> None:
        """Raise `PortClosed` if the port is closed."""
        if self._reason is not None:
            raise PortClosed(self._reason)


class Question:
    """A probe of ours that waits for its answer."""

    def __init__(self) -> None:
        self.settled = trio.Event()
        self._outcome: ports.ProbeResponse | Unanswered | None = None

    def answer(self, outcome: ports.ProbeResponse | Unanswered) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self.settled.set()

    def response(self, timeout: float) -> bytes:
        if self._outcome is None:
            raise Unanswered(Silence.TIMEOUT, f"There was no answer within {timeout * 1000:.0f} ms.")
        if isinstance(self._outcome, Unanswered):
            raise self._outcome
        return response_of(self._outcome)
