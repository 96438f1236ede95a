"""Files that only their owner can read, written whole or not at all, by one process at a time.

Everything here blocks, for some milliseconds as a rule and `PATIENCE_S` at most: call it from a thread where that
matters.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE_S = 1.0
LOOK_S = 0.002
"""Seconds a process waits for a lock, and between looks. A lock is held for some milliseconds; a holder that is frozen
must not freeze the others."""


def make_private_directory(path: Path) -> None:
    """Create a directory (and its parents) with mode 0700, and give it that mode if it has another. Raises `OSError`.

    Only the last part of the path is changed: `~/.webmcp` is shared with other programs.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_mode & 0o777 != 0o700:
        path.chmod(0o700)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file, atomically and with mode 0600: readers see all of the old content or all of the new.

    Raises:
        OSError: nothing has changed.
    """
    make_private_directory(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        _write_new(temporary, data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def create_private(path: Path, data: bytes) -> None:
    """Create a file with mode 0600 unless there is one: of several processes, one wins, and none sees a part of it.

    Raises:
        OSError: there is no such file, or none that we made.
    """
    make_private_directory(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        _write_new(temporary, data)
        with suppress(FileExistsError):
            if sys.platform == "win32":
                temporary.rename(path)
            else:
                os.link(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_all(fd: int, data: bytes) -> None:
    """Write in one piece. Raises `OSError` when not all of it fits; what was written then stays."""
    if os.write(fd, data) != len(data):
        raise OSError("the disk took only a part of it")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` (created with mode 0600, never removed; the lock dies with its process).

    Raises:
        TimeoutError: another process has held it for `PATIENCE_S`.
        OSError: the file cannot be created.
    """
    make_private_directory(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        _lock(fd, path)
        yield
    finally:
        os.close(fd)  # and the lock with it


def _lock(fd: int, path: Path) -> None:
    if sys.platform == "win32":
        import msvcrt

        def attempt() -> None:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        def attempt() -> None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            attempt()
        except OSError:
            if time.monotonic() >= give_up:
                raise TimeoutError(f"another process holds {path.name}") from None
            time.sleep(LOOK_S)
        else:
            return


def _write_new(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
