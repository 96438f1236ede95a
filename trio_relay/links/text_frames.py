"""wsproto's handshake with our framing, in the shape trio_websocket expects of a connection. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    Request,
)
from wsproto.utilities import RemoteProtocolError

from trio_relay.links.frames import CLOSE, PING, PONG, TEXT, FrameError, FrameReader, close_payload, frame, read_close
from trio_relay.wire.codec import clean_text


class TextFrames(WSConnection):
    """wsproto's handshake with our framing, in the shape trio_websocket expects of a `WSConnection`.

    Messages do not become events: each is handed to `on_message` as it is complete, in order with everything else
    the peer sent, so that a message costs no task switch. `BytesMessage` goes out as text.

    Args:
        max_message: Largest incoming message, in bytes.
        on_message: Gets each message, after `clean_text`.
        on_close: Called once when the peer has closed or broken the protocol, before any answer is written
            (it may not be reading).
    """

    def __init__(
        self,
        kind: ConnectionType,
        *,
        max_message: int,
        on_message: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(kind)
        self.request: Request | None = None
        self.fault: FrameError | None = None
        self.peer_close: tuple[int, str] | None = None
        self._on_message = on_message
        self._on_close = on_close
        self._reader = FrameReader(client=self.client, max_message=max_message, check_text=clean_text)
        self._state: ConnectionState | None = None
        self._queue: deque[Event] = deque()
        self._head = b""  # the HTTP head as far as it has come
        self._early = b""  # what came in one read with its end

    @property
    def max_message(self) -> int:
        """Largest incoming message, in bytes; a subprotocol may set its own before messages come."""
        return self._reader.max_message

    @max_message.setter
    def max_message(self, limit: int) -> None:
        self._reader.max_message = limit

    @property
    def state(self) -> ConnectionState:
        return super().state if self._state is None else self._state

    def send(self, event: Event) -> bytes:
        if self._state is None:
            data = super().send(event)
            if isinstance(event, AcceptConnection):
                self._open()
            return data
        if isinstance(event, BytesMessage):
            return frame(TEXT, event.data, client=self.client)
        if isinstance(event, CloseConnection):
            remote = self._state is ConnectionState.REMOTE_CLOSING
            self._state = ConnectionState.CLOSED if remote else ConnectionState.LOCAL_CLOSING
            payload = b"" if event.code == 1005 else close_payload(event.code, event.reason)
            return frame(CLOSE, payload, client=self.client)
        if isinstance(event, Ping | Pong):
            opcode = PING if isinstance(event, Ping) else PONG
            return frame(opcode, bytes(event.payload), client=self.client)
        raise TypeError(f"no frame for {type(event).__name__}")

    def receive_data(self, data: bytes | None) -> None:
        if self._state is None:
            try:
                self._receive_head(data or b"")
            except UnicodeError:  # wsproto decodes some headers
                hint = None if self.client else RejectConnection()
                raise RemoteProtocolError("HTTP header is not text", event_hint=hint) from None
            except RemoteProtocolError as error:
                if self.client:
                    error.event_hint = None  # wsproto's hint is to answer with HTTP, which only a server can
                raise
        elif data and self._state in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            try:
                frames = self._reader.feed(data)
            except FrameError as error:
                self._take(error.args[1])
                self._fail(error)
            else:
                self._take(frames)

    def _receive_head(self, data: bytes) -> None:
        """Give wsproto the HTTP head and no more: it would keep the first frames, which can come right behind."""
        before, self._head = len(self._head), self._head + data
        end = self._head.find(b"\r\n\r\n", max(0, before - 3))
        if end < 0 or not data:
            super().receive_data(data)
            return
        super().receive_data(data[: end + 4 - before])
        self._early = self._head[end + 4 :]
        self._head = b""
        if self.client and self.handshake.state is not ConnectionState.OPEN and self._early:
            super().receive_data(self._early)  # the body of a refusal

    def _open(self) -> None:
        self._state = ConnectionState.OPEN
        early, self._early = self._early, b""
        self.receive_data(early)

    def events(self) -> Generator[Event, None, None]:
        if self._state is None:
            for event in self.handshake.events():
                if isinstance(event, Request):
                    self.request = event
                elif isinstance(event, AcceptConnection):
                    self._open()
                yield event
        while self._queue:
            event = self._queue.popleft()
            if isinstance(event, BytesMessage):
                self._on_message(bytes(event.data))
                continue
            if isinstance(event, CloseConnection):
                self._on_close()
            yield event

    def _take(self, frames: list[tuple[int, bytes]]) -> None:
        for opcode, payload in frames:
            if opcode == TEXT:
                self._queue.append(BytesMessage(data=payload))
            elif opcode == PING:
                self._queue.append(Ping(payload=payload))
            elif opcode == PONG:
                self._queue.append(Pong(payload=payload))
            else:
                try:
                    self.peer_close = read_close(payload)
                except FrameError as error:
                    self._fail(error)
                else:
                    self._closed_by_peer(*self.peer_close)
                return

    def _fail(self, error: FrameError) -> None:
        if self.fault is None and self._state is ConnectionState.OPEN:
            self.fault = error
            self._closed_by_peer(error.code, error.reason)

    def _closed_by_peer(self, code: int, reason: str) -> None:
        closing = self._state is ConnectionState.LOCAL_CLOSING
        self._state = ConnectionState.CLOSED if closing else ConnectionState.REMOTE_CLOSING
        self._queue.append(CloseConnection(code=code, reason=reason))
