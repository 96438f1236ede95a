"""A message channel to an extension, whatever carries it: what a `chrome.runtime` port is to a page.

`extensions/` speaks MCP over these. Ours are tunnelled through the browser extension (`links/tunnel.py`); an embedder
may bring another carrier, and tests use `links.memory_port.port_pair`.
"""

from __future__ import annotations

from typing import Protocol

from trio_relay.core.probe import Silence


class PortClosed(Exception):
    """The port is closed, by either end or because its carrier is gone. `reason` says why, in words."""

    def __init__(self, reason: str = "the port is closed") -> None:
        super().__init__(reason)
        self.reason = reason


class Unanswered(Exception):
    """A probe without an answer. `kind` leads to a row of the state table, `message` is the browser's own."""

    def __init__(self, kind: Silence, message: str = "") -> None:
        super().__init__(message or kind.value)
        self.kind = kind
        self.message = message


class Port(Protocol):
    """Messages in order, each way. One task may send and another receive; closing is for anybody."""

    @property
    def extension_id(self) -> str:
        """The extension at the other end, as the browser says."""

    async def send(self, message: bytes) -> None:
        """Send one JSON text. Waits while the other end takes nothing. Raises `PortClosed`."""

    async def receive(self) -> bytes:
        """The next JSON text. Raises `PortClosed`; what arrived before the end is handed out first."""

    def close(self, error: str | None = None) -> None:
        """Close it at once, without waiting. `error` tells the other end that it was not on purpose. Idempotent."""


class Carrier(Protocol):
    """Reaches extensions: one browser with our extension in it."""

    async def probe(self, extension_id: str, message: bytes, timeout: float) -> bytes:
        """Send a message to an extension and return its answer, a JSON text.

        Raises:
            Unanswered: also when `timeout` seconds are over, or the carrier is gone.
        """

    async def open_port(self, extension_id: str, name: str) -> Port:
        """Connect to an extension. Raises `PortClosed` if it refuses, has no listener, or the carrier is gone."""
