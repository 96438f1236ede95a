"""Two ports joined in memory: for tests, and for embedders that bring both ends of the extension protocol."""

from __future__ import annotations

import trio

from trio_relay.core.port import PortClosed

QUEUE = 64
"""Messages one end may be ahead of the other before it waits."""


class MemoryPort:
    """One end of a pair. Implements `core.port.Port`."""

    def __init__(
        self,
        extension_id: str,
        send: trio.MemorySendChannel[bytes],
        receive: trio.MemoryReceiveChannel[bytes],
    ) -> None:
        self._extension_id = extension_id
        self._send = send
        self._receive = receive
        self._other: MemoryPort | None = None
        self._reason: str | None = None

    @property
    def extension_id(self) -> str:
        return self._extension_id

    async def send(self, message: bytes) -> None:
        try:
            await self._send.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise PortClosed(self._why()) from None

    async def receive(self) -> bytes:
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise PortClosed(self._why()) from None

    def close(self, error: str | None = None) -> None:
        if self._reason is None:
            self._reason = error or "the port was closed here"
            if self._other is not None and self._other._reason is None:
                self._other._reason = error or "the other end closed the port"
        self._send.close()
        self._receive.close()

    def _why(self) -> str:
        return self._reason or "the port is closed"


def port_pair(ours: str, theirs: str) -> tuple[MemoryPort, MemoryPort]:
    """Two joined ports between two extensions: the end that `ours` holds, and the end that `theirs` holds."""
    to_theirs, from_ours = trio.open_memory_channel[bytes](QUEUE)
    to_ours, from_theirs = trio.open_memory_channel[bytes](QUEUE)
    first, second = MemoryPort(theirs, to_theirs, from_theirs), MemoryPort(ours, to_ours, from_ours)
    first._other, second._other = second, first
    return first, second
