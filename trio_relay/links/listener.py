"""The WebSocket port: binds it, shakes hands, and keeps one connection's fault from the others."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import trio

from trio_relay.config import LOOPBACK_NAMES, RelayConfig
from trio_relay.errors import CannotListen, PortTaken, innermost
from trio_relay.links.socket import Closed, Socket, handshake
from trio_relay.wire import peer, ports
from trio_relay.wire.browser import SUBPROTOCOLS

logger = logging.getLogger(__name__)

KNOWN = (*SUBPROTOCOLS, peer.SUBPROTOCOL, ports.SUBPROTOCOL)


@dataclass(frozen=True)
class Accepted:
    """A WebSocket after its handshake.

    Attributes:
        subprotocol: The one that was echoed; `webmcp.v1` when none was.
        origin: The browser's Origin header, or None from a program that sent none.
        remote: `host:port` of the other end, for log lines.
    """

    socket: Socket
    subprotocol: str
    origin: str | None
    remote: str


Handler = Callable[[Accepted], Awaitable[None]]


async def bind(host: str, port: int) -> list[trio.SocketListener]:
    """Bind the port on every address of `host`; with port 0, a free one on the first of them.

    Raises:
        PortTaken: another program has it.
        CannotListen: the address is not ours; one line that says what to do.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
        if port == 0 and len(listeners) > 1:
            for extra in listeners[1:]:
                await extra.aclose()
            del listeners[1:]
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", errno.EADDRINUSE)):
            raise PortTaken(
                f"port {port} on {host} is used by another program: stop it, or choose another port with --port"
            ) from None
        raise CannotListen(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    return listeners


def is_free(host: str, port: int) -> bool:
    """Whether the port could be bound just now; nothing is kept of it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        if sys.platform == "win32":
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


def port_of(listeners: list[trio.SocketListener]) -> int:
    port: int = listeners[0].socket.getsockname()[1]
    return port


async def listen(listeners: list[trio.SocketListener], config: RelayConfig, handler: Handler) -> None:
    """Serve connections until cancelled. Each has a task of its own, in which `handler` runs."""
    serve = partial(_serve, config=config, handler=handler)
    await trio.serve_listeners(serve, listeners)


async def _serve(stream: trio.SocketStream, *, config: RelayConfig, handler: Handler) -> None:
    """One TCP connection from its first byte to its last. Nothing it does may reach the others."""
    try:
        remote = "{}:{}".format(*stream.socket.getpeername()[:2])
    except OSError:
        await trio.aclose_forcefully(stream)
        return
    try:
        async with handshake(stream, max_message=config.max_payload) as (ws, request):
            host = ws.frames.request.host if ws.frames.request is not None else ""
            if config.is_loopback and not host_allowed(host, config.host):
                # DNS rebinding: a web page whose name resolves to this machine.
                logger.warning("%s asked for host %r; refused (403)", remote, host[:100])
                await request.reject(403, body=b"This relay is reached as 127.0.0.1 or localhost only.\n")
                return
            origins = [value.decode("latin-1") for name, value in request.headers if name == b"origin"]
            offered = request.proposed_subprotocols
            chosen = next((name for name in offered if name in KNOWN), None)
            await request.accept(subprotocol=chosen)
            origin = None if not origins else origins[0] if len(origins) == 1 else "null"
            accepted = Accepted(ws, chosen or SUBPROTOCOLS[0], origin, remote)
            if accepted.subprotocol == peer.SUBPROTOCOL and origin is not None:
                logger.warning("%s: a web page (%s) tried the relay protocol; refused", remote, origin[:100])
                await ws.close(1008, "the relay protocol is not for web pages")
                return
            if accepted.subprotocol == ports.SUBPROTOCOL and config.bridge_of(origin) is None:
                # Ids of senders come over it, and they decide who may call.
                who = "a program without an Origin" if origin is None else origin[:100]
                logger.warning("%s: %s tried to carry ports of extensions; refused (--bridge-extension)", remote, who)
                await ws.close(1008, "only the relay's own extension carries ports")
                return
            await handler(accepted)
    except* Closed as closed:
        logger.debug("%s: %s", remote, _brief(closed))
    except* Exception as error:  # the connection boundary: containment is ours (see docs/architecture.md)
        logger.error("%s: connection ended by %s", remote, _brief(error))
        logger.debug("%s: details", remote, exc_info=error)


def _brief(error: BaseException) -> str:
    """The innermost cause of an error, on one line."""
    error = innermost(error)
    return f"{type(error).__name__}: {error}".splitlines()[0]


def host_allowed(header: str, configured: str) -> bool:
    """Whether a `Host` header names this machine's loopback or the configured host."""
    name = header.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    return name in LOOPBACK_NAMES or name == configured.lower() or _is_loopback_v4(name)


def _is_loopback_v4(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(part.isdecimal() and int(part) < 256 for part in parts)
