"""A WebSocket whose messages are bytes, with exact limits and a sense of life: our adapter to trio_websocket.

What trio_websocket 0.12 does not offer, and this adapter adds:

* its message limit counts characters of decoded text, so 10 MB of three-byte characters pass as 3.3 MB;
* it decodes text that we would only encode again;
* a peer that breaks the protocol gets no close frame (1002, 1003, 1007), and one that sends too much may see
  a TCP reset instead of 1009, because the socket is closed while its data is still arriving;
* it never tells when bytes arrive or leave, and a tab that is slow, not dead, must not be cut.

It uses the class's constructor with a `WSConnection` and a stream of our own, and three non-public names,
`_reader_task`, `_get_request` and `_handle_request_event`; pyproject.toml pins the version for that reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, WebSocketRequest
from wsproto import ConnectionType
from wsproto.events import BytesMessage, Request

from trio_relay.links.metered import LINGER_S, RECEIVE_BYTES, SEND_CHUNK, MeteredStream
from trio_relay.links.text_frames import TextFrames

__all__ = ["Closed", "Socket", "connect", "handshake", "single_errors"]

HANDSHAKE_S = 5.0
CLOSE_S = 1.0
"""Seconds a peer has for the opening and for the closing handshake."""


class Closed(Exception):
    """The socket is closed. `code` and `reason` say how; `ours` whether this end decided it."""

    def __init__(self, code: int, reason: str, *, ours: bool) -> None:
        super().__init__(f"{code} {reason}".strip())
        self.code = code
        self.reason = reason
        self.ours = ours


class Socket(WebSocketConnection):
    """An open WebSocket. Its reader runs in `run`, one other task writes, and closing is for its owner.

    Attributes:
        ended: Set as soon as the peer has closed, vanished or broken the protocol.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        kind: ConnectionType,
        *,
        max_message: int,
        host: str | None = None,
        path: str | None = None,
        subprotocols: tuple[str, ...] = (),
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.frames = TextFrames(kind, max_message=max_message, on_message=self._message, on_close=self._peer_closed)
        self.metered = MeteredStream(stream)
        self.ended = trio.Event()
        self._deliver: Callable[[bytes], None] | None = None
        self._inbox: deque[bytes] = deque()
        self._arrived = trio.Event()
        self._reader_done = trio.Event()
        self._abandoned = False
        self._reader_scope = trio.CancelScope(shield=True)
        self._we_closed: tuple[int, str] | None = None
        super().__init__(
            self.metered,
            self.frames,
            host=host,
            path=path,
            client_subprotocols=subprotocols,
            client_extra_headers=list(headers),
            max_message_size=max_message,
            receive_buffer_size=RECEIVE_BYTES,
        )

    @property
    def last_life(self) -> float:
        """trio time at which the peer last showed life: it sent bytes, or took some of a large message."""
        return self.metered.last_life

    def attach(self, deliver: Callable[[bytes], None]) -> None:
        """From now on hand each message to `deliver`, in the reader task; first what has come already."""
        while self._inbox:
            deliver(self._inbox.popleft())
        self._deliver = deliver

    def detach(self) -> None:
        """From now on drop messages. While a closing handshake waits for the peer, the reader still hears it."""
        self._deliver = _drop

    async def receive(self) -> bytes:
        """The next message, valid UTF-8, of a socket nothing is attached to.

        Raises:
            Closed: by either end, for whatever reason.
        """
        while not self._inbox:
            if self.ended.is_set():
                raise self.why_closed()
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._inbox.popleft()

    def send_now(self, message: bytes) -> bool:
        """Send a message at once if that needs no waiting. False if it was not begun.

        Afterwards `send` (or `flush`) must run soon: the kernel may have taken only a part.
        """
        if self.closed is not None or len(message) > SEND_CHUNK:
            return False
        return self.metered.send_now(self.frames.send(BytesMessage(data=message)))

    @property
    def needs_flush(self) -> bool:
        return self.metered.has_rest

    async def flush(self) -> None:
        """Write what `send_now` has left. Raises `Closed` like `send`."""
        try:
            await self.metered.send_all(b"")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise self.why_closed() from None

    async def send(self, message: bytes) -> None:
        """Write one text message. Only the writer task may call this; cancelling it leaves half a frame.

        Raises:
            Closed: the peer is gone.
        """
        try:
            await self.send_message(message)
        except ConnectionClosed:
            raise self.why_closed() from None

    def takes_now(self) -> bool:
        """Whether the kernel has room for some kilobytes. False where that cannot be told without waiting."""
        return self.metered.takes_now()

    async def send_together(self, messages: list[bytes]) -> None:
        """Write several text messages with one system call, where the kernel has room; see `send`."""
        if len(messages) == 1:
            await self.send(messages[0])
        elif messages:
            if self.closed is not None:
                raise self.why_closed()
            try:
                await self.metered.send_all(b"".join(self.frames.send(BytesMessage(data=data)) for data in messages))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise self.why_closed() from None

    async def close(self, code: int, reason: str = "") -> None:
        """Send a close frame and wait at most a second for the peer's; then the socket is gone either way."""
        if self._we_closed is None and not self.ended.is_set():
            self._we_closed = (code, reason)
        if self.metered.cut or self._abandoned:
            # A close frame would be read as the missing part of the frame that was cut.
            await trio.aclose_forcefully(self.metered)
        else:
            with trio.move_on_after(CLOSE_S):
                await self.aclose(code, reason)
        if self.ended.is_set():  # the reader answers the peer's close, or explains its fault
            with trio.move_on_after(CLOSE_S if self.frames.fault is None else LINGER_S):
                await self._reader_done.wait()

    def abandon(self) -> None:
        """Close without a closing handshake, when the time comes: this peer is not worth waiting for."""
        self._abandoned = True

    def why_closed(self) -> Closed:
        if self.frames.fault is not None:
            return Closed(self.frames.fault.code, self.frames.fault.reason, ours=True)
        if self._we_closed is not None:
            return Closed(*self._we_closed, ours=True)
        return Closed(*(self.frames.peer_close or (1006, "connection lost")), ours=False)

    def _message(self, message: bytes) -> None:
        if self._deliver is not None:
            self._deliver(message)
        else:
            self._inbox.append(message)
            self._arrived.set()

    def _peer_closed(self) -> None:
        self.metered.linger = self.frames.fault is not None
        self._end()

    def _end(self) -> None:
        self.ended.set()
        self._arrived.set()

    async def run(self, scope: trio.CancelScope) -> None:
        """The reader task. A connection that ends before its handshake cancels `scope`.

        Shielded: a closing handshake needs a reader, also when the reason for it is that all is cancelled. `stop`
        ends it.
        """
        try:
            with self._reader_scope:
                await self._reader_task()
        finally:
            self._reader_done.set()
            self._end()
        if not self._open_handshake.is_set():
            scope.cancel()

    def stop(self) -> None:
        """End the reader; the socket is of no use afterwards."""
        self._reader_scope.cancel()

    async def _handle_request_event(self, event: Request) -> None:
        """Read on only after the request was accepted: frames may have come along with it, and are next."""
        await super()._handle_request_event(event)
        await self._open_handshake.wait()

    async def get_request(self) -> WebSocketRequest:
        """The client's HTTP request, once."""
        return await self._get_request()

    async def wait_open(self) -> None:
        await self._open_handshake.wait()


def _drop(message: bytes) -> None:
    """What comes after the end concerns nobody."""


@contextmanager
def single_errors() -> Iterator[None]:
    """Let the one error of a nursery through as itself: the body of a `with` block is where it came from."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


@asynccontextmanager
async def handshake(stream: trio.SocketStream, *, max_message: int) -> AsyncIterator[tuple[Socket, WebSocketRequest]]:
    """Serve one TCP connection: yields once the HTTP request is there, to be accepted or rejected.

    On exit the socket is closed, within `CLOSE_S` (`LINGER_S` after a fault) whatever the peer does.

    Raises:
        Closed: no valid WebSocket request came within `HANDSHAKE_S`.
    """
    socket = Socket(stream, ConnectionType.SERVER, max_message=max_message)
    request: WebSocketRequest | None = None
    try:
        with single_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(socket.run, nursery.cancel_scope)
                try:
                    with trio.move_on_after(HANDSHAKE_S):
                        request = await socket.get_request()
                    if request is not None:
                        try:
                            yield socket, request
                        finally:
                            with trio.CancelScope(shield=True):
                                await socket.close(1001, "going away")
                finally:
                    socket.stop()
    finally:
        await trio.aclose_forcefully(stream)
    if request is None:
        raise Closed(1002, "no WebSocket handshake", ours=True)


@asynccontextmanager
async def connect(
    host: str,
    port: int,
    *,
    subprotocols: tuple[str, ...],
    origin: str | None = None,
    max_message: int,
) -> AsyncIterator[Socket]:
    """Open a WebSocket to a relay.

    Raises:
        OSError: nobody listens there.
        Closed: what listens there is no WebSocket server, or refused.
    """
    stream = await trio.open_tcp_stream(host, port)
    socket = Socket(
        stream,
        ConnectionType.CLIENT,
        max_message=max_message,
        host=f"{host}:{port}",
        path="/",
        subprotocols=subprotocols,
        headers=() if origin is None else ((b"Origin", origin.encode()),),
    )
    opened = False
    try:
        with single_errors():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(socket.run, nursery.cancel_scope)
                try:
                    await socket.wait_open()
                    opened = True
                    try:
                        yield socket
                    finally:
                        with trio.CancelScope(shield=True):
                            await socket.close(1000)
                finally:
                    socket.stop()
    except HandshakeError:
        raise Closed(1002, "the other end refused the WebSocket handshake", ours=False) from None
    finally:
        await trio.aclose_forcefully(stream)
    if not opened:
        raise Closed(1002, "the other end closed before the WebSocket handshake", ours=False)
