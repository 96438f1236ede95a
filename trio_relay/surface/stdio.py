"""Bytes in, bytes out, one JSON-RPC message a line: the process's own stdin and stdout.

Knows nothing of JSON. Reading and writing can be cancelled (the SDK's own stdio reads in a thread and cannot),
and nothing else in the process can reach stdout while `take_over_stdio` is active.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import trio

from trio_relay.links.metered import TurnReader

PIPE_BYTES = 1 << 20
"""Asked of Linux for each pipe; with the default of 64 KiB a 10 MB line costs 160 wake-ups on each side."""

READ_BYTES = 65_536
WRITE_BYTES = 65_536
"""Bytes per system call. Lines up to this size are gathered into one write."""


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
        self._stream = trio.lowlevel.FdStream(fd)
        self._reader = TurnReader(self._stream.fileno)
        self.send_all = self._stream.send_all
        self.aclose = self._stream.aclose

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._reader.read(max_bytes or READ_BYTES)


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
