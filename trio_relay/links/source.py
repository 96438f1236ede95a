"""One browser socket: its reader, its writer and its heartbeat, in one nursery.

Decodes frames and hands them to a sink, which decides everything; knows nothing of registries or calls.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import trio

from trio_relay.errors import innermost
from trio_relay.links.outbox import Outbox
from trio_relay.links.socket import Closed, Socket
from trio_relay.wire import browser
from trio_relay.wire.codec import Malformed, encode

logger = logging.getLogger(__name__)

LATE_S = 1.0
"""If a timer rings this much too late, we were stopped or overloaded, and silence proves nothing about the tab."""


@dataclass(frozen=True)
class Heartbeat:
    """Times in seconds.

    Attributes:
        interval: Between pings; messages keep a browser's service worker alive (they sleep after 30 s).
        limit: Without any sign of life for this long, a tab is dead.
        hello: How long a socket may stay without an accepted hello.
    """

    interval: float = 15.0
    limit: float = 25.0
    hello: float = 30.0


class Greeted(Protocol):
    """What a heartbeat must know of the other end of a socket."""

    @property
    def label(self) -> str:
        """For log lines: which tab this is."""

    @property
    def accepted(self) -> bool:
        """Whether a hello was ever accepted."""


class SourceSink(Greeted, Protocol):
    """What a socket's frames are handed to. All synchronous; `gone` is the last call, and comes exactly once."""

    def hello(self, hello: browser.Hello) -> browser.HelloRejected | None: ...

    def tools(self, tools: browser.ToolsList | browser.ToolsChanged) -> None: ...

    def result(self, result: browser.Result | browser.PlainAnswer) -> None: ...

    def progress(self, progress: browser.Progress) -> None: ...

    def withdrawn(self, frame: browser.Disconnected) -> None: ...

    def unreadable(self, data: bytes, why: str) -> None: ...

    def gone(self, closed: Closed) -> None: ...


async def serve_source(
    socket: Socket,
    sink: SourceSink,
    outbox: Outbox,
    heartbeat: Heartbeat = Heartbeat(),
) -> None:
    """Serve one browser socket until it is closed by either side; then close it and tell the sink."""
    source = _Source(socket, sink, outbox)
    closed = Closed(1001, "the relay is shutting down", ours=True)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            nursery.start_soon(beat, socket, sink, outbox, heartbeat)
            socket.attach(source.message)
            await source.end()
    except* Closed as group:
        error = innermost(group)
        assert isinstance(error, Closed)
        closed = error
    finally:
        socket.detach()
        sink.gone(closed)
        if closed.ours:
            with trio.CancelScope(shield=True):  # at most a second, see `close`
                await socket.close(closed.code, closed.reason)


class _Source:
    """Hands each message of a socket to its sink, in the socket's reader task and without waiting."""

    def __init__(self, socket: Socket, sink: SourceSink, outbox: Outbox) -> None:
        self._socket = socket
        self._sink = sink
        self._outbox = outbox
        self._verdict: Closed | None = None

    def message(self, data: bytes) -> None:
        if self._verdict is not None:
            return
        sink = self._sink
        try:
            frame = browser.decode_frame(data)
        except Malformed as error:
            sink.unreadable(data, str(error))
            return
        match frame:
            case browser.Result() | browser.PlainAnswer():
                sink.result(frame)
            case browser.Pong():
                pass
            case browser.ToolsList() | browser.ToolsChanged():
                sink.tools(frame)
            case browser.Progress():
                sink.progress(frame)
            case browser.Disconnected():
                sink.withdrawn(frame)
            case browser.Hello():
                rejection = sink.hello(frame)
                self._outbox.put(browser.HELLO_ACCEPTED if rejection is None else encode(rejection))
                if rejection is not None:
                    self._verdict = Closed(1008, rejection.message, ours=True)
                    self._socket.ended.set()

    async def end(self) -> None:
        """Wait for the end of the socket. Raises `Closed`, saying which."""
        await self._socket.ended.wait()
        if self._verdict is None:
            raise self._socket.why_closed()
        with trio.move_on_after(1):
            await self._outbox.flushed()
        raise self._verdict


async def beat(socket: Socket, sink: Greeted, outbox: Outbox, times: Heartbeat) -> None:
    """Ping a browser's socket. Raises `Closed` when it gives no sign of life, or says no hello in time."""
    start = trio.current_time()
    next_ping = start + times.interval
    while True:
        dead_at = socket.last_life + times.limit
        hello_by = trio.current_time() + times.limit if sink.accepted else start + times.hello
        ring = min(next_ping, dead_at, hello_by)
        await trio.sleep_until(ring)
        now = trio.current_time()
        if now - ring > LATE_S:
            logger.debug("%s: we were not running for %.1f s, so its silence does not count", sink.label, now - ring)
            socket.metered.last_life = now
        elif now >= socket.last_life + times.limit:
            raise Closed(1001, f"no sign of life for {times.limit:g} s", ours=True)
        if not sink.accepted and now >= start + times.hello:
            raise Closed(1008, f"no hello within {times.hello:g} s", ours=True)
        if now >= next_ping:
            next_ping = now + times.interval
            if len(outbox) == 0:  # behind a backlog it would say nothing new
                outbox.put(browser.PING)
