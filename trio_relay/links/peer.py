"""A link to a relay server: joining it, noticing when it is silent. The client half of `webmcp-relay.v1`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import trio
from trio_websocket import ConnectionClosed

from trio_relay.errors import innermost
from trio_relay.links.outbox import Outbox
from trio_relay.links.socket import Closed, Socket, connect
from trio_relay.wire import peer
from trio_relay.wire.browser import PROTOCOL_VERSION, SERVICE_NAMES
from trio_relay.wire.codec import Malformed

logger = logging.getLogger(__name__)

PING_S = 15.0
SILENT_S = 25.0
"""Between pings, and without any sign of life before a server is lost; the heartbeat of browser sockets."""


class NotJoined(Exception):
    """There is no relay to join on this port.

    Attributes:
        free: Nobody listens there.
        silent: Somebody listens but says nothing: a frozen relay, perhaps.
    """

    def __init__(self, reason: str, *, free: bool = False, silent: bool = False) -> None:
        super().__init__(reason)
        self.free = free
        self.silent = silent


class PeerLink:
    """An open link. `first` is the server's tools frame that proved it; `attach` gets everything after."""

    def __init__(self, socket: Socket, port: int, first: peer.Tools) -> None:
        self.socket = socket
        self.port = port
        self.first = first
        self.outbox = Outbox(socket)
        self._verdict: Closed | None = None

    async def run(
        self, deliver: Callable[[peer.ServerFrame], None], unreadable: Callable[[bytes, str], None]
    ) -> Closed:
        """Hand the server's frames to `deliver` (or to `unreadable`, with the reason) until the link is lost.

        Returns:
            How it was lost.
        """

        def message(data: bytes) -> None:
            try:
                deliver(peer.decode_server_frame(data))
            except Malformed as error:
                unreadable(data, str(error))
            except Exception as error:  # the connection boundary of this end: a fault costs the link, not the program
                logger.error("a frame of the relay server could not be handled: %s: %s", type(error).__name__, error)
                logger.debug("details", exc_info=error)
                self._verdict = Closed(1002, "a frame that could not be handled", ours=True)
                self.socket.ended.set()

        closed: Closed | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.outbox.run)
                nursery.start_soon(self._watch_life)
                self.socket.attach(message)
                await self.socket.ended.wait()
                raise self._verdict or self.socket.why_closed()
        except* Closed as group:
            error = innermost(group)
            assert isinstance(error, Closed)
            closed = error
        finally:
            self.socket.detach()
        assert closed is not None
        return closed

    async def _watch_life(self) -> None:
        """Ping, and give the server up after `SILENT_S` without a byte."""
        async with trio.open_nursery() as nursery:
            while True:
                ring = min(trio.current_time() + PING_S, self.socket.last_life + SILENT_S)
                await trio.sleep_until(ring)
                now = trio.current_time()
                if now - ring > 1:  # we were not running: silence proves nothing
                    self.socket.metered.last_life = now
                elif now >= self.socket.last_life + SILENT_S:
                    raise Closed(1006, f"the relay server gave no sign of life for {SILENT_S:g} s", ours=True)
                nursery.start_soon(_ping, self.socket)


async def _ping(socket: Socket) -> None:
    # A closed socket is for those who wait for it to notice.
    with trio.move_on_after(PING_S), suppress(ConnectionClosed):
        await socket.ping()


WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to find a relay that is bound to every address."""


@asynccontextmanager
async def join(host: str, port: int, *, max_payload: int, patience: float) -> AsyncIterator[PeerLink]:
    """Join the relay on a port.

    Args:
        host: Where it is bound; one that is bound to every address is reached through loopback.
        patience: Seconds in which it must have proved to be a relay.

    Raises:
        NotJoined: saying what was expected and what came.
    """
    limit = max_payload + peer.ENVELOPE_BYTES
    offered = (peer.SUBPROTOCOL, "webmcp.v1")
    joined = False
    try:
        with trio.CancelScope(deadline=trio.current_time() + patience) as scope:
            async with connect(WILDCARDS.get(host, host), port, subprotocols=offered, max_message=limit) as socket:
                try:
                    await socket.send(peer.hello(limit))
                    await socket.send(peer.LIST_TOOLS)
                    first = await _first_tools(socket)
                except BaseException:
                    socket.abandon()  # a stranger may not know how to close
                    raise
                scope.deadline = float("inf")
                joined = True
                yield PeerLink(socket, port, first)
    except ConnectionRefusedError:
        raise NotJoined("nobody listens", free=True) from None
    except OSError as error:
        if joined:
            raise
        raise NotJoined(f"cannot connect: {error.strerror or error}", free=True) from None
    except Closed as closed:
        if joined:
            raise
        raise NotJoined(f"expected a WebMCP relay, but {closed.reason or closed}") from None
    if scope.cancelled_caught and not joined:
        raise NotJoined(f"expected a WebMCP relay, but it said nothing for {patience:g} s", silent=True)


async def _first_tools(socket: Socket) -> peer.Tools:
    """Wait for the frame that proves a relay. Raises `Closed` with what came instead."""
    while True:
        data = await socket.receive()
        try:
            frame = peer.decode_server_frame(data)
        except Malformed:
            shown = data[:80].decode(errors="replace")
            raise Closed(1002, f"it sent {shown!r}", ours=True) from None
        if isinstance(frame, peer.Tools):
            return frame
        if isinstance(frame, peer.ServerHello):
            if frame.service not in SERVICE_NAMES:
                raise Closed(1002, f"it is the service {frame.service[:60]!r}", ours=True)
            if frame.version not in (None, PROTOCOL_VERSION):
                raise Closed(1002, f"it speaks version {frame.version!r} of the protocol", ours=True)
