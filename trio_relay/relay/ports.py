"""Which ports a relay tries, in which order, and the file that remembers the last one."""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio

from trio_relay.config import DEFAULT_PORT, DISCOVERY_PORTS

logger = logging.getLogger(__name__)

CACHE_AGE = timedelta(hours=24)
"""How long a remembered port counts; a number of the port strategy."""

TURN_S = 10.0
TAKEOVER_TURN_S = 0.5
TURN_LOOK_S = 0.01
"""Seconds a start waits for its turn, a takeover does, and between looks. A turn takes some milliseconds, or a few
seconds beside strangers; a takeover all but always binds one known port, and tabs are waiting."""


class PortCache:
    """`~/.webmcp/relay-port.json`, shared with other relay programs: `{"port", "host", "updatedAt"}`.

    A home that cannot be read or written costs the memory, nothing else.

    Args:
        path: None where there is no home directory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def turn(self, *, takeover: bool = False) -> StartTurn:
        """The lock beside the cache file."""
        path = None if self._path is None else self._path.with_name("relay.lock")
        return StartTurn(path, TAKEOVER_TURN_S if takeover else TURN_S)

    def read(self, host: str, now: datetime | None = None) -> int | None:
        """The port of a relay on `host` within the last 24 h, if it is in the discovery range."""
        if self._path is None:
            return None
        try:
            entry = json.loads(self._path.read_bytes())
            port, written = entry["port"], datetime.fromisoformat(entry["updatedAt"])
            fresh = timedelta() <= (now or datetime.now(UTC)) - written < CACHE_AGE
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        usable = isinstance(port, int) and not isinstance(port, bool) and port in DISCOVERY_PORTS
        return port if usable and fresh and entry.get("host") == host else None

    def write(self, host: str, port: int) -> None:
        """Remember a port of the discovery range, atomically: readers see the old entry or the new one."""
        if self._path is None or port not in DISCOVERY_PORTS:
            return
        entry = {"port": port, "host": host, "updatedAt": datetime.now(UTC).isoformat()}
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(entry))
            temporary.replace(self._path)
        except OSError as error:
            logger.debug("the port is not remembered: %s", error)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


class StartTurn:
    """One relay of a person at a time looks for a port: a lock on `~/.webmcp/relay.lock`, held for moments.

    Two that look at once could each find the other's port silent, and split the browser between two servers. The lock
    dies with its process; whoever cannot have it in time (a frozen holder), or at all (no home, Windows), goes on.
    """

    def __init__(self, path: Path | None, patience: float) -> None:
        self._path = path
        self._patience = patience
        self._fd: int | None = None

    async def __aenter__(self) -> None:
        if self._path is None or sys.platform == "win32":
            return
        import fcntl

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            logger.debug("starts do not take turns: %s", error)
            return
        with trio.move_on_after(self._patience):
            while True:
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    await trio.sleep(TURN_LOOK_S)
                else:
                    return

    async def __aexit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)  # and the lock with it
            self._fd = None


def candidates(port: int | None, cached: int | None, last: int | None = None, first: int = DEFAULT_PORT) -> list[int]:
    """Ports to try, best first.

    Args:
        port: Chosen by the user; then it is the only candidate.
        cached: From the cache file.
        last: The port of the server this process was a client of.
        first: Where the search begins when nothing is known.
    """
    if port is not None:
        return [port]
    best = [candidate for candidate in (last, cached, first) if candidate is not None]
    return list(dict.fromkeys([*best, *DISCOVERY_PORTS]))
