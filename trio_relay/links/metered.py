"""The byte stream under a WebSocket: knows when the peer last showed life, and whether a frame has been cut."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import trio

RECEIVE_BYTES = 65_536
"""Bytes asked of the kernel at once. trio_websocket's own 4 KiB doubles the time of a large message; above 64 KiB
an allocation becomes a system call."""

SEND_CHUNK = 65_536
"""Bytes handed to the kernel at once, so that a slow reader shows as progress rather than as one long wait."""

SEND_BUFFER = 131_072
"""Kernel send buffer in bytes. Small, so that what has left it has nearly reached the peer: with the kernel's own
choice of some megabytes, a tab that reads 50 KB/s looks dead for a minute."""

TURN_S = 0.002
"""How long one stream may be read without a pause while more is always there. Reading what has come already costs no
task switch, so a peer that never stops sending would otherwise stop everybody else."""

LINGER_S = 2.0
"""How long a peer that broke a limit may go on sending before its socket is closed under it. Closing at once would
reset the connection and destroy the close frame that explains why."""


class TurnReader:
    """Reads a non-blocking descriptor with one task switch where trio takes two, in turns of `TURN_S`. POSIX only.

    Args:
        fileno: Asked before each read, as the descriptor may have been closed and its number given away.
    """

    def __init__(self, fileno: Callable[[], int]) -> None:
        self._fileno = fileno
        self._turn_ends = time.perf_counter() + TURN_S

    async def read(self, max_bytes: int) -> bytes:
        """The next bytes; b"" at the end. Raises OSError."""
        if time.perf_counter() > self._turn_ends:
            await trio.lowlevel.checkpoint()
            self._turn_ends = time.perf_counter() + TURN_S
        while True:
            try:
                data = os.read(self._fileno(), max_bytes)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fileno())
                self._turn_ends = time.perf_counter() + TURN_S
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
                return data


class MeteredStream(trio.abc.Stream):
    """A TCP stream that remembers when the peer last showed life, and can send at once what the kernel takes.

    The only writer of its socket: `send_now` and `send_all` never mix their bytes.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._lock = trio.Lock()
        self._rest: bytes | memoryview = b""  # of a frame that has begun
        self._sending = False
        self._reader = TurnReader(stream.socket.fileno)
        self.last_life = trio.current_time()
        self.linger = False
        # Fails if the peer is gone already; the first read will say so.
        with suppress(OSError):
            stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, SEND_BUFFER)

    @property
    def cut(self) -> bool:
        """Whether a frame has begun and whoever wrote it was cancelled: nothing can be sent any more."""
        return self._sending and not self._lock.locked()

    @property
    def has_rest(self) -> bool:
        """Whether `send_now` has left something for `send_all`."""
        return len(self._rest) > 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._receive(max_bytes or RECEIVE_BYTES)
        self.last_life = trio.current_time()
        return data

    async def _receive(self, max_bytes: int) -> bytes | bytearray:
        """trio's `receive_some` without its wrappers, which cost as much as the rest of a small message."""
        if sys.platform == "win32":
            return await self._stream.receive_some(max_bytes)
        try:
            return await self._reader.read(max_bytes)
        except OSError as error:
            raise trio.BrokenResourceError from error

    def takes_now(self) -> bool:
        """Whether the kernel has room; then it is a third of `SEND_BUFFER` at least. False on Windows."""
        if sys.platform == "win32" or self._sending or self._rest:
            return False
        poll = select.poll()
        poll.register(self._stream.socket.fileno(), select.POLLOUT)
        return any(event & select.POLLOUT for _, event in poll.poll(0))

    def send_now(self, data: bytes) -> bool:
        """Send a small frame without waiting, if nothing is on its way.

        Returns:
            False if it was not even begun. If the kernel took only a part, the rest goes out first in `send_all`.
        """
        if sys.platform == "win32" or self._sending or self._rest or self._lock.locked() or len(data) > SEND_CHUNK:
            return False
        try:
            sent = os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the peer is gone; the reader will say so
        self._rest = data[sent:]
        return True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        async with self._lock:
            if self._sending:
                await trio.aclose_forcefully(self._stream)
                raise trio.BrokenResourceError("a frame was cut: the peer would take this for the rest of it")
            self._sending = True
            if self._rest:
                await self._stream.send_all(self._rest)
                self._rest = b""
            if len(data) <= SEND_CHUNK:
                # The kernel takes this much from anyone, alive or not: no sign of life.
                await self._stream.send_all(data)
            else:
                with memoryview(data) as view:
                    for start in range(0, len(view), SEND_CHUNK):
                        await self._stream.send_all(view[start : start + SEND_CHUNK])
                        self.last_life = trio.current_time()
            self._sending = False

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        try:
            if self.linger:
                self.linger = False
                with trio.move_on_after(LINGER_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._stream.send_eof()
                    while await self._stream.receive_some(RECEIVE_BYTES):
                        pass
        finally:
            await self._stream.aclose()
