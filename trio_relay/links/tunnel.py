"""The relay's end of a tunnel: one WebSocket of our browser extension, with probes and ports of extensions in it.

One nursery per tunnel; in it the writer, the heartbeat, the handler that was given, and one task for each probe and
each port that an extension begins. Frames are handed out in the socket's reader task, without waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from trio_relay.core.extension_id import is_extension_id
from trio_relay.core.port import Port, PortClosed, Unanswered
from trio_relay.core.probe import Silence
from trio_relay.core.tunnel import TunnelIds, read_frame
from trio_relay.errors import NotSent, innermost
from trio_relay.links.listener import Accepted
from trio_relay.links.outbox import Outbox
from trio_relay.links.socket import Closed, Socket
from trio_relay.links.source import Heartbeat, beat
from trio_relay.links.tunnel_port import Question, TunnelPort
from trio_relay.wire import ports
from trio_relay.wire.codec import Malformed, Maybe, as_text

logger = logging.getLogger(__name__)

OPEN_S = 10.0
"""Seconds a bridge has to open a port; a browser that has to start a service worker takes one or two."""

MAX_PORTS = 256
MAX_PROBES = 256
"""What extensions may have begun, and not ended, on one tunnel."""

ENVELOPE_BYTES = 1 << 16
"""By how much a message may be longer than the limit and still cost its port only, not the socket."""

MAX_BROWSER_ID = 256

OnProbe = Callable[[str, bytes], Awaitable[bytes]]
"""(sender's extension id, its message) to the answer; both are JSON texts."""

OnPort = Callable[[Port, str], Awaitable[None]]
"""(port, its name): serves a port. It is closed when this returns."""


class Tunnel:
    """Implements `core.port.Carrier`. A handler gets it once the bridge has said hello, and calls `accept` first.

    Attributes:
        extension_id: The bridge's own, which is who asks and connects in the browser (`client.id` of a probe).
        browser_id: The browser profile's random name, the same when it comes back.
        accepted: Whether `accept` was called.
        label: For log lines.
    """

    def __init__(self, socket: Socket, extension_id: str, max_payload: int, label: str) -> None:
        self.extension_id = extension_id
        self.browser_id = ""
        self.accepted = False
        self.label = label
        self.max_payload = max_payload
        self.greeted = trio.Event()
        self._socket = socket
        self._outbox = Outbox(socket)
        self._ids = TunnelIds()
        self._ports: dict[str, TunnelPort] = {}
        self._asked: dict[str, Question] = {}  # by us
        self._answering: set[str] = set()  # probes of extensions
        self._on_probe: OnProbe | None = None
        self._on_port: OnPort | None = None
        self._refusal: tuple[str, str] | None = None
        self._verdict: Closed | None = None
        self._lost: str | None = None

    def __repr__(self) -> str:
        return f"<Tunnel {self.label}: {len(self._ports)} ports, {len(self._asked)} probes, {self._lost or 'open'}>"

    def accept(self, on_probe: OnProbe | None = None, on_port: OnPort | None = None) -> None:
        """Let the bridge in; before this nothing can be asked.

        Args:
            on_probe: Answers probes of other extensions.
            on_port: Serves their ports, each in a task of its own. An error of either costs that probe or port only.
                Without both, the bridge keeps other extensions to itself.
        """
        self._on_probe, self._on_port = on_probe, on_port
        self.post(ports.hello_accepted(self.max_payload, serves=on_probe is not None or on_port is not None))
        self.accepted = True

    # -- Carrier

    async def probe(self, extension_id: str, message: bytes, timeout: float) -> bytes:
        if not is_extension_id(extension_id):
            raise Unanswered(Silence.FAILED, f"{extension_id[:64]!r} is no extension id")
        why = self._unusable()
        if why is not None:
            raise Unanswered(Silence.FAILED, why)
        probe_id = self._ids.next()
        frame = ports.probe(probe_id, extension_id, message, max(1, round(timeout * 1000)))
        if len(frame) > self.max_payload:
            raise Unanswered(Silence.FAILED, f"a message of {len(message)} bytes is too large (--max-payload)")
        question = self._asked[probe_id] = Question()
        try:
            self.post(frame)
            with trio.move_on_after(timeout):
                await question.settled.wait()
        finally:
            del self._asked[probe_id]
        return question.response(timeout)

    async def open_port(self, extension_id: str, name: str) -> Port:
        if not is_extension_id(extension_id):
            raise PortClosed(f"{extension_id[:64]!r} is no extension id")
        why = self._unusable()
        if why is not None:
            raise PortClosed(why)
        port = TunnelPort(self, self._ids.next(), extension_id)
        self._ports[port.port_id] = port
        self.post(ports.port_open(port.port_id, extension_id, name))
        try:
            with trio.move_on_after(OPEN_S):
                await port.settled.wait()
        except BaseException:
            port.close()
            raise
        if not port.settled.is_set():
            port.close(f"the browser did not open the port within {OPEN_S:g} s")
        port.require_open()
        return port

    def _unusable(self) -> str | None:
        return self._lost or (None if self.accepted else "the tunnel is not accepted yet")

    # -- for ports

    async def room(self) -> None:
        await self._outbox.room()

    def post(self, frame: bytes) -> None:
        """Send a frame, now or when its turn comes. On a lost tunnel nothing happens."""
        if self._lost is not None:
            return
        try:
            self._outbox.put(frame)
        except NotSent:
            self._end(Closed(1013, "the bridge takes no messages", ours=True))

    def forget(self, port: TunnelPort) -> None:
        self._ports.pop(port.port_id, None)

    # -- frames

    def _message(self, data: bytes) -> None:
        if self._lost is not None or self._verdict is not None:
            return
        try:
            if len(data) > self.max_payload:
                raise Malformed(f"it has {len(data)} bytes, and the limit is {self.max_payload}", is_json=True)
            frame = read_frame(data)
        except Malformed as error:
            self._unreadable(data, str(error))
            return
        if isinstance(frame, ports.Pong):
            return
        if isinstance(frame, ports.Hello) or not self.greeted.is_set():
            self._hello(frame)
        elif not self.accepted:
            logger.warning("%s: a frame before the hello was accepted is ignored", self.label)
        else:
            self._frame(frame)

    def _frame(self, frame: ports.BridgeFrame) -> None:
        match frame:
            case ports.Message():
                if (port := self._ports.get(frame.portId)) is not None:
                    port.deliver(bytes(frame.message))
            case ports.ProbeResponse():
                if (question := self._asked.get(frame.probeId)) is not None:
                    question.answer(frame)
            case ports.Opened():
                if (port := self._ports.get(frame.portId)) is not None:
                    port.settled.set()
            case ports.Refused():
                if (port := self._ports.get(frame.portId)) is not None:
                    port.end(_words(frame.reason, "the extension is not there, or does not take ports"))
            case ports.Close():
                if (port := self._ports.get(frame.portId)) is not None:
                    port.end(_words(frame.error, "the other end closed the port"))
            case ports.Asked():
                self._probe_came(frame)
            case ports.Incoming():
                self._port_came(frame)
            case _:
                raise AssertionError(frame)

    def _hello(self, frame: ports.BridgeFrame) -> None:
        if self.greeted.is_set():
            logger.warning("%s: a second hello is ignored", self.label)
        elif not isinstance(frame, ports.Hello):
            self._reject("invalid-hello", "the first frame is a hello")
        elif frame.version != ports.PROTOCOL_VERSION:
            self._reject("version", f"only version {ports.PROTOCOL_VERSION} is spoken here")
        elif not 1 <= len(frame.browserId) <= MAX_BROWSER_ID:
            self._reject("invalid-hello", f"a browserId has 1 to {MAX_BROWSER_ID} characters")
        elif self._refusal is not None:
            self._reject(*self._refusal)
        else:
            self.browser_id = frame.browserId
            self.greeted.set()

    def _unreadable(self, data: bytes, why: str) -> None:
        if not self.greeted.is_set():
            self._reject("invalid-hello", why)
            return
        logger.warning("%s: a frame is ignored: %s", self.label, why)
        port = self._ports.get(ports.find_port_id(data) or "")
        if port is not None:
            port.close(f"a message that cannot be passed on: {why}")

    def _reject(self, reason: str, message: str) -> None:
        self.post(ports.hello_rejected(reason, message))
        self._end(Closed(1008, message, ours=True))

    # -- what extensions begin

    def _probe_came(self, frame: ports.Asked) -> None:
        if frame.probeId in self._answering:
            logger.warning("%s: probe %s came twice", self.label, frame.probeId)
        elif self._on_probe is None or len(self._answering) >= MAX_PROBES:
            logger.debug("%s: a probe of %s is refused", self.label, frame.senderId)
            self.post(ports.probe_error(frame.probeId, Silence.FAILED.value, "not answered here"))
        else:
            self._answering.add(frame.probeId)
            self._nursery.start_soon(self._answer, self._on_probe, frame)

    async def _answer(self, on_probe: OnProbe, frame: ports.Asked) -> None:
        try:
            answer = ports.probe_response(frame.probeId, await on_probe(frame.senderId, bytes(frame.message)))
            if len(answer) > self.max_payload:
                raise ValueError(f"an answer of {len(answer)} bytes is too large")
        except Exception as error:
            self._fault(f"probe of {frame.senderId}", error)
            answer = ports.probe_error(frame.probeId, Silence.FAILED.value, "an error in the relay")
        finally:
            self._answering.discard(frame.probeId)
        self.post(answer)

    def _port_came(self, frame: ports.Incoming) -> None:
        if (known := self._ports.get(frame.portId)) is not None:
            known.close("another port was opened under its id")
        elif self._on_port is None:
            logger.debug("%s: a port of %s is refused", self.label, frame.senderId)
            self.post(ports.port_refused(frame.portId, "the relay serves no extensions"))
        elif sum(port_id.startswith(ports.BRIDGE_PREFIX) for port_id in self._ports) >= MAX_PORTS:
            self.post(ports.port_refused(frame.portId, f"there are {MAX_PORTS} ports already"))
        else:
            port = TunnelPort(self, frame.portId, frame.senderId)
            self._ports[frame.portId] = port
            port.settled.set()
            self.post(ports.port_opened(frame.portId))
            self._nursery.start_soon(self._serve_port, self._on_port, port, frame.name)

    async def _serve_port(self, on_port: OnPort, port: TunnelPort, name: str) -> None:
        try:
            await on_port(port, name)
        except Exception as error:
            if not isinstance(innermost(error), PortClosed):
                self._fault(f"port of {port.extension_id}", error)
                port.close("an error in the relay")
        finally:
            port.close()

    def _fault(self, where: str, error: Exception) -> None:
        cause = innermost(error)
        logger.error("%s: %s: %s: %s", self.label, where, type(cause).__name__, cause)
        logger.debug("%s: details", self.label, exc_info=error)

    # -- its life

    async def run(self, handler: BridgeHandler | None, heartbeat: Heartbeat) -> None:
        """Serve until the socket ends. Raises `Closed`, saying how."""
        if handler is None:
            self._refusal = ("not-serving", "this relay does nothing with ports of extensions")
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._write)
                nursery.start_soon(self._watch, heartbeat)
                if handler is not None:
                    nursery.start_soon(self._handle, handler)
                self._socket.attach(self._message)
                await self._wait_end()
        finally:
            self._socket.detach()

    async def _wait_end(self) -> None:
        try:
            await self._socket.ended.wait()
            closed = self._verdict or self._socket.why_closed()
            self._lose(closed)
            if self._verdict is not None:
                with trio.move_on_after(1):
                    await self._outbox.flushed()
            raise closed
        finally:  # at once, whatever cleanup others still do
            self._lose(self._verdict or Closed(1001, "the relay ends it", ours=True))

    async def _write(self) -> None:
        try:
            await self._outbox.run()
        except Closed as closed:
            self._lose(closed)
            raise

    async def _watch(self, heartbeat: Heartbeat) -> None:
        try:
            await beat(self._socket, self, self._outbox, heartbeat)
        except Closed as closed:
            self._lose(closed)
            raise

    async def _handle(self, handler: BridgeHandler) -> None:
        await self.greeted.wait()
        await handler(self)
        self._end(Closed(1001, "the relay is done with it", ours=True))

    def _end(self, closed: Closed) -> None:
        if self._verdict is None:
            self._verdict = closed
            self._socket.ended.set()

    def _lose(self, closed: Closed) -> None:
        if self._lost is not None:
            return
        self._lost = f"the connection to the browser is lost ({closed})"
        for port in list(self._ports.values()):
            port.end(self._lost)
        for question in self._asked.values():
            question.answer(Unanswered(Silence.FAILED, self._lost))


BridgeHandler = Callable[[Tunnel], Awaitable[None]]
"""Does what is to be done with one tunnel, from `accept` on. Cancelled when the tunnel is lost, and the tunnel
is closed when it returns or raises."""


async def serve_tunnel(
    accepted: Accepted,
    extension_id: str,
    handler: BridgeHandler | None,
    max_payload: int,
    heartbeat: Heartbeat,
) -> None:
    """Serve the socket of a bridge until either side closes it; then close it.

    Args:
        extension_id: The bridge's own, from its Origin.
        handler: None to refuse it after its hello.
        max_payload: Longest frame in bytes, both ways.
    """
    socket = accepted.socket
    socket.frames.max_message = max_payload + ENVELOPE_BYTES
    tunnel = Tunnel(socket, extension_id, max_payload, f"bridge {accepted.remote}")
    closed = Closed(1001, "the relay is shutting down", ours=True)
    try:
        await tunnel.run(handler, heartbeat)
    except* Closed as group:
        error = innermost(group)
        assert isinstance(error, Closed)
        closed = error
    finally:
        if tunnel.accepted:
            logger.info("%s: gone (%s)", tunnel.label, closed)
        if closed.ours:
            with trio.CancelScope(shield=True):  # at most a second, see `close`
                await socket.close(closed.code, closed.reason)


def _words(member: Maybe, otherwise: str) -> str:
    return as_text(member) or otherwise
