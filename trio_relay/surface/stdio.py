"""Bytes in, bytes out, one JSON-RPC message a line: the process's own stdin and stdout.

Knows nothing of JSON. Reading and writing can be cancelled (the SDK's own stdio reads in a thread and cannot),
and nothing else in the process can reach stdout while `take_over_stdio` is active.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import trio

PIPE_BYTES = 1 << 20
"""Asked of Linux for each pipe; with the default of 64 KiB a 10 MB line costs 160 wake-ups on each side."""

READ_BYTES = 65_536
WRITE_BYTES = 65_536
"""Bytes per system call. Lines up to this size are gathered into one write."""

TURN_S = 0.002
"""How long stdin may be read without a pause while more is always there (a file always has more): the answers to what
was read, and the tabs, get their turn in between."""

MAX_QUEUED = 64 << 20
"""Bytes of answers that may wait for a client that does not read; above it no more requests are read."""


class ByteStream(Protocol):
    """What is needed of a pipe: trio's FdStream has it, and so has a memory stream."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray: ...

    async def send_all(self, data: bytes | bytearray | memoryview) -> None: ...

    async def aclose(self) -> None: ...


class ThreadStream:
    """A blocking descriptor served by threads, where the system cannot wait for pipes (Windows).

    A cancelled read leaves its thread behind; it ends with the process, or takes the next bytes with it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        read = os.read
        return await trio.to_thread.run_sync(read, self._fd, max_bytes or READ_BYTES, abandon_on_cancel=True)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        def write() -> None:
            with memoryview(data) as view:
                sent = 0
                while sent < len(view):
                    sent += os.write(self._fd, view[sent : sent + WRITE_BYTES])

        try:
            await trio.to_thread.run_sync(write, abandon_on_cancel=True)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def aclose(self) -> None:
        with suppress(OSError):
            os.close(self._fd)
        await trio.lowlevel.checkpoint()


class PipeStream:
    """trio's FdStream, reading with one task switch instead of two. POSIX only."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._stream = trio.lowlevel.FdStream(fd)
        self.send_all = self._stream.send_all
        self.aclose = self._stream.aclose
        self._turn_ends = time.perf_counter() + TURN_S

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if time.perf_counter() > self._turn_ends:
            await trio.lowlevel.checkpoint()
            self._turn_ends = time.perf_counter() + TURN_S
        while True:
            try:
                data = os.read(self._fd, max_bytes or READ_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fd)
                self._turn_ends = time.perf_counter() + TURN_S
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
                return data


def open_stream(fd: int) -> ByteStream:
    """The best stream for a descriptor on this system."""
    return ThreadStream(fd) if sys.platform == "win32" else PipeStream(fd)


@contextmanager
def take_over_stdio() -> Iterator[tuple[int, int]]:
    """Move the client's pipes away from descriptors 0 and 1, and hand them back as they were.

    Meanwhile 0 is the null device and 1 goes where stderr goes, so that no print, library or child process can
    write into the protocol. A closed stdin reads as end of file; without a stdout there is nobody to serve.

    Yields:
        The descriptors to read requests from and to write answers to.

    Raises:
        OSError: stdout is closed.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    null = _open_null()
    try:
        stdin = _move_up(0, fallback=null)
        try:
            stdout = _move_up(1)
        except OSError:
            os.close(stdin)
            raise
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # stderr is closed; its number must not go to a socket
            os.dup2(null, 1)
            os.dup2(null, 2)
    finally:
        os.close(null)
    restore = [_enlarge_pipe(fd) for fd in (stdin, stdout)]
    blocking = [_is_blocking(fd) for fd in (stdin, stdout)]
    try:
        yield os.dup(stdin), os.dup(stdout)
    finally:
        for fd, target, undo, was_blocking in zip((stdin, stdout), (0, 1), restore, blocking, strict=True):
            with suppress(OSError):
                undo()  # not while the pipe holds more than its old size
            with suppress(OSError):
                if sys.platform != "win32":
                    os.set_blocking(fd, was_blocking)
                os.dup2(fd, target)
            os.close(fd)


def _open_null() -> int:
    """The null device, at 3 or above: a closed 0, 1 or 2 must not come to life by it."""
    low = os.open(os.devnull, os.O_RDWR)
    if low > 2:
        return low
    try:
        return _move_up(low)
    finally:
        os.close(low)


def _move_up(fd: int, fallback: int | None = None) -> int:
    """A duplicate of `fd` at 3 or above that no child inherits."""
    try:
        os.fstat(fd)
    except OSError:
        if fallback is None:
            raise
        fd = fallback
    if sys.platform == "win32":
        import msvcrt

        up = os.dup(fd)
        msvcrt.setmode(up, os.O_BINARY)  # else a line would end in CR LF
        return up
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _is_blocking(fd: int) -> bool:
    return True if sys.platform == "win32" else os.get_blocking(fd)


def _enlarge_pipe(fd: int) -> Callable[[], None]:
    """Make a pipe larger where that is possible. Returns what undoes it."""
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):
            size = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

            def undo() -> None:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)

            return undo
    return lambda: None


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
