"""Lines over byte streams: reading them in linear time, writing them whole and in order. Knows nothing of JSON."""

from __future__ import annotations

import os
import stat
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable

import trio

from trio_relay.surface.stdio import READ_BYTES, WRITE_BYTES, ByteStream

MAX_QUEUED = 64 << 20
"""Bytes of answers that may wait for a client that does not read; above it no more requests are read."""


class TooLong:
    """Stands for a line above the limit; its bytes were dropped."""


async def read_lines(stream: ByteStream, limit: int) -> AsyncGenerator[bytes | TooLong, None]:
    """Yield lines without their line end until end of file; time grows linearly with the bytes.

    A last line without a line end counts. One above `limit` bytes comes as `TooLong`, once its end is read.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            chunk = bytes(await stream.receive_some(READ_BYTES))
        except (trio.BrokenResourceError, OSError):
            chunk = b""
        if not chunk:
            break
        at = 0
        while (end := chunk.find(b"\n", at)) >= 0:
            size += end - at
            if size <= limit:
                parts.append(chunk[at:end])
                yield b"".join(parts)
            else:
                yield TooLong()
            parts, size, at = [], 0, end + 1
        size += len(chunk) - at
        if size > limit:
            parts = []
        elif at < len(chunk):
            parts.append(chunk[at:])
    if size > limit:
        yield TooLong()
    elif parts:
        yield b"".join(parts)


class _Line:
    __slots__ = ("data", "done", "wanted")

    def __init__(self, data: bytes | memoryview, wanted: Callable[[], bool] | None) -> None:
        self.data = data
        self.wanted = wanted
        self.done = trio.Event()


def _unread_bytes(fd: int) -> int:
    """What waits at the other end of a pipe or socket pair we write to; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import fcntl
    import termios

    try:
        mode = os.fstat(fd).st_mode
        # TypeScript clients hand socket pairs to their servers, Python ones pipes.
        if stat.S_ISSOCK(mode):
            answer = fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0")
        elif stat.S_ISFIFO(mode):
            answer = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
        else:
            return 0
    except OSError:
        return 0
    return int.from_bytes(answer, sys.byteorder)


class LineWriter:
    """The only writer of stdout. Lines go out whole, in order, however many tasks write.

    Args:
        fd: If given, a line is first tried as one immediate write, which saves two task switches; it must be
            the stream's own, non-blocking descriptor.
    """

    def __init__(self, stream: ByteStream, fd: int | None = None) -> None:
        self._stream = stream
        self._fd = fd
        self._queue: deque[_Line] = deque()
        self._filled = trio.Event()
        self._busy = False
        self._queued = 0
        self._drained = trio.Event()
        self.broken = False

    async def write(self, line: bytes, wanted: Callable[[], bool] | None = None) -> bool:
        """Write one line (with its LF) and return once it is out.

        Args:
            wanted: Asked just before the line is written; if it says no, the line is dropped.

        Returns:
            Whether the line was written.

        Raises:
            trio.BrokenResourceError: nobody reads stdout any more.
        """
        if self.broken:
            raise trio.BrokenResourceError("stdout is closed")
        if not self._busy and not self._queue:
            if wanted is not None and not wanted():
                return False
            rest = self._write_now(line)
            if not rest:
                return True
            item = _Line(rest, wanted if len(rest) == len(line) else None)
        else:
            item = _Line(line, wanted)
        self._queue.append(item)
        self._queued += len(item.data)
        self._filled.set()
        await item.done.wait()
        if self.broken:
            raise trio.BrokenResourceError("stdout is closed")
        return len(item.data) > 0

    def post(self, line: bytes, wanted: Callable[[], bool] | None = None) -> None:
        """Have a line written, together with those that come in the same moment. See `write`; `flushed` waits for it.

        Raises:
            trio.BrokenResourceError: nobody reads stdout any more.
        """
        if self.broken:
            raise trio.BrokenResourceError("stdout is closed")
        self._queue.append(_Line(line, wanted))
        self._queued += len(line)
        self._filled.set()

    async def flushed(self) -> None:
        """Return once all lines are out, or can no longer be written."""
        while (self._queue or self._busy) and not self.broken:
            self._drained = trio.Event()
            await self._drained.wait()

    def _write_now(self, line: bytes) -> memoryview:
        """Write as much as goes without waiting; returns the rest."""
        view = memoryview(line)
        if self._fd is None:
            return view
        try:
            sent = os.write(self._fd, line)
        except BlockingIOError:
            return view
        except OSError:
            self.broken = True
            raise trio.BrokenResourceError("stdout is closed") from None
        return view[sent:]

    def has_unread(self) -> bool:
        """Whether the client has yet to read some of what is out. False where the system does not tell."""
        return self._fd is not None and _unread_bytes(self._fd) > 0

    async def wait_room(self) -> None:
        """Return once a client that does not read has at most `MAX_QUEUED` bytes waiting."""
        while self._queued > MAX_QUEUED and not self.broken:
            self._drained = trio.Event()
            await self._drained.wait()

    async def run(self) -> None:
        """The writer task. Returns when stdout is broken; once it has ended, nothing more goes out."""
        batch: list[_Line] = []
        try:
            while True:
                while not self._queue:
                    self._filled = trio.Event()
                    await self._filled.wait()
                batch = self._take()
                self._busy = True
                data = batch[0].data if len(batch) == 1 else b"".join(item.data for item in batch)
                if data:
                    await self._stream.send_all(data)
                self._busy = False
                for item in batch:
                    self._queued -= len(item.data)
                    item.done.set()
                self._drained.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        finally:
            self.broken = True
            for item in (*batch, *self._queue):
                item.done.set()
            self._drained.set()

    def _take(self) -> list[_Line]:
        """The next lines to write together. The first part of a line that has begun is always first."""
        batch: list[_Line] = []
        size = 0
        while self._queue and (not batch or size + len(self._queue[0].data) <= WRITE_BYTES):
            item = self._queue.popleft()
            if item.wanted is not None and not item.wanted():
                self._queued -= len(item.data)
                item.data = b""
            size += len(item.data)
            batch.append(item)
        return batch
